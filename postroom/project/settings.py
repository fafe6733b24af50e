"""Settings of a project's script: each is a name with a default, an option and a variable.

    settings = read_settings(__doc__, BASE="./base", N_GPU=4, HOT_START=False)
    settings.base, settings.n_gpu, settings.hot_start

`--n-gpu 2` beats POSTROOM_N_GPU=2 beats the default; the default's type is the setting's type.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def read_settings(
    description: str | None, arguments: list[str] | None = None, **defaults: Any
) -> argparse.Namespace:
    """Read every setting from the command line, the environment, or its default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        option = "--" + name.lower().replace("_", "-")
        variable = f"POSTROOM_{name}"
        kind = type(default)
        text = f"default {default!r}; or set {variable}"
        try:
            value = _convert(os.environ[variable], kind) if variable in os.environ else default
        except ValueError:
            parser.error(f"{variable}={os.environ[variable]!r} is not of type {kind.__name__}")
        if kind is bool:
            parser.add_argument(
                option, action=argparse.BooleanOptionalAction, default=value, help=text
            )
        elif default is None:
            # An option with an optional value: absent, bare ("") or with one.
            parser.add_argument(option, nargs="?", const="", default=value, metavar=name, help=text)
        else:
            parser.add_argument(option, type=kind, default=value, metavar=name, help=text)
    return parser.parse_args(arguments)


def _convert(text: str, kind: type[Any]) -> Any:
    if kind is bool:
        try:
            return _WORDS[text.lower()]
        except KeyError:
            raise ValueError(text) from None
    return text if kind is type(None) else kind(text)
