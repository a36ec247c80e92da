"""What is believed: networks, likelihoods, the missingness mechanism and the joint density of one row."""
