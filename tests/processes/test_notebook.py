"""Notebooks: the example is executed in a real kernel; another is interrupted and restarted.

The client runs in a process of its own, since it leaves threads and sockets behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent

if "CI" not in os.environ:
    pytest.importorskip("nbclient", reason="pip install 'postroom[notebook]'")


def drive(folder: Path, client: str) -> Any:
    """Run a client of a kernel; what it prints last is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", client],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MANAGER = """
import json, os, sys
from pathlib import Path
from jupyter_client.manager import KernelManager
manager = KernelManager()
manager.kernel_spec.argv[0] = sys.executable  # not one that a kernelspec of the machine names
"""

EXAMPLE = f"""{MANAGER}
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read({str(ROOT / "examples" / "notebook.ipynb")!r}, as_version=4)
NotebookClient(notebook, km=manager, timeout=200).execute()
print(json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]))
"""


def test_the_example_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_PRELOAD", "numpy")
    _, calls, agents, pool, failed, _ = drive(tmp_path, EXAMPLE)
    assert calls[-1]["data"]["text/plain"] == "0.27"
    (bar,) = [one["data"]["text/html"] for one in calls if one["output_type"] == "display_data"]
    assert '<progress value="12" max="12"></progress> <code>12/12 done' in bar
    assert agents[-1]["data"]["text/html"].count("<td>idle</td>") == 2
    shown = pool[-1]["data"]["text/html"]
    assert "1 failed: ValueError: row 3 is empty at" in shown and "<th>ok</th><td>7</td>" in shown
    assert "JobFailed" in failed[-1]["data"]["text/plain"]


INTERRUPTED = f"""{MANAGER}
from postroom.store.base import open_base
from postroom.store.snapshot import snapshot
from postroom.testing import wait_until

def connect():
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=100)
    return client

def end(cell_id):
    while True:
        reply = client.get_shell_msg(timeout=100)
        if reply["parent_header"]["msg_id"] == cell_id:
            return reply["content"]

def run(cell):
    done = end(client.execute(cell))
    assert done["status"] == "ok", done

def value(text):
    found = end(client.execute("", user_expressions={{"it": text}}))["user_expressions"]["it"]
    return found["data"]["text/plain"] if found["status"] == "ok" else str(found)

said = {{}}
manager.start_kernel()
client = connect()
run('''
import os, time
from concurrent.futures import wait
from pathlib import Path
import postroom

def hold(name):
    Path(name).touch()
    while Path(name).exists():
        time.sleep(0.01)

executor = postroom.Executor("base", agents=1, gpus=0)
futures = [executor.submit(hold, os.path.abspath(str(n))) for n in range(4)]
''')
waiting = client.execute("[future.result() for future in futures]")
wait_until(Path("0").exists, what="the first call runs")
manager.interrupt_kernel()
said["raised"] = end(waiting)["ename"]
run("wait(futures[1:], 100)")
said["cancelled"] = value("[future.cancelled() for future in futures]")
Path("0").unlink()
run("futures[0].result(100)")
said["usable"] = value("executor.submit(lambda: 6 * 7).result(100)")

pids = [agent.pid for agent in snapshot(open_base("base"), runs=False).agents]
run("left = executor.submit(hold, os.path.abspath('left'))")
wait_until(Path("left").exists, what="a call runs")
client.stop_channels()
manager.restart_kernel(now=False)
client = connect()
wait_until(lambda: not any(Path(f"/proc/{{pid}}").exists() for pid in pids), what="no agents")
said["agents"], said["restarted"] = len(pids), value("6 * 7")
client.stop_channels()
manager.shutdown_kernel(now=True)
print(json.dumps(said))
"""


def test_an_interrupted_cell_cancels_what_waits_and_a_restart_leaves_no_agents(
    tmp_path: Path,
) -> None:
    assert drive(tmp_path, INTERRUPTED) == {
        "raised": "KeyboardInterrupt",
        "cancelled": "[False, True, True, True]",
        "usable": "42",
        "agents": 1,
        "restarted": "42",
    }
