"""Style sheets and scripts are files of the package, read once."""

from __future__ import annotations

from pathlib import Path

from postroom.web.assets import read_assets


def test_only_known_kinds_of_files_are_served(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a")
    (tmp_path / "b.js").write_text("b")
    (tmp_path / "secret.txt").write_text("s")
    found = read_assets(str(tmp_path))
    assert sorted(found) == ["a.css", "b.js"]
    assert found["a.css"].digest != found["b.js"].digest


def test_all_assets_of_the_pages_are_there() -> None:
    assert {"page.css", "page.js", "log.js", "cards.js", "theme.js", "icon.svg"} <= set(
        read_assets()
    )
