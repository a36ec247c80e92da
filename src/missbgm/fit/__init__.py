"""How parameters are found: warm start, Algorithm 1 as pure steps, and the loop that runs them."""
