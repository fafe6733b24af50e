"""How much GPU memory jobs need: measured, learned, and used to share cards."""
