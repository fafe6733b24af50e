"""The page: one more reader of the base, which writes the same requests as the command line."""
