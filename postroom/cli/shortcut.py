"""The short way for the verbs that scripts call in loops: no click, nothing that is not needed.

`postroom gpu get` does its work in a few milliseconds, while importing click takes as long as two
bare Pythons. So a command line that is plain is read here, by the same table of options. Whatever
is not (`--help`, an option given twice, a value that looks like an option, anything wrong) is left
to click, with all that it has to say: this parser knows no errors.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see `gpus.frozen`
if TYPE_CHECKING:
    from typing import Any

    from .gpu_words import GpuVerb, Option

VERBS = ("get", "run", "release", "idle")


def run(words: list[str]) -> bool:
    """Do what a command line asks for; False: nothing was done, click is to read it."""
    if words[:1] != ["gpu"] or len(words) < 2 or words[1] not in VERBS:
        return False
    from . import gpu_lease
    from .gpu_words import Misuse

    verb: GpuVerb = getattr(gpu_lease, f"{words[1]}_")
    values = read(verb, words[2:])
    if values is None:
        return False
    try:
        verb.call(values)
    except Misuse:
        return False
    return True


def read(verb: GpuVerb, words: list[str]) -> dict[str, Any] | None:
    """Return the values of a plain command line, exactly as click would, or None."""
    options = {option.flag: option for option in verb.all_options}
    given: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--" and verb.is_command:
            given[verb.argument] = tuple(left)
            break
        flag, has_value, value = word.partition("=")
        option = options.get(flag)
        if option is None:
            # The one argument of the verb, if it has not come yet.
            if word.startswith("-") or verb.is_command or verb.argument in ("", *given):
                return None
            given[verb.argument] = word
            continue
        if option.name in given or (has_value and not flag.startswith("--")):
            return None
        if option.kind is bool:
            if has_value:
                return None
            given[option.name] = True
            continue
        if not has_value:
            if not left or left[0].startswith("-"):
                return None
            value = left.pop(0)
        try:
            given[option.name] = _value(option, value)
        except ValueError:
            return None
    if verb.argument and not given.get(verb.argument):
        return None
    return {option.name: _default(option) for option in options.values()} | given


def _value(option: Option, text: str) -> Any:
    value: Any = option.kind(text)
    if option.least is not None and value < option.least:
        raise ValueError
    return value


def _default(option: Option) -> Any:
    return False if option.kind is bool else option.default
