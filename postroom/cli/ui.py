"""`postroom ui`: the page of a base."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys

import click

from ..errors import PostroomError
from ..store.base import Base, open_base
from ..system.own_python import start_detached

PORT = 8631
VARIABLE = "POSTROOM_UI_TOKEN"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base", envvar="POSTROOM_BASE")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="Listen on another address than this machine's own, for others to reach. Think first.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="A host name that the page answers to, besides the address itself; may be repeated.",
)
@click.option(
    "--token",
    default="",
    envvar=VARIABLE,
    show_envvar=True,
    help="Instead of a random one. Others see it in `ps`: the variable is better.",
)
@click.option("--detach", is_flag=True, help="Go on in the background, when the terminal is gone.")
@click.option("--listener", type=int, hidden=True, help="What a detached page listens on.")
def command(
    base: str,
    port: int,
    host: str,
    names: tuple[str, ...],
    token: str,
    detach: bool,
    listener: int | None,
) -> None:
    """Show BASE in the browser: cards, queue, logs; submit, kill, pause, rerun.

    The page reads the folder and writes requests, as the command line does; it runs nothing.
    Stopping it stops no job. Reach it from elsewhere through ssh:

    \b
      ssh -L 8631:localhost:8631 gpu-machine      then open the printed address here
    """
    try:
        from ..web.access_token import AccessToken
        from ..web.app import create_app
        from ..web.request_guard import LOOPBACK
        from ..web.server import listen, make_server
    except ImportError as error:
        raise PostroomError(
            f"the page needs {error.name}, which is not installed: pip install 'postroom[web]'"
        ) from None
    opened = open_base(base)
    keys = AccessToken(token)
    os.environ.pop(VARIABLE, None)
    address = host or "127.0.0.1"
    try:
        line = listen(address, port) if listener is None else socket.socket(fileno=listener)
    except OSError as error:
        raise PostroomError(
            f"cannot listen on {address} port {port}: {error.strerror}; choose another --port"
        ) from None
    shown = f"[{address}]" if ":" in address else address
    if listener is None:
        click.echo(f"the page of {opened.root}:", err=True)
        click.echo(f"http://{shown}:{line.getsockname()[1]}/?token={keys.token}")
        if not _is_loopback(address):
            click.echo(
                f"warning: {shown} may be reached by others, and what they send is not encrypted: "
                "whoever reads the token on its way can run anything as you. ssh -L is safer.",
                err=True,
            )
    if detach:
        again = ["--host", host] if host else []
        for name in names:
            again += ["--name", name]
        _detach(opened, line, again, keys.token)
        return
    click.echo("Ctrl-C stops the page, and no job.", err=True)
    sys.stdout.flush()
    app = create_app(opened, keys, hosts={*LOOPBACK, shown, *names}, here=os.getcwd())
    make_server(app).run(sockets=[line])


def _detach(base: Base, line: socket.socket, options: list[str], token: str) -> None:
    """Start the same page in a session of its own, on the line that is held already."""
    path = f"{os.path.dirname(base.log)}/ui.txt"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    log = os.open(path, flags, 0o600)
    words = ["ui", base.root, "--listener", str(line.fileno()), *options]
    try:
        process = start_detached(
            "postroom",
            *words,
            log=log,
            cwd=os.getcwd(),
            env={**os.environ, VARIABLE: token},
            pass_fds=[line.fileno()],
        )
    finally:
        os.close(log)
    click.echo(f"running as pid {process.pid}; log: {path}; stop: kill {process.pid}", err=True)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
