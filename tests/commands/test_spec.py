"""What is asked for a command becomes a job, and is read back from its parcel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroom.commands.spec import COMMAND, CommandSpec
from postroom.errors import PostroomError
from postroom.parcel.sheets import JobSheet, pack_jobs
from postroom.store.job_ids import JobId
from postroom.store.scheduling import SchedulingOptions

JOB = JobId("20261116-030703-0b859f", 17)
WHOLE = CommandSpec(
    "train", "one", "/data", {"A": "1"}, 90.0, 2, grace_s=3.0, nice=5, shell="zsh", before="b",
    after="a", output_bytes=4096, arguments={"lr": 0.1}, number=7, checkpoint=True,
    scheduling=SchedulingOptions(priority=3, after=(JOB,)), rerun_of=JOB, memory="6G", repeat=1,
    environment="e1", folder="/out/one", memory_mib=6144, card="GPU-1",
)  # fmt: skip


def read_back(spec: CommandSpec) -> CommandSpec:
    job = spec.to_job()
    names = None if job.name is None else [job.name]
    data = b"".join(map(bytes, pack_jobs(0, job.task, job.settings, names, [job.arguments])))
    sheet = JobSheet("parcel", data)
    assert sheet.task == COMMAND
    return CommandSpec.of_job(sheet, 0)


def test_everything_that_is_asked_arrives() -> None:
    assert read_back(WHOLE) == WHOLE
    assert CommandSpec.decode(json.loads(json.dumps(WHOLE.encode()))) == WHOLE


def test_what_is_as_usual_takes_no_space() -> None:
    job = CommandSpec("true", cwd="/").to_job()
    assert job.arguments == {"command": "true", "cwd": "/"}
    assert read_back(CommandSpec("true", cwd="/")) == CommandSpec("true", cwd="/", retries=0)


def test_defaults_fill_in_what_is_not_said() -> None:
    defaults = CommandSpec("", retries=3, timeout_s=60.0, shell="zsh")
    spec = CommandSpec("true", retries=0).with_defaults(defaults)
    assert spec == CommandSpec("true", retries=0, timeout_s=60.0, shell="zsh")


def test_a_changed_copy_has_a_key_of_its_own() -> None:
    spec = CommandSpec("true", cwd="/")
    assert spec.key != spec.but(repeat=1).key
    assert spec.but(name="x").key == spec.key
    assert (spec.but(number=3).number, spec.number) == (3, 0)


def test_memory_is_a_part_of_one_gpu_or_of_each_of_several() -> None:
    one = CommandSpec("true").with_memory("8G")
    assert (one.memory_mib, one.scheduling.memory_mib, one.scheduling.shares) == (8192, 8192, True)
    measured = one.with_memory("auto")
    assert (measured.memory_mib, measured.scheduling.memory_mib) == (None, 0)
    assert measured.scheduling.shares and not measured.with_memory("").scheduling.shares
    two = CommandSpec("true", scheduling=SchedulingOptions(gpus=2))
    assert two.with_memory("8G").scheduling == SchedulingOptions(gpus=2, memory_mib=8192)
    with pytest.raises(PostroomError, match="one GPU"):
        two.with_memory("auto")


def test_a_job_of_a_later_version_may_say_more() -> None:
    assert CommandSpec.decode({"command": "true", "colour": "red"}) == CommandSpec("true")


def test_scheduling_that_makes_no_sense_does_not_keep_a_command_from_running() -> None:
    said = {"command": "true", "scheduling": {"priority": "high"}, "rerun_of": "nobody"}
    assert CommandSpec.decode(said) == CommandSpec("true")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"command": "a\0b"}, "zero byte"),
        ({"name": "a\0b"}, "zero byte"),
        ({"after": "\0"}, "zero byte"),
        ({"env": {"A": "\0"}}, "zero byte"),
        ({"env": {"\0": "A"}}, "zero byte"),
        ({"env": {"": "A"}}, "cannot be the name"),
        ({"env": {"A=B": "A"}}, "cannot be the name"),
        ({"command": "\ud800"}, "half a character"),
    ],
)
def test_what_no_process_can_be_given_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(PostroomError, match=error):
        CommandSpec("true").but(**fields).check()
    CommandSpec("echo \udcff").check()  # a byte that is no text, as in a file's name


def test_no_command_is_an_error() -> None:
    with pytest.raises(TypeError, match="command"):
        CommandSpec.decode({"cwd": "/"})
