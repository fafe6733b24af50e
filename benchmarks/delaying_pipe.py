"""`python delaying_pipe.py SECONDS COMMAND...`: a command whose stdin and stdout take their time.

What is written arrives so much later, in order and as fast as it came: latency, not less width.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time

CHUNK = 1 << 20


def carry(reads: int, writes: int, delay_s: float) -> threading.Thread:
    """Carry bytes from one descriptor to another; return the thread that writes."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        data = b"."
        while data:
            data = os.read(reads, CHUNK)
            waiting.put((time.monotonic() + delay_s, data))

    def give() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            view = memoryview(data)
            while len(view):
                view = view[os.write(writes, view) :]
        os.close(writes)

    threading.Thread(target=take, daemon=True).start()
    writer = threading.Thread(target=give, daemon=True)
    writer.start()
    return writer


def main() -> int:
    """Run the command between two delays."""
    delay_s = float(sys.argv[1])
    process = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    carry(0, os.dup(process.stdin.fileno()), delay_s)
    process.stdin.close()
    carry(process.stdout.fileno(), os.dup(1), delay_s).join()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
