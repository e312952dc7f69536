"""Patches and diffs of any size and shape are read, applied and made in linear time."""

from collections.abc import Callable
from typing import Any

import pytest

from deepfs.text.diff import TextDiff, difference, merge_texts, unified_diff
from deepfs.text.patches import apply_hunks, parse_hunks, parse_patch, patch_sections
from deepfs.text.unified import apply_numbered, parse_unified
from support.growth import steep_growth


def v4a(body: str) -> str:
    return f"*** Begin Patch\n*** Update File: /a\n{body}\n*** End Patch"


READ: dict[str, Callable[[int], str]] = {
    "lines of context": lambda size: v4a("@@\n" + " \n" * (size // 2) + "-x\n+y"),
    "many hunks": lambda size: v4a("@@\n-x\n+y\n" * (size // 9)),
    "many anchors": lambda size: v4a("@@ x\n" * (size // 5) + "-x\n+y"),
    "many files": lambda size: "*** Begin Patch\n" + "*** Add File: /a\n+x\n" * (size // 20) + "*** End Patch",
    "one line": lambda size: v4a("-" + "x" * size + "\n+y"),
    "a long word of a here-document": lambda size: "<<" + "E" * size + "\n" + v4a("-x\n+y") + "\n" + "E" * size,
}
READ_AS_UNIFIED: dict[str, Callable[[int], str]] = {
    "many hunks": lambda size: "--- a\n+++ a\n" + "@@ -1 +1 @@\n-x\n+y\n" * (size // 18),
    "many files": lambda size: "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n" * (size // 30),
    "heads of git": lambda size: "diff --git a b\n" * (size // 15),
    "a name of spaces": lambda size: "diff --git " + "a " * (size // 2) + "\n",
    "a name of quotes": lambda size: 'diff --git "' + '\\"' * (size // 2) + "\n",
    "binary files": lambda size: "Binary files " + " and " * (size // 5) + "\n",
    "digits": lambda size: "--- a\n+++ a\n@@ -" + "1" * size + " @@",
}
APPLIED: dict[str, Callable[[int], tuple[str, str]]] = {
    "context that almost fits": lambda size: ("x\n" * (size // 2) + "y\n", " x\n" * (size // 6) + "-z\n+y"),
    "many equal hunks": lambda size: ("x\n" * (size // 2), "@@\n x\n x\n-y\n+z\n" * (size // 18)),
    "hunks in order": lambda size: (
        "".join(f"{i}\nx\n" for i in range(size // 8)),
        "".join(f"@@\n {i}\n-x\n+y\n" for i in range(size // 8)),
    ),
    "many anchors": lambda size: ("x\n" * (size // 2), "@@ x\n" * (size // 5) + "-x\n+y"),
    "runs of many lengths": lambda size: (
        "x\n" * (size // 2),
        "".join("@@\n" + " x\n" * length + "-x\n+y\n" for length in range(1, int(size**0.5))),
    ),
    "white space that differs": lambda size: (" x\n" * (size // 3), "@@\n x\n-  x\n+y\n" * (size // 16)),
}
COMPARED: dict[str, Callable[[int], tuple[list[str], list[str]]]] = {
    "three lines in another order": lambda size: (
        [f"a{i % 3}\n" for i in range(size // 3)],
        [f"a{i * i % 3}\n" for i in range(size // 3)],
    ),
    "all lines in reverse": lambda size: (
        [f"{i}\n" for i in range(size // 7)],
        [f"{i}\n" for i in reversed(range(size // 7))],
    ),
    "two lines in turn": lambda size: (["a\n", "b\n"] * (size // 4), ["b\n", "a\n"] * (size // 4) + ["c\n"]),
    "one line": lambda size: (["x" * size + "\n"], ["x" * (size - 1) + "y\n"]),
}


PLACED: dict[str, Callable[[int], tuple[str, str]]] = {
    "elsewhere": lambda size: (
        "".join(f"{i}\n" for i in range(size // 6)),
        "--- a\n+++ a\n" + "".join(f"@@ -{size} +{size} @@\n-{i}\n+y\n" for i in range(size // 30)),
    ),
    "nowhere": lambda size: (
        "x\n" * (size // 2),
        "--- a\n+++ a\n" + "".join(f"@@ -{4 * i + 4} +{4 * i + 4} @@\n-z\n+y\n" for i in range(size // 30)),
    ),
}


def read(make: Callable[[int], str], size: int) -> Callable[[], Any]:
    patch = make(size)
    return lambda: (patch_sections(patch), parse_patch(patch))


def read_as_unified(make: Callable[[int], str], size: int) -> Callable[[], Any]:
    diff = make(size)
    return lambda: parse_unified(diff)


def applied(make: Callable[[int], tuple[str, str]], size: int) -> Callable[[], Any]:
    text, diff = make(size)
    hunks = parse_hunks(diff, "/a")
    return lambda: apply_hunks("/a", text, hunks)


def placed(make: Callable[[int], tuple[str, str]], size: int) -> Callable[[], Any]:
    text, diff = make(size)
    [patch] = parse_unified(diff)
    return lambda: apply_numbered("/a", text, patch.exact or ())


def compared(make: Callable[[int], tuple[list[str], list[str]]], size: int) -> Callable[[], Any]:
    before, after = map("".join, make(size))

    def compare() -> None:
        difference(before, after)
        merge_texts(before, after, after + "x\n")
        unified_diff(before.encode(), after.encode(), "a", "a")
        for _ in TextDiff(before, after).rows():
            pass

    return compare


WORK: list[tuple[Any, dict[str, Any]]] = [
    (read, READ),
    (read_as_unified, READ_AS_UNIFIED),
    (applied, APPLIED),
    (placed, PLACED),
    (compared, COMPARED),
]


@pytest.mark.parametrize(
    ("work", "make"),
    [pytest.param(work, make, id=f"{work.__name__}: {name}") for work, shapes in WORK for name, make in shapes.items()],
)
def test_the_time_is_linear(work: Callable[[Any, int], Callable[[], Any]], make: Any) -> None:
    assert not steep_growth(lambda size: work(make, size))
