"""The command lines of containers; `processes/test_containers.py` runs a real podman."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from postroom.commands.container_launcher import (
    ENGINE,
    ContainerRequest,
    find_engine,
    has_more_ids,
    launcher_words,
    run_words,
)
from postroom.errors import PostroomError
from postroom.testing import wait_until
from tests.gpus.ledgerkit import REPOSITORY

REQUEST = ContainerRequest("lab/torch:2", ["python", "x.py"], "/home/al/work", "postroom-1")
GRANTED = {
    "PATH": "/usr/bin",
    "HOME": "/home/al",
    "SECRET": "x",
    "CUDA_VISIBLE_DEVICES": "2,5",
    "POSTROOM_GPU": "GPU-aa,GPU-bb",
    "POSTROOM_FOLDER": "/base/runs/r/7",
}


def words_of(engine: str, environment: dict[str, str] = GRANTED, **more: int) -> list[str]:
    return run_words(engine.split(), REQUEST, environment, **{"uid": 1001, "gid": 100, **more})


def options(words: list[str], name: str) -> list[str]:
    return [value for option, value in pairwise(words) if option == name]


def test_podman_gets_the_granted_gpus_the_folder_the_locks_and_the_users_own_id() -> None:
    words = words_of("podman --runtime runc", n_fds=2)
    assert words[:4] == ["podman", "--runtime", "runc", "run"]
    assert options(words, "--device") == ["nvidia.com/gpu=GPU-aa", "nvidia.com/gpu=GPU-bb"]
    assert options(words, "-v") == ["/home/al/work:/home/al/work", "/base/runs/r/7:/base/runs/r/7"]
    assert options(words, "-w") == ["/home/al/work"]
    assert {"--userns=keep-id", "--preserve-fds=2"} <= {*words}
    # In the container there are only these two, and they count from 0.
    assert "CUDA_VISIBLE_DEVICES=0,1" in options(words, "-e")
    assert not any("SECRET" in word or word.startswith(("PATH=", "HOME=")) for word in words)
    assert words[-2:] == ["python", "x.py"] and "lab/torch:2" in words
    assert options(words_of("podman", uid=0, gid=0), "--user") == ["0:0"]


def test_docker_gets_the_granted_gpus_and_the_users_own_id() -> None:
    words = words_of("docker", n_fds=2)
    assert options(words, "--gpus") == ['"device=GPU-aa,GPU-bb"']
    assert options(words, "--user") == ["1001:100"]
    assert not any("preserve-fds" in word for word in words)


def test_apptainer_gets_nv_and_the_numbers_of_the_host() -> None:
    words = words_of("/opt/bin/apptainer")
    assert words[:3] == ["/opt/bin/apptainer", "exec", "--nv"]
    assert "CUDA_VISIBLE_DEVICES=2,5" in options(words, "--env")
    assert options(words, "--bind") == ["/home/al/work", "/base/runs/r/7"]
    assert words[-3:] == ["lab/torch:2", "python", "x.py"]


@pytest.mark.parametrize("engine", ["podman", "docker", "apptainer"])
@pytest.mark.parametrize("uuid", ["", "cpu", "FAKE-0"])
def test_without_a_real_gpu_none_is_handed_in(engine: str, uuid: str) -> None:
    words = words_of(engine, {"POSTROOM_GPU": uuid, "CUDA_VISIBLE_DEVICES": "0"})
    assert not {"--device", "--gpus", "--nv"} & {*words}


def test_amd_cards_are_handed_in_by_their_one_device() -> None:
    amd = {"POSTROOM_GPU": "a", "HIP_VISIBLE_DEVICES": "3"}
    assert "--device=/dev/kfd" in words_of("podman", amd)
    assert "--rocm" in words_of("apptainer", amd)


def test_options_of_the_user_come_before_the_image() -> None:
    words = words_of("podman", {"POSTROOM_CONTAINER_OPTIONS": "--shm-size 8g"})
    assert words.index("--shm-size") == words.index("lab/torch:2") - 2


def test_the_engine_is_the_named_one_or_the_first_that_is_there() -> None:
    named = {"POSTROOM_CONTAINER_ENGINE": "docker --context far"}
    assert find_engine(named) == ["docker", "--context", "far"]
    with pytest.raises(PostroomError, match="install podman, docker or apptainer"):
        find_engine({"PATH": "/nowhere"})


def test_podman_is_not_asked_to_keep_an_id_that_it_cannot_map(tmp_path: Path) -> None:
    words = words_of("podman", keeps_id=False)
    assert "--userns=keep-id" not in words and "--user" not in words
    subuid, nss = tmp_path / "subuid", tmp_path / "nss"
    assert not has_more_ids(os.getuid(), str(subuid), str(nss))
    subuid.write_text("somebody:100000:65536\n")
    assert not has_more_ids(os.getuid(), str(subuid), str(nss))
    subuid.write_text(f"{os.getuid()}:100000:65536\n")
    assert has_more_ids(os.getuid(), str(subuid), str(nss))
    subuid.unlink()
    nss.write_text("passwd: files\nsubid: sss\n")  # a directory knows: podman asks it
    assert has_more_ids(os.getuid(), str(subuid), str(nss))


# A launcher that is told to end in the moment in which its client has begun.
TOLD_EARLY = """
import os, signal, subprocess, sys
from postroom.commands import container_launcher

class Client(subprocess.Popen):
    def __init__(self, *words, **more):
        super().__init__(*words, **more)
        while not os.path.exists("begun"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Client
sys.exit(container_launcher.main())
"""


@pytest.mark.parametrize(
    ("state", "code", "early"), [("stopped 75", 75, True), ("exited 0", 0, False), ("", 143, False)]
)
def test_a_signal_reaches_the_client_whose_answer_of_0_is_not_believed(
    tmp_path: Path, state: str, code: int, early: bool
) -> None:
    engine, begun = tmp_path / "podman", tmp_path / "begun"
    engine.write_text(
        "#!/bin/sh\ncase $1 in run) trap 'exit 0' TERM; touch begun; "
        f"while :; do sleep 0.05; done;; inspect) echo {state};; esac\n"
    )
    engine.chmod(0o755)
    words = launcher_words("image", ["true"])
    if early:
        words = [sys.executable, "-c", TOLD_EARLY, "image", "true"]
    launcher = subprocess.Popen(
        words,
        cwd=tmp_path,
        env={**os.environ, ENGINE: str(engine), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
    )
    wait_until(begun.exists)
    if not early:
        launcher.terminate()
    assert launcher.wait(60) == code


@pytest.mark.parametrize("moment", ["before the command", "meanwhile", "later"])
def test_the_first_process_of_a_container_hands_sigterm_on_once(
    tmp_path: Path, moment: str
) -> None:
    line = "trap 'echo told >> log' TERM; touch ready; until [ -e end ]; do sleep 0.02; done"
    words = run_words(["podman"], REQUEST, {})
    first = words[words.index("-c", words.index(REQUEST.image)) + 1]
    if moment == "before the command":
        first = first.replace("test -z", "kill -TERM $$; test -z", 1)
    if moment == "meanwhile":
        later = "until [ -e ready ]; do sleep 0.02; done; kill -TERM $$; "
        first = first.replace("<&9 9<&- & ", f"<&9 9<&- & {later}")
    process = subprocess.Popen(
        ["/bin/sh", "-c", first, "sh", "sh", "-c", line], cwd=tmp_path, stdin=subprocess.DEVNULL
    )
    log = tmp_path / "log"
    if moment == "before the command":
        assert process.wait(60) == 128 + 15 and not (tmp_path / "ready").exists()
        return
    wait_until((tmp_path / "ready").exists)
    if moment == "later":
        process.terminate()
    wait_until(log.exists)
    (tmp_path / "end").touch()
    assert process.wait(60) == 0 and log.read_text() == "told\n"
