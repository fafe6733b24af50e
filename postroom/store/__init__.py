"""The base folder and its protocol: every file in it, who writes it, and how it is read."""
