"""The standing queue: handing in commands, seeing what became of them, and changing its course."""
