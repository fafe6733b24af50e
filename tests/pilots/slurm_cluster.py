"""A real Slurm on this machine: munge, a controller and two nodes with invented cards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from postroom.testing import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "squeue", "scancel", "scontrol")
NODES = ("n1", "n2")
# The files of cards must be devices: these are everywhere.
DEVICES = "/dev/null,/dev/zero,/dev/full,/dev/random"


def missing() -> str:
    """Why no Slurm can be started here; "" if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    found = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(found)}" if found else ""


class SlurmCluster:
    """The processes of one Slurm; everything is in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._path = f"{os.environ['PATH']}:/usr/sbin"
        host = socket.gethostname()
        control, *ports = _free_ports(1 + len(NODES))
        user = "root" if os.geteuid() == 0 else os.environ.get("USER") or _user()
        nodes, cards = [], []
        for name, port in zip(NODES, ports, strict=True):
            nodes.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
                "RealMemory=4000 Gres=gpu:4"
            )
            cards.append(f"NodeName={name} Name=gpu File={DEVICES}")
        for sub in ("state", "spool-n1", "spool-n2"):
            (folder / sub).mkdir()
        (folder / "slurm.conf").write_text(
            f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=3
MessageTimeout=5
ReturnToService=2
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=200000
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{chr(10).join(nodes)}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=2
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
        )
        (folder / "gres.conf").write_text("\n".join(cards) + "\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.environment = {
            **os.environ,
            "PATH": self._path,
            "SLURM_CONF": f"{folder}/slurm.conf",
        }

    def start(self) -> None:
        """Start everything, and wait until both nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        names |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        words = [f"--{option}={self.folder}/{name}" for option, name in names.items()]
        self._run("munged", "munged", "-F", "--force", *words)
        wait_until((self.folder / "munge.socket").exists, what="munge")
        self._run("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"), what="the nodes")

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._run(node, "slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """End a node as a power failure does: its daemon, and what carries its steps."""
        daemon = self.processes[node]
        daemon.kill()
        daemon.wait()
        self._end_steps(node)

    def _end_steps(self, node: str) -> None:
        """End what carries the steps of a node: its daemon ends without them."""
        log = str(self.folder / f"slurmd-{node}.log")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                step = Path(f"/proc/{pid}/comm").read_text() == "slurmstepd\n"
                if step and log in map(os.readlink, Path(f"/proc/{pid}/fd").iterdir()):
                    os.kill(int(pid), signal.SIGKILL)

    def states(self) -> dict[str, str]:
        """The state of each node."""
        said = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").split("\n")
        return dict(line.split() for line in said if line)

    def ask(self, *words: str) -> str:
        """What a command of Slurm prints; "" if it fails."""
        with contextlib.suppress(subprocess.SubprocessError):
            return subprocess.run(
                words, env=self.environment, capture_output=True, text=True, timeout=10, check=True
            ).stdout
        return ""

    def jobs(self) -> list[str]:
        """The ids of all jobs that have not ended."""
        return self.ask("squeue", "-h", "-o", "%i").split()

    def _run(self, name: str, *words: str) -> None:
        log = open(self.folder / f"{name}.out", "ab")  # noqa: SIM115
        with log:
            self.processes[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self) -> None:
        """End all jobs, then all processes."""
        self.ask("scancel", *self.jobs())
        deadline = time.monotonic() + 10
        while self.jobs() and time.monotonic() < deadline:
            time.sleep(0.1)
        for node in NODES:
            self._end_steps(node)
        for name in (*NODES, "slurmctld", "munged"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Have a Slurm while the block runs."""
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
