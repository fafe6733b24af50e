"""Postroom spreads jobs over GPUs through nothing but a folder."""
