"""The exit codes, named."""

OK = 0
JOB_FAILED = 1
USAGE = 2
NO_GPU = 75
TIMED_OUT = 124
INTERRUPTED = 130
