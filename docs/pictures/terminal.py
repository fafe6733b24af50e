"""Record the terminal for the README and the pages: a real run in a pty, drawn as SVG.

python docs/pictures/terminal.py      writes docs/terminal.svg (it moves) and docs/commands.svg

The commands are typed into bash, in a folder of their own, on two simulated GPUs. What a program
of the recording prints is what is drawn, at its own speed; only long pauses are cut short.
"""

from __future__ import annotations

import html
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 88, 26
TYPING_S = 0.035  # between two keys
LONGEST_PAUSE_S = 1.6
LAST_FRAME_S = 6.0
FRAME_S = 0.08  # what happens within this time is one picture

# A training that takes a moment and prints a figure.
TRAIN = """\
import sys, time
rate = float(sys.argv[2])
time.sleep(1.6)
print("loss:", round((rate - 0.3) ** 2 + 0.05, 4))
"""
JOBS = "".join(f"python train.py --lr {rate}\n" for rate in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
SCENES = [
    "cat jobs.txt",
    "postroom run jobs.txt --gpus 0,0,1 & sleep 3; kill -9 $!; echo; wait",
    "# the same command again runs only what is missing",
    "postroom run jobs.txt --gpus 0,0,1",
    "postroom table postroom_run --pattern 'loss: (.*)'",
]
# The still picture: a moment in which every slot of the second run is at work.
STILL = re.compile(r"3 running.* done before")

CELL_W, CELL_H, MARGIN = 8.4, 18, 14
COLOURS = ["#1b1f27", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"]
PLAIN, DIM = "#d7dae0", "#8b93a1"

Cell = tuple[str, str]  # a character, and the class of its look
Row = tuple[Cell, ...]
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]|\x1b[=>78]")


@dataclass
class Screen:
    """As much of a terminal as bash and rich need."""

    rows: list[list[Cell]] = field(default_factory=lambda: [[] for _ in range(ROWS)])
    row: int = 0
    column: int = 0
    look: str = ""

    def feed(self, text: str) -> None:
        """Show what a program wrote."""
        position = 0
        while position < len(text):
            if match := SEQUENCE.match(text, position):
                if match[2]:
                    self._control(match[1], match[2])
                position = match.end()
                continue
            self._show(text[position])
            position += 1

    def _show(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
            if self.row == ROWS:
                self.rows = [*self.rows[1:], []]
                self.row -= 1
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char >= " ":
            if self.column == COLUMNS:
                self._show("\r")
                self._show("\n")
            line = self.rows[self.row]
            line += [(" ", "")] * (self.column + 1 - len(line))
            line[self.column] = (char, self.look)
            self.column += 1

    def _control(self, numbers: str, letter: str) -> None:
        first = int(numbers) if numbers.isdigit() else None
        if letter == "A":
            self.row = max(0, self.row - (first or 1))
        elif letter == "C":
            self.column = min(COLUMNS - 1, self.column + (first or 1))
        elif letter == "D":
            self.column = max(0, self.column - (first or 1))
        elif letter == "H":
            self.row = self.column = 0
        elif letter == "K":
            del self.rows[self.row][0 if first == 2 else self.column :]
        elif letter == "J":
            below = self.row + 1 if not first else 0
            del self.rows[self.row][self.column if not first else 0 :]
            self.rows[below:] = [[] for _ in range(ROWS - below)]
        elif letter == "m":
            for number in map(int, numbers.split(";") if numbers else ["0"]):
                if number in (0, 22, 39):
                    self.look = ""
                elif number in (1, 2):
                    self.look = "b" if number == 1 else "d"
                elif 30 <= number <= 37:
                    self.look = f"c{number - 30}"

    def picture(self) -> tuple[Row, ...]:
        """What is to be seen now."""
        return tuple(tuple(row) for row in self.rows)

    def line(self) -> str:
        """The text of the cursor's line."""
        return "".join(char for char, _ in self.rows[self.row])


Frame = tuple[float, tuple[Row, ...]]


class Recorder:
    """Types into a shell of its own, and keeps what its terminal shows."""

    def __init__(self, folder: Path) -> None:
        scripts = os.path.dirname(sys.executable)
        self._screen = Screen()
        self.frames: list[Frame] = []
        self._clock = 0.0
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
            env={
                "PATH": f"{scripts}:{os.environ['PATH']}",
                "HOME": os.environ.get("HOME", "/"),
                "TERM": "xterm",
                "LANG": "C.UTF-8",
                "PS1": r"\n\[\e[32m\]$\[\e[0m\] ",
                "POSTROOM_FAKE_GPUS": "2x24G",
                "POSTROOM_LEDGER": f"{folder}.ledger",
            },
        )
        os.close(slave)

    def _read(self, seconds: float) -> None:
        """Take in for so long what the terminal shows."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            began = time.monotonic()
            if select.select([self._master], [], [], min(left, FRAME_S))[0]:
                self._screen.feed(os.read(self._master, 65536).decode("utf-8", "replace"))
            self._clock += time.monotonic() - began
            self._keep()

    def _keep(self) -> None:
        picture = self._screen.picture()
        if self.frames and self.frames[-1][1] == picture:
            return
        if self.frames and self._clock - self.frames[-1][0] < FRAME_S:
            self.frames[-1] = (self.frames[-1][0], picture)
        else:
            self.frames.append((self._clock, picture))

    def wait(self) -> None:
        """Until the shell asks for the next command."""
        give_up_at = time.monotonic() + 60
        while self._screen.line() != "$ ":
            if time.monotonic() > give_up_at:
                raise SystemExit(f"the terminal shows no prompt: {self._screen.line()!r}")
            self._read(0.1)

    def type(self, line: str) -> None:
        """Type a command, and wait for its end."""
        self._read(0.5)
        for char in line:
            os.write(self._master, char.encode())
            self._read(TYPING_S)
        self._read(0.4)
        os.write(self._master, b"\n")
        self._read(0.3)
        self.wait()
        self._read(1.0)

    def close(self) -> None:
        """End the shell."""
        self._shell.send_signal(signal.SIGHUP)
        self._shell.wait(10)


def spans(row: Row) -> str:
    """One line of the terminal as SVG, a piece for each look."""
    pieces = []
    start = 0
    while start < len(row):
        end = start
        while end < len(row) and row[end][1] == row[start][1]:
            end += 1
        raw = "".join(char for char, _ in row[start:end])
        text = raw.strip()
        if text:
            # The length holds the columns, whatever font the reader has.
            column = start + len(raw) - len(raw.lstrip())
            look = f' class="{row[start][1]}"' if row[start][1] else ""
            x, width = column * CELL_W, len(text) * CELL_W
            shown = html.escape(text, quote=False).replace(" ", "\u00a0")
            pieces.append(f'<text x="{x:.4g}" textLength="{width:.4g}"{look}>{shown}</text>')
        start = end
    return "".join(pieces)


def svg(frames: list[Frame], label: str, rows: int) -> str:
    """Draw one frame, or several one after another, for ever."""
    width, height = COLUMNS * CELL_W + 2 * MARGIN, rows * CELL_H + 2 * MARGIN
    style = (
        f"text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
        f"monospace;fill:{PLAIN}}}.b{{font-weight:bold}}.d{{fill:{DIM}}}"
    )
    style += "".join(f".c{n}{{fill:{colour}}}" for n, colour in enumerate(COLOURS))
    if len(frames) > 1:
        total = frames[-1][0] + LAST_FRAME_S
        steps = "".join(
            f"{100 * at / total:.5g}%{{transform:translateX({-n * width:.6g}px)}}"
            for n, (at, _) in enumerate(frames)
        )
        last = -(len(frames) - 1) * width
        style += (
            f"@keyframes p{{{steps}}}#film{{animation:p {total:.1f}s steps(1,end) infinite}}"
            f"@media(prefers-reduced-motion){{#film{{animation:none;"
            f"transform:translateX({last:.6g}px)}}}}"
        )
    lines: dict[Row, str] = {}
    film = []
    for number, (_, picture) in enumerate(frames):
        shown = []
        for row, cells in enumerate(picture[:rows]):
            if any(char != " " for char, _ in cells):
                name = lines.setdefault(cells, f"l{len(lines)}")
                shown.append(f'<use href="#{name}" y="{(row + 1) * CELL_H - 4}"/>')
        film.append(f'<g transform="translate({number * width:.6g})">{"".join(shown)}</g>')
    defined = "".join(f'<g id="{name}">{spans(cells)}</g>' for cells, name in lines.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{html.escape(label)}">\n'
        f"<style>{style}</style>\n<defs>{defined}</defs>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#1b1f27"/>\n'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN:g}" '
        f'height="{height - 2 * MARGIN:g}"><g id="film">{"".join(film)}</g></svg>\n</svg>\n'
    )


def shorten(frames: list[Frame]) -> list[Frame]:
    """Leave out what is over before it can be seen, and cut long pauses."""
    kept: list[Frame] = []
    clock = 0.0
    for number, (at, picture) in enumerate(frames):
        following = frames[number + 1][0] if number + 1 < len(frames) else at + LAST_FRAME_S
        if following - at < 0.02:
            continue
        kept.append((clock, picture))
        clock += min(following - at, LONGEST_PAUSE_S)
    return kept


def still(frames: list[Frame]) -> Frame:
    """The frame in which every slot is at work, without what is above it."""
    for at, picture in frames:
        text = ["".join(char for char, _ in row) for row in picture]
        for end, line in enumerate(text):
            if STILL.search(line):
                start = max(n for n in range(end) if text[n].startswith("$ "))
                return at, picture[start : end + 1]
    raise SystemExit("the recording has no frame in which every slot of the second run is at work")


def main() -> None:
    """Record, and write both pictures."""
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    (folder / "train.py").write_text(TRAIN)
    (folder / "jobs.txt").write_text(JOBS)
    recorder = Recorder(folder)
    try:
        recorder.wait()
        for scene in SCENES:
            recorder.type(scene)
    finally:
        recorder.close()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(f"{folder}.ledger", ignore_errors=True)
    frames = shorten(recorder.frames)
    label = "A file of six commands runs on two GPUs, is killed, and is finished by a second call"
    (DOCS / "terminal.svg").write_text(svg(frames, label, ROWS))
    frame = still(frames)
    label = "The table of a batch: each slot with its GPU, job, time and command"
    (DOCS / "commands.svg").write_text(svg([(0.0, frame[1])], label, len(frame[1])))
    for name in ("terminal.svg", "commands.svg"):
        print(f"docs/{name}: {(DOCS / name).stat().st_size:,} bytes, {len(frames)} frames")


if __name__ == "__main__":
    main()
