"""A batch: many shell lines, the slots they run in, and the folder that says how each ended."""
