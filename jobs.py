"""This project's Job: how its data goes to a session, and comes back.

    Job("expensive_task:expensive_task", name="a label", a=array, b=array)

Every keyword goes to the kernel as an argument of that name. Options of a job that are not passed
on: retries, timeout_s, exclusive, tensors, pickle.
"""

from typing import Any

import postroom


class Job(postroom.Job):
    """One call of the kernel."""

    def deploy(self) -> dict[str, Any]:
        """The arguments that are sent to the session; change it to pack, cut or cast them."""
        return self.arguments

    def collect(self, output: Any) -> Any:
        """The result that the pool returns for the kernel's output; change it to convert it."""
        return output
