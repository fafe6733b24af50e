from __future__ import annotations

from pathlib import Path

import pytest

from postroom.gpus.memory.command_kind import kind_of_command


@pytest.mark.parametrize(
    ("line", "type_", "call"),
    [
        (
            "python a.py --lr 0.1 --width 64 --m=net > log.txt",
            "python a.py --lr --width --m",
            {"--width": 64, "--m": "net"},
        ),
        ("./fit 3 -1 1e-3 2>err", "./fit N N N", {"word 1": 3, "word 2": -1}),
        ("python a.py --seed -5 --fast", "python a.py --seed --fast", {"--seed": -5}),
        ("echo 'open", "echo 'open", {}),
        ("", "", {}),
    ],
)
def test_a_command_is_known_by_its_words_without_their_values(
    line: str, type_: str, call: dict[str, object]
) -> None:
    kind = kind_of_command(line)
    assert kind.type == type_
    assert kind.call == call


def test_an_edit_of_the_script_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = kind_of_command("python a.py", folder=str(tmp_path))
    assert kind_of_command("python a.py", folder=str(tmp_path)) == before
    (tmp_path / "a.py").write_text("2")
    assert kind_of_command("python a.py", folder=str(tmp_path)) != before
