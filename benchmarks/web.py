"""What a page costs, with 1,000 and with 100,000 waiting jobs.

    python -m benchmarks.web

Real HTTP requests to a running page server: the overview, the first page of jobs, a later page. The
cost should depend on what is shown, not on the length of the queue.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

import click

from postroom.store.base import Base, create_base
from postroom.web import queue_reader
from postroom.web.access_token import AccessToken
from postroom.web.app import create_app
from postroom.web.server import listen, make_server

from .queue import BOUND, FEW, MANY, fill, medians_ms
from .scratch import scratch

PATHS = {
    "overview": "/",
    "first page of jobs": "/jobs",
    "page 10 of jobs": "/jobs?first=450",
    "a project's jobs": "/jobs?project=sweep+0",
    "API: first page": "/api/jobs",
    "metrics": "/metrics",
}


@contextlib.contextmanager
def page(base: Base) -> Iterator[Callable[[str], Callable[[], object]]]:
    """Serve a base; yields a function that makes requests to it."""
    token = AccessToken()
    listener = listen("127.0.0.1", 0)
    root = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = make_server(create_app(base, token))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)

    def ask(path: str) -> Callable[[], object]:
        headers = {"Authorization": f"Bearer {token.secret}"}
        request = urllib.request.Request(root + path, headers=headers)
        return lambda: urllib.request.urlopen(request).read()

    try:
        yield ask
    finally:
        server.should_exit = True
        thread.join()


@click.command()
def main() -> None:
    """Measure, print a table, and fail when a page costs more than twice with the long queue."""
    os.environ["POSTROOM_FAKE_GPUS"] = "2x24G"
    queue_reader.FRESH_S = 0.0  # every request reads the base
    with scratch() as few_folder, scratch() as many_folder:
        few, many = create_base(f"{few_folder}/base"), create_base(f"{many_folder}/base")
        fill(few, FEW)
        fill(many, MANY)
        with page(few) as ask_few, page(many) as ask_many:
            click.echo(f"{'':20}{FEW:>10} jobs{MANY:>10} jobs{'ratio':>8}")
            worst = 0.0
            for name, path in PATHS.items():
                ask_many(path)()  # the first request reads what never changes
                short_ms, long_ms = medians_ms(ask_few(path), ask_many(path))
                worst = max(worst, long_ms / short_ms)
                click.echo(
                    f"{name:20}{short_ms:>12.1f} ms{long_ms:>12.1f} ms{long_ms / short_ms:>8.2f}"
                )
        click.echo(f"\nworst ratio of a page: {worst:.2f}, bound {BOUND}")
        sys.exit(worst > BOUND)


if __name__ == "__main__":
    main()
