"""The acting Master: which jobs wait, which session gets them, and collecting their results."""
