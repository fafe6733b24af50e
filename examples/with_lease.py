"""A GPU for a part of one's own program. python examples/with_lease.py"""

from __future__ import annotations

import os

from postroom import lease


def main() -> str:
    """Run the example: nothing has used CUDA before the block."""
    with lease(memory="8G") as gpus:
        print(f"on GPU {gpus[0].visible_id}, of {gpus[0].memory_mib} MiB")
        return os.environ["CUDA_VISIBLE_DEVICES"]


if __name__ == "__main__":
    main()
