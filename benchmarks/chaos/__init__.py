"""Programs that try to break Postroom: `python -m benchmarks.chaos --help`, or `make chaos`."""
