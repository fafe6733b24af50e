"""The page: reads the base, and writes the same requests as the command line."""
