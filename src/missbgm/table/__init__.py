"""Table in, table out: checks, coding and scaling of what the user passes."""
