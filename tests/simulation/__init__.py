"""The protocol on a simulated machine: processes, clocks and a disk that do their worst.

processes.py  processes that take turns operation by operation, and can be ended at any of them
disk.py       a filesystem that tears, loses, reorders and fails, behind the package's own `Files`
checker.py    an independent history of what was promised, and what must hold
forks.py      a kernel that forks, whose child comes back into the worker's loop
roles.py      what runs on it: Masters, guardians and workers, all with the package's own code
world.py      one seed is one story: who runs, what goes wrong, and when
"""
