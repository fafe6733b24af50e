"""The one door to what a process computes on: a GPU through torch, a scripted one, or the CPU."""
