"""Sweeps: every combination of some values, put into one command.

"python train.py --lr {lr} --bs {bs}"  lr=0.1,0.01  bs=32:256:x2  --where "lr*bs<5"
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import PostroomError
from .spec import CommandSpec

_FIELD = re.compile(r"\{([A-Za-z_]\w*)\}")
_RANGE = re.compile(r"([^:]+):([^:]+)(?::(x?)([^:]+))?")
MOST_VALUES = 1_000_000


class SweepError(PostroomError):
    """A sweep cannot be read."""


def sweep(
    template: str, assignments: Sequence[str], where: str = "", *, most_tried: int | None = None
) -> Iterator[CommandSpec]:
    """Make the commands of a sweep; the last name varies fastest."""
    axes = dict(map(_axis, assignments))
    asked = set(_FIELD.findall(template))
    missing, unused = sorted(asked - set(axes)), sorted(set(axes) - asked)
    if missing:
        raise SweepError(f"the command has {{{missing[0]}}}, and no values are given for it")
    if unused:
        raise SweepError(f"{unused[0]} has values, and the command has no {{{unused[0]}}}")
    keep = compile_condition(where, set(axes)) if where else None
    count = math.prod(len(values) for values in axes.values())
    if most_tried is not None and count > most_tried:
        raise SweepError(f"there are {count} combinations; at most {most_tried} are tried here")
    for combination in itertools.product(*axes.values()):
        texts = dict(zip(axes, combination, strict=True))
        values = {name: number(text) for name, text in texts.items()}
        if keep is None or keep(values):
            yield CommandSpec(_FIELD.sub(lambda m: texts[m[1]], template), arguments=values)  # noqa: B023


def _axis(assignment: str) -> tuple[str, list[str]]:
    name, equals, text = assignment.partition("=")
    if not equals or not name.isidentifier() or not text:
        raise SweepError(f"{assignment!r} gives no values: write name=1,2,3 or name=1:10:2")
    values: list[str] = []
    for part in text.split(","):
        span = _RANGE.fullmatch(part)
        values += _span(part, *span.groups()) if span else [part]
    return name, values


def _span(text: str, first: str, last: str, times: str | None, by: str | None) -> list[str]:
    """The numbers of `first:last`, `first:last:step` or `first:last:xFACTOR`, ends included."""
    start, stop, step = number(first), number(last), number(by or "1")
    if not all(isinstance(value, (int, float)) for value in (start, stop, step)):
        return [text]  # no numbers: a path, a time, an image's name
    endless = (step <= 1 or start <= 0) if times else step <= 0
    if endless or not all(map(math.isfinite, (start, stop, step))) or stop < start:
        raise SweepError(f"the range {text!r} has no end: write 1:10:2 or 32:256:x2")
    found: list[str] = []
    value, count = start, 0
    while value <= stop + abs(stop) * 1e-9:
        found.append(f"{value:.12g}" if isinstance(value, float) else str(value))
        if len(found) > MOST_VALUES:
            raise SweepError(f"the range {text!r} has more than {MOST_VALUES} values")
        count += 1
        # From the start each time: adding up 0.1 ten times is not 1.
        value = start * step**count if times else start + step * count
    return found


def number(text: str) -> Any:
    """A number where the text is one, else the text."""
    if text[:1].isalpha() and text[:3].lower() not in ("inf", "nan"):
        return text  # most are words, and an exception is slow
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def compile_condition(text: str, names: set[str]) -> Callable[[dict[str, Any]], bool]:
    """Turn a condition on some names into a function: arithmetic and comparisons, nothing else."""
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise SweepError(f"{text!r} is not a condition: write it as lr*bs<5") from None
    _check(tree, names, text)

    def holds(values: dict[str, Any]) -> bool:
        try:
            return bool(_evaluate(tree, values))
        except (TypeError, ArithmeticError) as error:
            raise SweepError(f"{text!r} cannot be decided for {values}: {error}") from None

    return holds


def _check(node: ast.AST, names: set[str], text: str) -> None:
    """Refuse everything but numbers, texts, the given names, and operators on them."""
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise SweepError(f"{text!r} asks for {node.id}, which has no values")
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, (int, float, str, bool)):
            return
    elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
        if type(node.op) in _OPERATORS:
            parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
            for part in parts:
                _check(part, names, text)
            return
    elif isinstance(node, (ast.BoolOp, ast.Tuple, ast.List)):
        for part in node.values if isinstance(node, ast.BoolOp) else node.elts:
            _check(part, names, text)
        return
    elif isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        for part in (node.left, *node.comparators):
            _check(part, names, text)
        return
    raise SweepError(f"{text!r} holds more than arithmetic and comparisons: {ast.unparse(node)}")


def _evaluate(node: ast.AST, values: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluate(node.operand, values))
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, values), _evaluate(node.right, values)
        if not all(isinstance(side, (int, float)) for side in (left, right)):
            raise TypeError("arithmetic needs numbers")  # "a" * 10**9 is no arithmetic
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.BoolOp):
        every = isinstance(node.op, ast.And)
        parts = (bool(_evaluate(part, values)) for part in node.values)
        return all(parts) if every else any(parts)
    if isinstance(node, ast.Compare):
        sides = [_evaluate(part, values) for part in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        return all(_OPERATORS[type(op)](left, right) for op, left, right in pairs)
    assert isinstance(node, (ast.Tuple, ast.List))
    return [_evaluate(part, values) for part in node.elts]
