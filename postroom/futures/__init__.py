"""Standard futures for jobs: one thread drives a Master, and serves any number of threads."""
