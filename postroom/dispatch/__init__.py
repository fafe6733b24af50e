"""The acting Master: which jobs wait, who gets them, what comes back."""
