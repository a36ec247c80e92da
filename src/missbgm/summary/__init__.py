"""What is reported: draws of missing cells and their summaries."""
