"""What programs on leased cards find in their environment, besides the cards (`inventory.pin`).

* A port for `torchrun` and `torch.distributed`: their default, 29500, does for one program only.
* On a card that is shared, memory as needed: else JAX takes three quarters of a card at its start,
  and TensorFlow all of it.

These are defaults: what the user has set stays. What comes from a lease around this one does not,
or two leases of one shell would have one port.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

# Below the ports that Linux gives to outgoing connections.
FIRST_PORT, PORTS = 20000, 10000
OUR_PORT = "POSTROOM_MASTER_PORT"
PORT_NAMES = ("MASTER_PORT", "PET_MASTER_PORT")  # torch.distributed, and the option of torchrun
GROWTH = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
DEFAULTS = frozenset({*PORT_NAMES, *GROWTH})


def lease_environment(lease_id: str, *, shared: bool) -> dict[str, str]:
    """Return the variables for a lease; `shared`: others may use its cards at the same time."""
    port = str(FIRST_PORT + crc32(lease_id.encode()) % PORTS)
    return {**dict.fromkeys((*PORT_NAMES, OUR_PORT), port), **(GROWTH if shared else {})}


def granted_over(environment: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what a lease grants; see `grants_to`."""
    return {**environment, **grants_to(environment, granted)}


def grants_to(environment: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
    """Return what a lease grants; its defaults replace nothing of the user's."""
    of_outer_lease = environment.get(OUR_PORT)
    kept = {
        name for name in DEFAULTS if name in environment and environment[name] != of_outer_lease
    }
    return {name: value for name, value in granted.items() if name not in kept}
