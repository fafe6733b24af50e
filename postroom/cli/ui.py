"""`postroom ui`: the page of a base."""

from __future__ import annotations

import ipaddress
import os
import sys

import click

from ..base import open_base
from ..errors import PostroomError

PORT = 8631


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("base")
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
    envvar="POSTROOM_UI_TOKEN",
    show_envvar=True,
    help="Instead of a random one. Others see it in `ps`: the variable is better.",
)
def command(base: str, port: int, host: str, names: tuple[str, ...], token: str) -> None:
    """Show BASE in the browser: cards, queue, logs; submit, kill, pause, rerun.

    The page reads the folder and writes requests, as the command line does; it runs nothing.
    Stopping it stops no job. Reach it from elsewhere through ssh:

    \b
      ssh -L 8631:localhost:8631 gpu-machine      then open the printed address here
    """
    try:
        from ..web.app import create_app
        from ..web.keys import Keys
        from ..web.safety import LOOPBACK
        from ..web.server import listen, make_server
    except ImportError as error:
        raise PostroomError(
            f"the page needs {error.name}, which is not installed: pip install 'postroom[web]'"
        ) from None
    opened = open_base(base)
    keys = Keys(token)
    os.environ.pop("POSTROOM_UI_TOKEN", None)
    address = host or "127.0.0.1"
    try:
        listener = listen(address, port)
    except OSError as error:
        raise PostroomError(
            f"cannot listen on {address} port {port}: {error.strerror}; choose another --port"
        ) from None
    port = listener.getsockname()[1]
    shown = f"[{address}]" if ":" in address else address
    hosts = {*LOOPBACK, shown, *names}
    click.echo(f"the page of {opened.root}:", err=True)
    click.echo(f"http://{shown}:{port}/?token={keys.token}")
    if not _is_loopback(address):
        click.echo(
            f"warning: {shown} may be reached by others, and what they send is not encrypted: "
            "whoever reads the token on its way can run anything as you. ssh -L is safer.",
            err=True,
        )
    click.echo("Ctrl-C stops the page, and no job.", err=True)
    sys.stdout.flush()
    app = create_app(opened, keys, hosts=hosts, here=os.getcwd())
    make_server(app).run(sockets=[listener])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
