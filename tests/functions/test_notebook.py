"""Functions of a notebook: their source reaches a session, or an error says what cannot."""

from __future__ import annotations

import importlib.util
import linecache
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import postroom
from postroom.errors import PostroomError
from postroom.functions.function_kind import code_of
from postroom.functions.notebook import is_interactive, write_module


class Notebook:
    """Runs cells as IPython does: their source is known, and no file holds it."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__", "postroom": postroom}
        self._count = 0

    def run(self, source: str) -> None:
        self._count += 1
        name = f"<ipython-input-{self._count}-{id(self)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), self.namespace)


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


def load(base: Path, job: Any) -> Any:
    """What a session finds in the module that was written."""
    project, task = write_module(job, str(base))
    module_name, _, name = task.partition(":")
    spec = importlib.util.spec_from_file_location(module_name, f"{project}/{module_name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_a_cell_travels_with_all_that_it_uses(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import math\nimport numpy as np\nfrom pathlib import Path as P\n")
    notebook.run("SCALE = {'a': (2, 3.5)}\ndef helper(x):\n    return x * SCALE['a'][1]\n")
    notebook.run(
        "@postroom.job(memory='2G', retries=2, matters=['x'])\n"
        "def fit(x: np.ndarray, seed=0):\n"
        "    'What it does.'\n"
        "    assert P('.')\n"
        "    return [math.sqrt(helper(v)) for v in np.arange(x)]\n"
        "@fit.profile\n"
        "def light(x, seed=0):\n"
        "    return fit.__wrapped__(1)\n"
    )
    fit = notebook.namespace["fit"]
    assert is_interactive(fit.function)
    found = load(tmp_path / "base", fit)
    assert found.function(3) == [math.sqrt(3.5 * value) for value in range(3)]
    assert found.options.memory_mib == 2048
    assert (found.options.retries, found.options.matters) == (2, ("x",))
    assert found.options.type == "notebook::fit"
    assert found.stand_in.__name__ == "light"
    assert found.__doc__ == "What it does."
    # What is learned here is known there: the same type, and the same version of the code.
    assert code_of(found.function) == code_of(fit.function)


def test_an_edited_cell_is_another_module_and_the_old_one_stays(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("@postroom.job\ndef fit():\n    return 1\n")
    first = load(tmp_path / "base", notebook.namespace["fit"])
    assert write_module(notebook.namespace["fit"], str(tmp_path / "base")) == write_module(
        notebook.namespace["fit"], str(tmp_path / "base")
    )
    notebook.run("@postroom.job\ndef fit():\n    return 2\n")
    second = load(tmp_path / "base", notebook.namespace["fit"])
    assert (first.function(), second.function()) == (1, 2)
    assert len(list((tmp_path / "base" / "notebook_functions").glob("*.py"))) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def fit():\n    return data.sum()\n",
            "fit uses 'data', a ndarray that cannot be sent",
        ),
        ("def fit():\n    return missing\n", "fit uses 'missing', which is not defined"),
        ("def fit():\n    return helper()\n", "helper uses 'data'"),
        ("def fit(x=stream):\n    return x\n", "fit uses 'stream', a object"),
    ],
)
def test_what_cannot_be_sent_is_named(
    notebook: Notebook, tmp_path: Path, source: str, message: str
) -> None:
    notebook.namespace["data"] = np.zeros(3)
    notebook.namespace["stream"] = object()
    notebook.run("def helper():\n    return data\n")
    notebook.run(f"@postroom.job\n{source}")
    with pytest.raises(PostroomError, match=message):
        notebook.namespace["fit"].submit()


def test_a_closure_names_its_variable(notebook: Notebook) -> None:
    notebook.run(
        "def make(width):\n"
        "    @postroom.job\n"
        "    def fit(x):\n"
        "        return x + width\n"
        "    return fit\n"
    )
    with pytest.raises(PostroomError, match="fit uses 'width' of the function around it"):
        notebook.namespace["make"](3).submit(1)


def test_without_its_source_a_sentence_says_so(notebook: Notebook) -> None:
    exec("@postroom.job\ndef fit():\n    return 1\n", notebook.namespace)
    with pytest.raises(PostroomError, match="not know the source of fit"):
        notebook.namespace["fit"].submit()
