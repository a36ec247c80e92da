"""The command line; it imports nothing heavy before there is work to do."""
