"""`postroom ui`: serve the web page of a base."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import click

from ..errors import PostroomError
from ..store.agents import PageInfo, read_page_info
from ..store.base import Base, open_base
from ..store.files import LocalFiles, LocalLock, replace_file
from ..system.own_python import check_alive, start_detached
from ..system.processes import alive, myself
from .options import CONTEXT, base_argument

if TYPE_CHECKING:
    from ..web.access_token import AccessToken

PORT = 8631
VARIABLE = "POSTROOM_UI_TOKEN"
START_S = 30.0


@click.command(context_settings=CONTEXT)
@base_argument
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="Address to listen on; other users may reach it.  [default: 127.0.0.1]",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Also accept requests for this host name; may be repeated.",
)
@click.option(
    "--token",
    default="",
    envvar=VARIABLE,
    show_envvar=True,
    help="Use this token instead of a random one. `ps` shows it: prefer the variable.",
)
@click.option(
    "--read-only",
    "shared",
    is_flag=True,
    help="Also print an address for colleagues, who can look and change nothing.",
)
@click.option("--detach", is_flag=True, help="Run in the background; survives the terminal.")
@click.option(
    "--listener", type=int, hidden=True, help="The socket that a detached page listens on."
)
def command(
    base: str,
    port: int,
    host: str,
    names: tuple[str, ...],
    token: str,
    shared: bool,
    detach: bool,
    listener: int | None,
) -> None:
    """Serve a web page for BASE: GPUs, queue, logs; submit, kill, pause and rerun jobs.

    It prints the address to open in a browser. Stopping the page stops no job. To reach it from
    another machine, forward the port with ssh, and open the same address there.

    \b
      postroom ui ./base
      postroom ui ./base --read-only         also prints an address for colleagues
      ssh -L 8631:localhost:8631 gpu-machine
    """
    try:
        from ..web.access_token import AccessToken
        from ..web.app import create_app
        from ..web.request_guard import LOOPBACK
        from ..web.server import listen, make_server
    except ImportError as error:
        raise PostroomError(
            f"the web page needs {error.name}, which is not installed: pip install 'postroom[web]'"
        ) from None
    opened = open_base(base)
    known = read_page_info(LocalFiles(), opened)
    access = AccessToken(token or (known.token if known is not None else ""), shared=shared)
    os.environ.pop(VARIABLE, None)
    address = host or "127.0.0.1"
    try:
        line = listen(address, port) if listener is None else socket.socket(fileno=listener)
    except OSError as error:
        raise PostroomError(
            f"cannot listen on {address} port {port}: {error.strerror}; choose another --host "
            "or --port"
        ) from None
    shown = f"[{address}]" if ":" in address else address
    if listener is None:
        click.echo(f"the page of {opened.root}:", err=True)
        click.echo(f"http://{shown}:{line.getsockname()[1]}/?token={access.secret}")
        if shared:
            click.echo("for those who may only look:", err=True)
            click.echo(f"http://{shown}:{line.getsockname()[1]}/?token={access.read_secret}")
        if not _is_loopback(address):
            click.echo(
                f"warning: others may reach {shown}, and the connection is not encrypted: anybody "
                "who reads the token on the network can run commands as you. ssh -L is safer.",
                err=True,
            )
    if detach:
        again = (["--host", host] if host else []) + (["--read-only"] if shared else [])
        for name in names:
            again += ["--name", name]
        _detach(opened, line, again, access.secret)
        return
    click.echo("Ctrl-C stops the page; jobs keep running.", err=True)
    sys.stdout.flush()
    lock = _be_the_page(opened, f"http://{shown}:{line.getsockname()[1]}", access)
    app = create_app(opened, access, hosts={*LOOPBACK, shown, *names}, here=os.getcwd())
    make_server(app).run(sockets=[line])
    if lock is not None:
        lock.release()


def _be_the_page(base: Base, address: str, access: AccessToken) -> LocalLock | None:
    """Say where this page is, unless the base has one: `postroom up` finds it, and its token."""
    files = LocalFiles()
    lock = files.try_lock(base.page_lock)
    if lock is not None:
        me = myself()
        info = PageInfo(
            address,
            access.secret,
            me.pid,
            me.started_ticks,
            me.boot_id,
            me.pid_namespace,
            socket.gethostname(),
            access.read_secret,
        )
        replace_file(files, base.temporary(), base.page_info, info.encode())
    return lock


def open_page(base: Base, *, port: int | None = None, shared: bool = False) -> None:
    """Serve the page in the background, on the port of last time, the usual one, or a free one.

    A page that had a second token has it again.
    """
    try:
        from ..web.access_token import AccessToken
        from ..web.server import listen
    except ImportError as error:
        raise PostroomError(f"it needs {error.name}: pip install 'postroom[web]'") from None
    known = read_page_info(LocalFiles(), base)
    access = AccessToken(os.environ.get(VARIABLE) or (known.token if known is not None else ""))
    options = ["--read-only"] if shared or (known is not None and known.read_token) else []
    last = int(known.address.rpartition(":")[2]) if known is not None else PORT
    for choice in (last, PORT, 0) if port is None else (port,):
        with contextlib.suppress(OSError):
            with listen("127.0.0.1", choice) as line:
                _wait_for_page(base, _detach(base, line, options, access.secret))
            return
    raise PostroomError(f"port {port} is in use: choose another --port")


def _wait_for_page(base: Base, pid: int) -> None:
    """Wait until a page has said where it is, or has found that the base has one already."""
    give_up_at = time.monotonic() + START_S
    while (info := read_page_info(LocalFiles(), base)) is None or info.pid != pid:
        if info is not None and alive(info.process):
            return
        if time.monotonic() > give_up_at:
            raise PostroomError(f"the page did not start: see {os.path.dirname(base.log)}/ui.txt")
        time.sleep(0.05)


def _detach(base: Base, line: socket.socket, options: list[str], token: str) -> int:
    """Serve the same page from a background process, on the socket that is open already."""
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
    check_alive(process, path)
    click.echo(f"page: pid {process.pid}; log: {path}; stop it alone: kill {process.pid}", err=True)
    return process.pid


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
