"""How this project's data is passed: its Job.

    Job("expensive_task:expensive_task", name="a label", a=array, b=array)

Every keyword goes to the kernel as an argument of that name. Options of a job that are not passed
on: retries, timeout_s, exclusive, tensors, pickle.
"""

from typing import Any

import postroom


class Job(postroom.Job):
    """One call of the kernel."""

    def deploy(self) -> dict[str, Any]:
        """What travels to the session; change it to pack, cut or cast before the journey."""
        return self.arguments

    def collect(self, output: Any) -> Any:
        """What the pool hands out for the kernel's output; change it to unpack or convert."""
        return output
