"""The base folder: every path in it, making it, and checking that it can be trusted.

base/
  FORMAT                         protocol version; an unknown one is refused, nothing is touched
  HOST                           the host that it belongs to: others are refused
  agent_pool/0.POOL              mailbox: absent = no agent, empty = idle, a letter = working
  agent_pool/0.lock              file lock of guardian, worker and minder: free when all are dead
  agent_pool/0.tree              file lock of all processes of the session, also of its jobs
  agent_pool/0.REST              a session without its GPU; the acting Master writes here to call it
  agent_pool/0.json              about the session: GPU, host, pid, since
  agent_pool/<gpu>.gate, .use, .members   file locks of workers that share a GPU
  in_hand/0                      one line: the worker's running job, and how many it has done
  job_pool/<run>/jobs.log        the append log of its jobs: their arguments, or names of parcels
  job_pool/<run>/<first>-*.npz   a parcel: the arguments of jobs first, first+1, ...
  job_pool/<run>/<name>.env      environment and umask of queued commands, named by content
  job_pool/<run>/<name>.tar      a snapshot of code for commands, named by content
  job_pool/<run>/run.json        what all jobs of the run have in common
  job_pool/<run>/wanted.lock     shared file lock of those who append to a run or wait for it
  job_pool/<run>/let_go          its program will not read its results again
  job_pool/<run>/reader.<token>  another program may, as long as it lives
  job_pool/<run>/closed          the run is being removed, for good: it takes no more jobs
  job_pool/<run>/taken.json      whose results were handed out and removed; taken.lock: its writer
  result_pool/<run>/<first>.npz  outputs and errors, as they come
  result_pool/<run>/<job>.pickle a result that no parcel can hold, for its user to read
  attempts/<run>/<job>.<n>.json  only for an attempt that ended with no result: why
  data/<name>.npz                shared data, named by content, written once
  data.lock                      shared file lock of those who begin a run that refers to data
  control/                       requests to the acting Master, and the orders in force
  control/agents.json            which agents the base is to have
  control/use.json               how much GPU time each project has used lately
  runs/<run>/<job>/              the files of a queued command: INFO, .OUT, SUCCESS or FAILURE
  runs/<run>/output.<agent>      what the kernels of a run have printed
  log/postroom.log               one log for every process (JSON lines)
  log/events.jsonl               the journal of every state change
  log/curves.jsonl               memory and load of the GPUs lately, for the page; may be deleted
  log/usage.json                 a cache of how much space each run takes; may be deleted, too
  log/results.<run>.json         a cache of what results say; may be deleted at any time
  rejected/  trash/  tmp/        bad files and why; runs being removed; files being written
  programs/<token>.lock          held by a program for as long as it may read results of its runs
  retention.json                 how long results of runs that are over stay, if not as usual
  master.lock                    file lock of the one acting Master
  master.json                    its pid and host, and the epoch of its letters
  page.lock, page.json           file lock of the page of `postroom up`; its address and token
  pilots/                        agents that compute elsewhere: see `store/pilot_records.py`
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shlex
import stat
import time

from ..errors import BaseFolderError
from ..system.filesystem import network_filesystem
from ..system.processes import boot_id, host_name
from ..system.regular_file import open_regular, private
from ..system.shortage import explain
from ..system.spread_folder import spread
from .files import new_token

FORMAT = "postroom 4\n"
FOLDERS = (
    "tmp",
    "agent_pool",
    "in_hand",
    "job_pool",
    "result_pool",
    "attempts",
    "data",
    "control",
    "runs",
    "log",
    "rejected",
    "trash",
    "programs",
    "pilots",
)
FILES = (
    "FORMAT",
    "HOST",
    "master.lock",
    "master.json",
    "data.lock",
    "retention.json",
    "page.lock",
    "page.json",
)
SUFFIX = ".npz"
OUTBOX = "outbox."
CLOSED = "closed"
LET_GO = "let_go"
READER = "reader."
APPEND_LOG = "jobs.log"
EDITED = ".edit"

_TOKEN = new_token(12)
_serials = itertools.count()


class Base:
    """Every path of one base; nobody else joins path strings."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if not os.fspath(root) or "\0" in os.fspath(root):
            raise BaseFolderError(f"{root!r} cannot be a base: name a folder, such as ./base")
        self.root = os.path.abspath(os.fspath(root))
        self.format = f"{self.root}/FORMAT"
        self.host = f"{self.root}/HOST"
        self.far_mark = f"{self.root}/pilots/far"  # it is the base of a pilot's far end
        self.agent_pool = f"{self.root}/agent_pool"
        self.job_pool = f"{self.root}/job_pool"
        self.result_pool = f"{self.root}/result_pool"
        self.control = f"{self.root}/control"
        self.orders = f"{self.root}/control/orders.json"
        self.rejected = f"{self.root}/rejected"
        self.trash = f"{self.root}/trash"
        self.tmp = f"{self.root}/tmp"
        self.log = f"{self.root}/log/postroom.log"
        self.events = f"{self.root}/log/events.jsonl"
        self.data_lock = f"{self.root}/data.lock"  # held, shared, while a run with data is begun
        self.programs = f"{self.root}/programs"
        self.retention = f"{self.root}/retention.json"
        self.usage = f"{self.root}/log/usage.json"
        self.curves = f"{self.root}/log/curves.jsonl"
        self.master_lock = f"{self.root}/master.lock"
        self.master_info = f"{self.root}/master.json"
        self.wanted_agents = f"{self.root}/control/agents.json"
        self.project_shares = f"{self.root}/control/use.json"
        self.page_lock = f"{self.root}/page.lock"
        self.page_info = f"{self.root}/page.json"
        self.pilots = f"{self.root}/pilots"
        self.pilot_groups = f"{self.root}/pilots/groups.json"
        self.pilot_demand = f"{self.root}/pilots/demand.json"
        self.pilot_look = f"{self.root}/pilots/look.json"
        self.pilot_keeper_lock = f"{self.root}/pilots/keeper.lock"

    def __repr__(self) -> str:
        return f"Base({self.root!r})"

    def mailbox(self, agent_id: str) -> str:
        """Where letters to an agent go."""
        return f"{self.agent_pool}/{agent_id}.POOL"

    def rest(self, agent_id: str) -> str:
        """What an agent has instead of a mailbox while it has no GPU; see `session.rest`."""
        return f"{self.agent_pool}/{agent_id}.REST"

    def session_log(self, agent_id: str) -> str:
        """Where a session's own output goes, for the day when it cannot start."""
        return f"{self.root}/log/session-{agent_id}.txt"

    def agent_lock(self, agent_id: str) -> str:
        """Held while the agent's guardian, worker or minder is alive."""
        return f"{self.agent_pool}/{agent_id}.lock"

    def agent_tree(self, agent_id: str) -> str:
        """Held while any process of the session is alive, also one that a job has started."""
        return f"{self.agent_pool}/{agent_id}.tree"

    def agent_info(self, agent_id: str) -> str:
        """What the session says about itself."""
        return f"{self.agent_pool}/{agent_id}.json"

    def card_lock(self, gpu: str, part: str) -> str:
        """Held by workers that share a GPU: `part` is "gate", "use" or "members"."""
        return f"{self.agent_pool}/{gpu.replace('/', '-')}.{part}"

    def in_hand(self, agent_id: str) -> str:
        """The line that names the worker's running job."""
        return f"{self.root}/in_hand/{agent_id}"

    def run_folder(self, run: str) -> str:
        """The folder of a run: its info and its jobs."""
        return f"{self.job_pool}/{run}"

    def run_info(self, run: str) -> str:
        """What all jobs of a run have in common."""
        return f"{self.job_pool}/{run}/run.json"

    def wanted(self, run: str) -> str:
        """Held, shared, by everyone who appends to a run, or waits for an embedded one."""
        return f"{self.job_pool}/{run}/wanted.lock"

    def closed(self, run: str) -> str:
        """Says that a run is being removed, and takes no more jobs."""
        return f"{self.job_pool}/{run}/{CLOSED}"

    def let_go(self, run: str) -> str:
        """Says that the program of a run will not read its results again."""
        return f"{self.job_pool}/{run}/{LET_GO}"

    def reader(self, run: str, token: str) -> str:
        """Says that another program may read the results of a run."""
        return f"{self.job_pool}/{run}/{READER}{token}"

    def taken(self, run: str) -> str:
        """Names the jobs whose results were handed out and are not kept."""
        return f"{self.job_pool}/{run}/taken.json"

    def taken_lock(self, run: str) -> str:
        """Held by the process that removes results which it has handed out."""
        return f"{self.job_pool}/{run}/taken.lock"

    def trashed(self, run: str) -> str:
        """Where the folder of a run is moved to when it is removed."""
        return f"{self.trash}/{run}"

    def append_log(self, run: str) -> str:
        """The append log of a run."""
        return f"{self.job_pool}/{run}/{APPEND_LOG}"

    def parcel(self, run: str, name: str) -> str:
        """A file with the arguments of some jobs; the append log holds its name."""
        return f"{self.job_pool}/{run}/{name}{SUFFIX}"

    def edited(self, run: str, job: int) -> str:
        """What a job is since somebody edited it, instead of what its record says."""
        return f"{self.job_pool}/{run}/{job}{EDITED}"

    def environment(self, run: str, name: str) -> str:
        """The environment of some commands of a run, named by its content."""
        return f"{self.job_pool}/{run}/{name}.env"

    def code_snapshot(self, run: str, name: str) -> str:
        """The files that some commands of a run work with, named by their content."""
        return f"{self.job_pool}/{run}/{name}.tar"

    def result_folder(self, run: str) -> str:
        """The folder of a run's results."""
        return f"{self.result_pool}/{run}"

    def result(self, run: str, first: int) -> str:
        """The outcomes of jobs `first` and following."""
        return f"{self.result_pool}/{run}/{first:09d}{SUFFIX}"

    def kept_result(self, run: str, job: int) -> str:
        """A result that no parcel can hold."""
        return f"{self.result_pool}/{run}/{job:09d}.pickle"

    def attempts(self, run: str) -> str:
        """The folder of attempts that ended with no result."""
        return f"{self.root}/attempts/{run}"

    def attempt(self, run: str, job: int, number: int) -> str:
        """Why one attempt ended with no result."""
        return f"{self.root}/attempts/{run}/{job:09d}.{number}.json"

    def stop_order(self, run: str, job: int) -> str:
        """The acting Master's order to end a running job."""
        return f"{self.control}/stop.{run}.{job}"

    def result_cache(self, run: str) -> str:
        """A cache of a run's results, so that listings need not read them again."""
        return f"{self.root}/log/results.{run}.json"

    def job_folders(self, run: str) -> str:
        """The folders of a run's queued commands, and what its kernels have printed."""
        return f"{self.root}/runs/{run}"

    def kernel_output(self, run: str, agent_id: str) -> str:
        """What the kernels of a run have printed on one agent."""
        return f"{self.root}/runs/{run}/output.{agent_id}"

    def job_folder(self, run: str, job: int) -> str:
        """The folder of a queued command: its output and how it ended."""
        return f"{self.root}/runs/{run}/{job}"

    def program_lock(self, token: str) -> str:
        """Held by a program while it may read results of its runs."""
        return f"{self.programs}/{token}.lock"

    def pilot_record(self, pilot: str) -> str:
        """What is known of a pilot."""
        return f"{self.pilots}/{pilot}.json"

    def pilot_log(self, pilot: str) -> str:
        """What a pilot's engine, and the pilot itself, have said."""
        return f"{self.pilots}/{pilot}.log"

    def data(self, name: str) -> str:
        """Shared data, named by its content."""
        return f"{self.root}/data/{name}{SUFFIX}"

    def put_aside(self, path: str) -> str:
        """Where a bad file of the base is moved to; its reason lies beside it."""
        return f"{self.rejected}/{path.removeprefix(self.root + '/').replace('/', '+')}"

    def temporary(self, outbox: str | None = None) -> str:
        """A new name in `tmp/`, or in a worker's outbox there."""
        # The pid keeps a fork from the names of its parent; the token from those of an earlier pid.
        return f"{outbox or self.tmp}/{os.getpid()}-{_TOKEN}-{next(_serials):x}"

    def spare(self, run: str) -> str:
        """A new name for a file that the next large result of a run may be written over."""
        return f"{self.tmp}/{self.spare_prefix(run)}{next(_serials):x}.{os.getpid()}"

    @staticmethod
    def spare_prefix(run: str) -> str:
        """How the names of those files begin."""
        return f"spare.{run}."

    @staticmethod
    def run_of_spare(name: str) -> str:
        """The run that such a file is for; "": it is another one."""
        kind, _, rest = name.partition(".")
        return rest.partition(".")[0] if kind == "spare" else ""

    def recycled(self, program: str) -> str:
        """A new name for a file that a program will write its next large argument over."""
        return f"{self.tmp}/recycled.{program}.{next(_serials):x}.{os.getpid()}"

    @staticmethod
    def program_of_recycled(name: str) -> str:
        """The program that such a file is for; "": it is another one."""
        kind, _, rest = name.partition(".")
        return rest.partition(".")[0] if kind == "recycled" else ""

    def new_outbox(self, agent_id: str) -> str:
        """A folder in `tmp/` for the files of one worker; once closed, it can publish none."""
        return f"{self.tmp}/{self.outbox_prefix(agent_id)}{new_token(12)}"

    def outbox_prefix(self, agent_id: str) -> str:
        """How the names of an agent's outboxes begin; no id has a dot in it."""
        return f"{OUTBOX}{agent_id}."


def number_of(name: str) -> int | None:
    """Return the first job number that a parcel's file name states, None for any other file."""
    stem = name.removesuffix(SUFFIX)
    if stem is name or len(stem) != 9 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def attempt_of(name: str) -> tuple[int, int] | None:
    """Return the job and the attempt that a note's file name states, None for any other file."""
    job, _, rest = name.partition(".")
    number = rest.removesuffix(".json")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (job, number)):
        return None
    pair = int(job), int(number)
    return pair if name == f"{pair[0]:09d}.{pair[1]}.json" else None


def new_run_id() -> str:
    """Make a run's id: sortable by time, unique, and safe as a file name."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{new_token(6)}"


def new_program() -> str:
    """Make a name for a program that submits runs."""
    return new_token(12)


def default_base() -> str:
    """The base that is used where none is named."""
    return os.environ.get("POSTROOM_BASE") or own_queue()


def own_queue() -> str:
    """The base of this user's own queue, wherever the call comes from."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(state):  # as the XDG specification demands
        state = os.path.expanduser("~/.local/state")
    return f"{state}/postroom/queue"


def up_command(root: str) -> str:
    """The command that starts all that a queue needs."""
    own = os.path.abspath(root) == os.path.abspath(own_queue())
    return "postroom up" if own else f"postroom up {shlex.quote(root)}"


def create_base(root: str | os.PathLike[str]) -> Base:
    """Make a base, or complete a half-made one; open it if it exists."""
    base = Base(root)
    try:
        os.makedirs(os.path.dirname(base.root), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(base.root, 0o700)
        _check_folder(base.root)
        _check_parents(base.root)
        if not os.path.lexists(base.format):
            _refuse_strangers(base)
            _make_folders(base)
            _write_format(base)
        opened = open_base(base.root)
        _make_folders(base)  # an older Postroom may have made the base without some of them
    except BaseFolderError:
        raise
    except OSError as error:
        raise BaseFolderError(
            f"cannot make a base at {base.root}: {explain(error, base.root)}; "
            "choose another folder, if need be"
        ) from None
    return opened


def open_base(root: str | os.PathLike[str], *, write: bool = True) -> Base:
    """Open an existing base after checking its owner, its modes and its version."""
    base = Base(root)
    try:
        _check_folder(base.root)
        _check_parents(base.root)
        with open_regular(base.format) as file:
            version = file.read(64).decode("ascii", "replace")
    except FileNotFoundError:
        raise BaseFolderError(f"there is no base at {base.root}; {_how_to_make(base)}") from None
    except OSError as error:
        raise BaseFolderError(
            f"cannot read the base at {base.root}: {error.strerror}; choose a folder of your own"
        ) from None
    if version != FORMAT:
        raise BaseFolderError(
            f"{base.root} has the format {version.strip()!r}, and this Postroom reads only "
            f"{FORMAT.strip()!r}: use the Postroom that made it, or choose another folder"
        )
    _check_host(base)
    if write:
        _check_writable(base)
        _name_host(base)
    return base


def _check_host(base: Base) -> None:
    """Refuse a base of another host, which both would spoil; see docs/clusters.md.

    The same boot is the same host, also in containers. On a disk of its own, a host that was
    started again, or has a new name, is still the only one.
    """
    host, boot = _named_host(base)
    if boot in ("", boot_id()) or host == host_name():
        return
    kind = network_filesystem(base.root)
    if kind:
        raise BaseFolderError(
            f"{base.root} belongs to the host {host}, and is on a network filesystem ({kind}): two "
            f"hosts on one base lose jobs. Use it there: ssh {host} postroom ...; to have agents "
            "here, see `postroom pilots add`. If that host is gone for good, remove "
            f"{shlex.quote(base.host)}"
        )


def _name_host(base: Base) -> None:
    """Write which host a base belongs to, if that is not what it says."""
    mine = host_name(), boot_id()
    if _named_host(base) == mine:
        return
    temporary = base.temporary()
    with contextlib.suppress(OSError):  # a full disk: the next one does it
        with open(temporary, "x", encoding="utf-8", opener=private) as file:
            file.write("\n".join((*mine, "")))
        os.replace(temporary, base.host)


def _named_host(base: Base) -> tuple[str, str]:
    """The host that a base names, and its boot; empty where it names none."""
    with contextlib.suppress(OSError, ValueError), open_regular(base.host) as file:
        host, boot = file.read(4096).decode(errors="replace").split()
        return host, boot
    return "", ""


def _how_to_make(base: Base) -> str:
    if base.root != os.path.abspath(own_queue()):
        return f"make one by starting an agent: postroom agents start 1 {shlex.quote(base.root)}"
    here = "; or name the one that is here: -b ./base" if os.path.exists("base/FORMAT") else ""
    return f"it would be your own queue: start it with `postroom up`{here}"


def _check_folder(root: str) -> None:
    status = os.lstat(root)
    if stat.S_ISLNK(status.st_mode):
        status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise BaseFolderError(f"{root} is not a folder; choose a folder, or a new name")
    if status.st_uid != os.geteuid():
        raise BaseFolderError(
            f"{root} belongs to {_user(status.st_uid)}; a base must belong to its own user: "
            "choose a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BaseFolderError(
            f"{root} may be written by others, who could make your agents run anything: "
            f"chmod go-w '{root}'"
        )


def _check_parents(root: str) -> None:
    """Refuse a path that somebody else could swap for another folder."""
    path = os.path.realpath(root)
    while path != "/":
        path = os.path.dirname(path)
        status = os.stat(path)
        safe_owner = status.st_uid in (0, os.geteuid())
        loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not safe_owner or (loose and not status.st_mode & stat.S_ISVTX):
            raise BaseFolderError(
                f"{path}, above the base, may be changed by {_user(status.st_uid)} or others, who "
                "could put another folder in its place: choose a base below a folder of your own"
            )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _refuse_strangers(base: Base) -> None:
    strangers = sorted(set(os.listdir(base.root)) - set(FOLDERS) - set(FILES))
    if strangers:
        raise BaseFolderError(
            f"{base.root} is not a base and not empty (it holds {strangers[0]!r}); "
            "choose an empty folder, or a new name"
        )


def _make_folders(base: Base) -> None:
    for folder in FOLDERS:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{base.root}/{folder}", 0o700)
            if folder == "tmp":
                spread(base.tmp)  # workers make their results in folders of their own in it


def _write_format(base: Base) -> None:
    # Last of all: a base with a FORMAT is complete.
    temporary = base.temporary()
    with open(temporary, "x", encoding="ascii", opener=private) as file:
        file.write(FORMAT)
    with contextlib.suppress(FileExistsError):
        os.link(temporary, base.format)
    os.unlink(temporary)


def _check_writable(base: Base) -> None:
    probe = base.temporary()
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)
    except OSError as error:
        raise BaseFolderError(
            f"cannot write to the base at {base.root}: {explain(error, base.root)}; "
            "choose another folder, if need be"
        ) from None
