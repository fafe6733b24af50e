"""A Job of this project's own: how its data goes to a session, and comes back.

main.py uses postroom's Job, which sends arrays as they are. To use this one, import it there:
`from jobs import Job`.

    Job("expensive_task:expensive_task", a=array, b=array).options(name="a label", retries=1)

What the Job is made with goes to the kernel; `options` say how it runs: name, retries, timeout_s,
exclusive, tensors, pickle.
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
