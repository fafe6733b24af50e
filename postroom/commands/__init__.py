"""One shell command: its options, its minder process, its output files, and why it failed."""
