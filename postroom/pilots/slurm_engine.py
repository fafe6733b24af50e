"""Slurm as an engine: `srun` carries the wire, `squeue` shows all pilots, `scancel` ends one.

Only what every Slurm since 20.11 prints is parsed; `sacct` is not needed. A job that has ended
stays in `squeue` for some minutes (MinJobAge), which is when a stand-in asks. Each command has a
time limit: a controller that does not answer is an EngineError, in its own words.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time

from ..store.pilot_records import PilotGroup
from ..store.runs import user_name
from .engine import EngineError, Fate, Sighting, far_script

# How long a command of Slurm may take.
PATIENCE_S = 15.0
_FIELDS = "%i|%T|%r|%N|%e|%j"
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
# The job's own end. All other ends are the doing of the engine, or of a person; so is FAILED, if
# the reason is one of Slurm's: a launch that failed, a system failure. COMPLETED: the far end left
# in order, since its stand-in was gone.
_OWN_ENDS = {"FAILED", "OUT_OF_MEMORY"}
_OWN_REASON = re.compile(r"(None|NonZeroExitCode|RaisedSignal.*|OutOfMemory)?")
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"}
_STATE = re.compile(r"\bJobState=(\w+)")
_ABOUT_CARDS = re.compile(r"(-G.*|--gpus.*|--gres(=.*)?|--tres-per-.*)")


class SlurmEngine:
    """The Slurm that this host's commands talk to."""

    carries = True

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        """One task on one node; the group's own options come last, and win."""
        words = ["srun", f"--job-name={job_name}", "--nodes=1", "--ntasks=1", "--mpi=none"]
        if group.gpus and not any(map(_ABOUT_CARDS.fullmatch, group.options)):
            words.append(f"--gres=gpu:{group.gpus}")
        if group.time_s is not None:
            minutes = max(1, -int(-group.time_s // 60))
            words.append(f"--time={minutes}")
        return [*words, *group.options, "bash", "-c", far_script(group)]

    def look(self, job_names: set[str]) -> dict[str, Sighting]:
        """Ask about all of them at once."""
        if not job_names:
            return {}
        names = ",".join(sorted(job_names))
        said = _ask(
            "squeue", "-h", "-t", "all", "-u", user_name(), f"--name={names}", "-o", _FIELDS
        )
        found: dict[str, Sighting] = {}
        for line in said.splitlines():
            parts = line.split("|")
            if len(parts) == 6 and parts[5] in job_names:
                engine_id, state, reason, node, end, name = (part.strip() for part in parts)
                if state == "COMPLETING":
                    state = self._final_state(engine_id)
                found[name] = Sighting(
                    engine_id, fate_of(state, reason), _words(state, reason), node, _time(end)
                )
        return found

    def cancel(self, job_name: str, engine_id: str) -> None:
        """Cancel by the name, which is unique, also before the id is known."""
        _ask("scancel", "-u", user_name(), f"--name={job_name}")

    def _final_state(self, engine_id: str) -> str:
        """What a job that is completing will be called; `squeue` does not say that."""
        with contextlib.suppress(EngineError):
            said = _STATE.search(_ask("scontrol", "-o", "show", "job", engine_id))
            if said is not None:
                return said[1]
        return "COMPLETING"


def fate_of(state: str, reason: str = "") -> Fate:
    """What a state of Slurm, and its reason, mean for a pilot."""
    if state in _PENDING:
        return Fate.PENDING
    if state in _RUNNING:
        return Fate.RUNNING
    own = state in _OWN_ENDS and _OWN_REASON.fullmatch(reason)
    return Fate.ENDED if own else Fate.TAKEN


def _words(state: str, reason: str) -> str:
    """The engine's own words for why a pilot waits, or has ended."""
    if state in _RUNNING:
        return ""
    return state if reason in ("", "None") else f"{state} ({reason})"


def _time(text: str) -> float:
    with contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    return 0.0


def _ask(*words: str) -> str:
    environment = {**os.environ, "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except FileNotFoundError:
        raise EngineError(f"{words[0]} is not on this host: Slurm's commands are needed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{words[0]}: {error}") from None
    if done.returncode:
        raise EngineError(f"{words[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout
