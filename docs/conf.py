"""How `make docs` builds the site: Sphinx, MyST and furo; every warning is an error.

Two parts of the reference are made while the site is built, so they cannot become stale: the API
from `postroom.__all__`, and the command line from what `--help` prints.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from importlib.metadata import version as installed_version
from typing import Any, ClassVar

import click
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import postroom
from postroom.cli.verbs import postroom as command_line
from postroom.jobs import POOL_CALLS
from postroom.master import MASTER_CALLS

project = "Postroom"
author = "The Postroom authors"
release = installed_version("postroom")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
highlight_language = "text"  # of blocks that name none: they are trees, and commands
html_theme = "furo"
html_title = f"Postroom {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = False
html_copy_source = False

# The pages are read on GitHub, too: headings get the same anchors there and here.
myst_heading_anchors = 4

# A reference that leads nowhere is a warning, so an error.
nitpicky = True
nitpick_ignore_regex = [
    # Of other packages, which we do not link to: a build needs no network.
    ("py:.*", r"(numpy|torch|click|os|argparse|concurrent|subprocess|signal|collections)\..*"),
    # Types that a signature names, and that are not part of the public API.
    ("py:.*", r"postroom\.(?!testing\b)[a-z_]+\..*"),
    ("py:class", r"postroom\.testing\.T|[A-Z]\w*|np\..*|subprocess\..*"),
]
# Docstrings are plain text: `name` is code, and an indented block is shown as it is.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# What a class is called here is what users import: `postroom.Master`.
add_module_names = False

# Where not every method of a class is for users.
CALLS = {"Master": MASTER_CALLS, "JobPool": POOL_CALLS}

# Help is printed as on a terminal of this width.
COLUMNS = 88


def subcommands(
    command: click.Command, name: str, above: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Walk a command and all below it: how each is called, and its help."""
    settings = {**command.context_settings, "terminal_width": COLUMNS}
    with click.Context(command, parent=above, info_name=name, **settings) as context:
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                below = command.get_command(context, word)
                if below is not None and not below.hidden:
                    yield from subcommands(below, word, context)


class CommandSpec(SphinxDirective):
    """Every command of `postroom`, with what its `--help` prints."""

    def run(self) -> list[nodes.Node]:
        """Write a heading and a block for each command."""
        text = []
        for called, shown in subcommands(command_line, "postroom"):
            level = "#" * (1 + len(called.split()))
            text.append(f"{level} {called}\n\n```text\n{shown.rstrip()}\n```\n")
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=True)


class PublicNames(SphinxDirective):
    """Every name that `from postroom import ...` offers, from its docstring."""

    def run(self) -> list[nodes.Node]:
        """Have autodoc write each name of `postroom.__all__`."""
        text = []
        for name in postroom.__all__:
            value: Any = getattr(postroom, name)
            if not inspect.isclass(value):
                kind = "function"
            elif issubclass(value, BaseException):
                kind = "exception"
            else:
                kind = "class"
            block = f".. auto{kind}:: postroom.{name}\n"
            if kind != "function":
                named = [call for call in CALLS.get(name, ()) if hasattr(value, call)]
                block += f"   :members: {', '.join(named)}\n"
            text.append(f"```{{eval-rst}}\n{block}```\n")
        return self.parse_text_to_nodes("\n".join(text))


class ModuleHeader(SphinxDirective):
    """The docstring of a module, as it stands in the source."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"skip": directives.nonnegative_int}

    def run(self) -> list[nodes.Node]:
        """Show the docstring, without its first lines if `skip` says so."""
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(module.__file__ or "")
        lines = inspect.cleandoc(module.__doc__ or "").splitlines()
        text = "\n".join(lines[self.options.get("skip", 0) :]).strip()
        return [nodes.literal_block(text, text, language="text")]


def keep_blocks(*event: Any) -> None:
    """Show an indented block of a docstring as it is, though no `::` announces it."""
    lines: list[str] = event[-1]
    for i in range(len(lines) - 1, 1, -1):
        begins = lines[i].startswith("  ") and not lines[i - 1] and lines[i - 2].strip()
        before = lines[i - 2]
        if begins and not before.startswith((" ", "..", ":")) and not before.endswith("::"):
            lines[i - 1 : i] = ["", "::", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the directives above."""
    # What help shows as a default must not depend on who builds the site.
    for name in [name for name in os.environ if name.startswith("POSTROOM_")]:
        del os.environ[name]
    app.add_directive("command-line", CommandSpec)
    app.add_directive("public-names", PublicNames)
    app.add_directive("module-header", ModuleHeader)
    app.connect("autodoc-process-docstring", keep_blocks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
