"""Which tests keep the promises of SECURITY.md."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["keeps", "kept", "promises"]

F = TypeVar("F", bound=Callable[..., Any])

_ROOT = Path(__file__).parents[2]
_FOR_ALL = "## What every backend promises"
_BY_BACKEND = "## What each backend adds, and does not"


def keeps(*words: str) -> Callable[[F], F]:
    """Say which promises a test is for.

    Args:
        words: Words of SECURITY.md, as they stand there, from each promise.
    """
    return lambda test: test


@cache
def kept() -> dict[str, list[str]]:
    """The words that tests name by `keeps`, by the name of the test."""
    found: dict[str, list[str]] = {}
    for file in sorted((_ROOT / "tests").glob("*/test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).extend(_words(node))
    return found


def _words(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for call in test.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == keeps.__name__:
            yield from map(ast.literal_eval, call.args)


def promises() -> list[str]:
    """The promises of SECURITY.md, one by one: those of every backend, then those of each."""
    text = (_ROOT / "SECURITY.md").read_text()
    for_all, by_backend = (text.split(title)[1].split("\n## ")[0] for title in (_FOR_ALL, _BY_BACKEND))
    lists = [for_all, *re.findall(r"^Promised:\n\n(.*?)\n\n", by_backend, re.DOTALL | re.MULTILINE)]
    items = [" ".join(item.split()) for each in lists for item in re.split(r"^- ", each, flags=re.MULTILINE)[1:]]
    return [part for item in items for part in re.split(r"(?<=[.;])\s", item)]
