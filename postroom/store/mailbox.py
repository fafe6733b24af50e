"""The protocol of the mailbox, stated once.

    Master                          agent_pool/0.POOL                       session 0
      |  empty: the Master's turn         |                                     |
      |------- letter: run, range ------->|  full: the session's turn           |
      |                                   |------------ reads it -------------->|
      |        result_pool/<run>/<first>.npz  <--- publishes, first commit wins |
      |                                   |<--------- empties it ---------------|
      |  reads the results from the range's first job on; jobs without one are requeued

1. The Master fills an **empty** mailbox; the session empties a **full** one, or shortens the letter
   by jobs that it will not begin, so that others get them while a long job runs. No mailbox means
   no agent: a session removes its mailbox before it stops taking letters, and the jobs of a letter
   in a removed mailbox were never begun, or were given back.
2. A letter names a **range** of jobs, and has its length and checksum: half a letter is no letter.
   The jobs themselves are in write-once parcels, or in records of an append log, which only grows
   (see `append_log`): a record is valid only at the offset it states, and a torn one is skipped.
3. Results are **chained**: those of a range are published from its first job on, each parcel
   beginning where the last one ended. Names are never replaced. A process that finds a name taken
   drops its results for the jobs that parcel covers and goes on behind them, so no job is covered
   twice.
4. A range is **split** only when its holder has stopped: it emptied or removed its mailbox, or its
   lock is free. Guardian, worker and the minder of a command share the lock, so a free lock proves
   that all are dead, and a process that takes it may clear up (`take_back_letter`), once the lock
   of what jobs have started is free, too: what cannot be seen, in a container, is not dead. A
   worker writes its files in an **outbox** of its own, which is closed first: even if the lock was
   wrong, nothing from it can be linked any more, and its range can be split.
5. A session that ends a job with no result writes a note in `attempts/` **before** it gives the
   letter back. The note, not the death itself, counts against the job.
6. There is one acting Master, by lock. Its **epoch** grows with each new holder and is on disk
   before its first letter; a session ignores letters of an epoch older than one it has seen. Only
   the acting Master puts bad files aside, so nobody can mistake a good file for the bad one that it
   replaced.
7. A letter counts as sent from its first byte on, even if the write fails. Its results tell what
   came of it; in a durable run, after their names were synced.

Crash points: a submitter killed within its write leaves no record; after it, a job that is served.
A Master killed while it writes leaves half a letter, which the session ignores and the next Master
overwrites. Killed before the write, the range still waits; after it, the next Master takes the
letter over. A worker killed before it publishes loses only the work; after it, the results count
and the rest of the range is requeued.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from typing import NamedTuple

from ..errors import BadFileError
from .base import Base
from .files import LETTER_LIMIT, Box, Files

_STAMP = b"POSTROOM "
_PREFIX = len("POSTROOM 0000 00000000 ")
_HAND_LIMIT = 256
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_NUMBERS = ("parcel", "first", "stop", "attempt", "failed", "offset")
_BODY = re.compile(
    rb'\{"epoch":([0-9]{1,18}),"serial":([0-9]{1,18}),"run":"([A-Za-z0-9_-]{1,100})",'
    + b",".join(b'"%b":([0-9]{1,18})' % name.encode() for name in _NUMBERS)
    + rb"\}"
)


class Letter(NamedTuple):
    """The range of jobs that a session is to run now."""

    epoch: int
    serial: int
    run: str
    parcel: int  # the first number of the parcel that holds the range
    first: int
    stop: int  # one behind the last job
    attempt: int = 1  # of every job in the range
    failed: int = 0  # how many of the earlier attempts were the job's own failures
    offset: int = 0  # in a run that has an append log: the byte where the parcel's record begins

    @property
    def letter_id(self) -> str:
        """Names this letter among all that were ever sent on this base."""
        return f"{self.epoch}.{self.serial}"

    def encode(self) -> bytes:
        """One line, with its length and checksum in front."""
        # By hand, since every round trip needs one (see `records` for the figure).
        epoch, serial, run, parcel, first, stop, attempt, failed, offset = self
        body = (
            f'{{"epoch":{epoch},"serial":{serial},"run":"{run}","parcel":{parcel},"first":{first},'
            f'"stop":{stop},"attempt":{attempt},"failed":{failed},"offset":{offset}}}'
        ).encode()
        return b"%s%04d %08x %s" % (_STAMP, len(body), zlib.crc32(body), body)

    def shortened(self, stop: int) -> tuple[Letter, bytes]:
        """The same letter for fewer jobs, and the line to append to the mailbox."""
        return self._replace(stop=stop), self._cut(stop)

    def _cut(self, stop: int) -> bytes:
        body = b"%s %09d" % (self.letter_id.encode(), stop)
        return b"\n%s %08x" % (body, zlib.crc32(body))

    @classmethod
    def decode(cls, data: bytes) -> Letter | None:
        """Read a letter; None for half a letter, or for anything else."""
        data, _, cut = data.partition(b"\n")
        body = data[_PREFIX:]
        head = b"%s%04d %08x " % (_STAMP, len(body), zlib.crc32(body))
        said = _BODY.fullmatch(body)
        if said is None or data[:_PREFIX] != head:
            return None
        epoch, serial, run, *numbers = said.groups()
        letter = cls(int(epoch), int(serial), run.decode(), *map(int, numbers))
        if not letter._sensible():
            return None
        return letter._as_cut(cut) if cut else letter

    def _as_cut(self, cut: bytes) -> Letter:
        """This letter as the session has shortened it; half a line is ignored."""
        with contextlib.suppress(ValueError, IndexError):
            stop = int(cut.split()[1])
            if self.first < stop < self.stop and cut == self._cut(stop)[1:]:
                return self._replace(stop=stop)
        return self

    def _sensible(self) -> bool:
        return self.parcel <= self.first < self.stop and self.attempt >= 1


# The last eight of the ten bytes that a job's number has in the line.
_JOB_AT = 8 + 1 + 24 + 1 + 2
MOST_PATCHED = 10**8


class InHand(NamedTuple):
    """The line in `in_hand/`: what the worker is doing now."""

    state: str  # "idle", "running", "blocked"
    letter_id: str = "-"
    job: int = -1
    since: float = 0.0  # wall clock
    done: int = 0  # jobs since the worker started

    def encode(self) -> bytes:
        """A line of fixed length, so that it is overwritten in place."""
        return self.template(self.state, self.letter_id) % (self.job, self.since, self.done)

    @staticmethod
    def template(state: str, letter_id: str) -> bytes:
        """The line of a state and a letter, for the three numbers behind them."""
        return b"%-8b %-24b %%10d %%17.6f %%10d\n" % (state.encode(), letter_id.encode())

    @staticmethod
    def only_job(job: int) -> tuple[int, bytes]:
        """What `Box.patch` takes to replace the number of the job; it has up to eight digits."""
        return _JOB_AT, b"%8d" % job

    @classmethod
    def decode(cls, data: bytes) -> InHand | None:
        """Read the line; None when it is not one."""
        try:
            state, letter_id, job, since, done = data.decode("ascii").split()
            return cls(state, letter_id, int(job), float(since), int(done))
        except ValueError:
            return None


def is_plain_name(name: str) -> bool:
    """Whether a name from a file may be used as one path component."""
    return _PLAIN_NAME.fullmatch(name) is not None


def read_letter(files: Files, base: Base, agent_id: str) -> Letter | None:
    """The letter in an agent's mailbox now."""
    try:
        return Letter.decode(files.read(base.mailbox(agent_id), LETTER_LIMIT))
    except (FileNotFoundError, BadFileError):
        return None


def read_in_hand(files: Files, base: Base, agent_id: str) -> InHand | None:
    """What an agent's worker says it is doing."""
    try:
        return InHand.decode(files.read(base.in_hand(agent_id), _HAND_LIMIT))
    except (FileNotFoundError, BadFileError):
        return None


def put_up(files: Files, base: Base, agent_id: str) -> Box:
    """Make an empty mailbox: from now on the agent can get letters."""
    return files.create_box(base.mailbox(agent_id))
