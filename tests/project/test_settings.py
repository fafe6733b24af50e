from __future__ import annotations

import pytest

from postroom.project.settings import read_settings


def test_an_argument_beats_the_environment_beats_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = {"BASE": "./base", "N_GPU": 4, "HOT_START": False}
    assert vars(read_settings(None, [], **defaults)) == {
        "base": "./base",
        "n_gpu": 4,
        "hot_start": False,
    }
    monkeypatch.setenv("POSTROOM_N_GPU", "2")
    monkeypatch.setenv("POSTROOM_HOT_START", "yes")
    settings = read_settings(None, ["--n-gpu", "1"], **defaults)
    assert (settings.n_gpu, settings.hot_start) == (1, True)
    assert read_settings(None, ["--no-hot-start"], **defaults).hot_start is False


@pytest.mark.parametrize(("arguments", "value"), [([], None), (["--resume"], "")])
def test_a_setting_without_a_default_may_be_absent_or_bare(
    arguments: list[str], value: str | None
) -> None:
    assert read_settings(None, arguments, RESUME=None).resume == value
    assert read_settings(None, ["--resume", "run"], RESUME=None).resume == "run"


def test_a_variable_of_the_wrong_type_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTROOM_N_GPU", "many")
    with pytest.raises(SystemExit) as end:
        read_settings(None, [], N_GPU=4)
    assert end.value.code == 2
    assert "POSTROOM_N_GPU='many'" in capsys.readouterr().err
