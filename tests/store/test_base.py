from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from postroom.errors import BaseFolderError
from postroom.store.base import FOLDERS, Base, create_base, new_run_id, number_of, open_base


def test_a_new_base_has_every_folder_and_is_private(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    assert set(FOLDERS) <= set(os.listdir(base.root))
    for path in [base.root, *(f"{base.root}/{folder}" for folder in FOLDERS)]:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(base.format).st_mode) == 0o600


@pytest.mark.parametrize("spelling", ["base", "base/", "./base", "with some spaces/"])
def test_any_spelling_of_a_path_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_base(spelling).root == os.path.abspath(spelling)
    assert open_base(spelling).root == str(tmp_path / spelling.strip("./"))


def test_a_half_made_base_is_completed(tmp_path: Path) -> None:
    (tmp_path / "base" / "tmp").mkdir(parents=True, mode=0o700)
    os.chmod(tmp_path / "base", 0o700)
    base = create_base(tmp_path / "base")
    assert os.path.isdir(base.job_pool)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BaseFolderError, match=r"thesis\.tex"):
        create_base(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_missing_base_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BaseFolderError, match="postroom agents start 1"):
        open_base(tmp_path / "none")


def test_a_base_of_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    Path(base.format).write_text("postroom 99\n")
    before = sorted(Path(base.root).rglob("*"))
    for opening in (open_base, create_base):
        with pytest.raises(BaseFolderError, match="postroom 99"):
            opening(base.root)
    assert sorted(Path(base.root).rglob("*")) == before


def test_a_base_that_others_may_write_is_refused(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    os.chmod(base.root, 0o770)
    with pytest.raises(BaseFolderError, match="chmod go-w"):
        open_base(base.root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_base_of_another_user_is_refused(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    os.chown(base.root, 12345, 12345)
    with pytest.raises(BaseFolderError, match="belongs to user 12345"):
        open_base(base.root)


def test_a_base_below_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    os.chmod(loose, 0o777)
    with pytest.raises(BaseFolderError, match="above the base"):
        create_base(loose / "base")


def test_a_file_is_no_base(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BaseFolderError, match="not a folder"):
        create_base(tmp_path / "file")


def test_a_fifo_for_the_format_blocks_nobody(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    os.unlink(base.format)
    os.mkfifo(base.format)
    with pytest.raises(BaseFolderError, match="not a regular file"):
        open_base(base.root)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("000000000.npz", 0),
        ("000000123.npz", 123),
        ("123.npz", None),
        ("000000123.npz.tmp", None),
        ("00000012x.npz", None),
        ("\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660.npz", None),  # digits, not ASCII
        ("run.json", None),
    ],
)
def test_only_parcels_have_numbers(name: str, number: int | None) -> None:
    assert number_of(name) == number


def test_run_ids_are_unique_and_plain() -> None:
    ids = {new_run_id() for _ in range(200)}
    assert len(ids) == 200
    assert all("/" not in run and "." not in run for run in ids)


def test_no_path_is_joined_outside_the_base_class() -> None:
    base = Base("somewhere")
    assert base.mailbox("0") == f"{base.root}/agent_pool/0.POOL"
    assert base.result("r", 7) == f"{base.root}/result_pool/r/000000007.npz"


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_cannot_be_a_path_is_no_base(name: str) -> None:
    with pytest.raises(BaseFolderError, match=r"cannot be a base: name a folder, such as \./base"):
        create_base(name)


def test_a_base_of_another_host_is_refused_unchanged_where_both_could_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = create_base(tmp_path / "base")
    mine = Path(base.host).read_text()
    assert mine.split()[0] == socket.gethostname()
    Path(base.host).write_text("elsewhere 0c2f-another-boot\n")
    monkeypatch.setattr("postroom.store.base.network_filesystem", lambda path: "nfs4")
    for opens in (open_base, create_base, lambda root: open_base(root, write=False)):
        with pytest.raises(BaseFolderError, match=r"belongs to the host elsewhere.*ssh elsewhere"):
            opens(base.root)
    assert Path(base.host).read_text() == "elsewhere 0c2f-another-boot\n"
    # The same host, after it was started again.
    Path(base.host).write_text(f"{socket.gethostname()} 0c2f-another-boot\n")
    open_base(base.root)
    assert Path(base.host).read_text() == mine
    # A disk of its own is seen by one host, whatever that is called now.
    Path(base.host).write_text("elsewhere 0c2f-another-boot\n")
    monkeypatch.setattr("postroom.store.base.network_filesystem", lambda path: "")
    open_base(base.root)
    assert Path(base.host).read_text() == mine
