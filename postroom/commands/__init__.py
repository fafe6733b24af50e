"""One shell command: what is asked, who minds it, what it leaves, why it failed."""
