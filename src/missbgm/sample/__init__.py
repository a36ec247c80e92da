"""How uncertainty is drawn: one-block kernels, the paper's sweep, chains for every row, and their check."""
