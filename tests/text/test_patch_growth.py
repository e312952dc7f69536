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


PATCHES: dict[str, Callable[[int], str]] = {
    "blank lines": lambda size: v4a("@@\n+x\n" + "\n" * size),
    "lines of context": lambda size: v4a("@@\n" + " \n" * (size // 2) + "-x\n+y"),
    "many hunks": lambda size: v4a("@@\n-x\n+y\n" * (size // 9)),
    "many anchors": lambda size: v4a("@@ x\n" * (size // 5) + "-x\n+y"),
    "many files": lambda size: "*** Begin Patch\n" + "*** Add File: /a\n+x\n" * (size // 20) + "*** End Patch",
    "one line": lambda size: v4a("-" + "x" * size + "\n+y"),
    "one name": lambda size: v4a("").replace("/a", "/a" * (size // 2)),
    "a here-document": lambda size: "<<E\n" + "E\n" * (size // 2) + v4a("-x\n+y") + "\nE",
    "a long word of a here-document": lambda size: "<<" + "E" * size + "\n" + v4a("-x\n+y") + "\n" + "E" * size,
    "empty heads": lambda size: v4a("@@\n" * (size // 3) + "-x\n+y"),
    "headers of nothing": lambda size: v4a("*** \n" * (size // 5)),
}

UNIFIED: dict[str, Callable[[int], str]] = {
    "lines of context": lambda size: f"--- a\n+++ a\n@@ -1,{size} +1,{size} @@\n" + " \n" * (size // 2),
    "many hunks": lambda size: "--- a\n+++ a\n" + "@@ -1 +1 @@\n-x\n+y\n" * (size // 18),
    "many files": lambda size: "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n" * (size // 30),
    "heads of files": lambda size: "--- a\n" * (size // 6),
    "heads of git": lambda size: "diff --git a b\n" * (size // 15),
    "a name of spaces": lambda size: "diff --git " + "a " * (size // 2) + "\n",
    "a name of quotes": lambda size: 'diff --git "' + '\\"' * (size // 2) + "\n",
    "a name of slashes": lambda size: "diff --git " + "a/" * (size // 2) + " b\n",
    "binary files": lambda size: "Binary files " + " and " * (size // 5) + "\n",
    "notes of git": lambda size: "diff --git a b\n" + "old mode 100644\n" * (size // 16),
    "digits": lambda size: "--- a\n+++ a\n@@ -" + "1" * size + " @@",
}

Texts = Callable[[int], tuple[list[str], list[str]]]

TEXTS: dict[str, Texts] = {
    "the same line": lambda size: (["\n"] * size, ["x\n", *["\n"] * (size - 2), "x\n"]),
    "three lines in another order": lambda size: (
        [f"a{i % 3}\n" for i in range(size // 3)],
        [f"a{i * i % 3}\n" for i in range(size // 3)],
    ),
    "all lines changed": lambda size: ([f"a{i}\n" for i in range(size // 7)], [f"b{i}\n" for i in range(size // 7)]),
    "all lines in reverse": lambda size: (
        [f"{i}\n" for i in range(size // 7)],
        [f"{i}\n" for i in reversed(range(size // 7))],
    ),
    "lines that occur twice": lambda size: (
        [f"{min(i, size // 7 - i)}\n" for i in range(size // 7)],
        [f"{min(i, size // 7 - i)}\n" for i in range(size // 7) if i % 7],
    ),
    "two lines in turn": lambda size: (["a\n", "b\n"] * (size // 4), ["b\n", "a\n"] * (size // 4) + ["c\n"]),
    "one line": lambda size: (["x" * size + "\n"], ["x" * (size - 1) + "y\n"]),
}

APPLIED: dict[str, Callable[[int], tuple[str, str]]] = {
    "blank lines": lambda size: ("\n" * size, " \n" * (size // 2) + "-x\n+y"),
    "context that almost fits": lambda size: ("x\n" * (size // 2) + "y\n", " x\n" * (size // 6) + "-z\n+y"),
    "many equal hunks": lambda size: ("x\n" * (size // 2), "@@\n x\n x\n-y\n+z\n" * (size // 18)),
    "hunks in order": lambda size: (
        "".join(f"{i}\nx\n" for i in range(size // 8)),
        "".join(f"@@\n {i}\n-x\n+y\n" for i in range(size // 8)),
    ),
    "hunks found after anchors": lambda size: ("a\nx\n" * (size // 4), "@@ a\n-x\n+y\n@@ a\n-x\n+z\n" * (size // 26)),
    "many anchors": lambda size: ("x\n" * (size // 2), "@@ x\n" * (size // 5) + "-x\n+y"),
    "runs of many lengths": lambda size: (
        "x\n" * (size // 2),
        "".join("@@\n" + " x\n" * length + "-x\n+y\n" for length in range(1, int(size**0.5))),
    ),
    "periods": lambda size: ("a\nb\n" * (size // 4), "@@\n" + " a\n b\n" * (size // 12) + "-c\n+d"),
    "white space that differs": lambda size: (" x\n" * (size // 3), "@@\n x\n-  x\n+y\n" * (size // 16)),
}


def numbered(size: int, hunk: str, *, moved: int) -> str:
    return "--- a\n+++ a\n" + "".join(f"@@ -{4 * i + 1 + moved} +{4 * i + 1 + moved} @@\n{hunk}" for i in range(size))


PLACED: dict[str, Callable[[int], tuple[str, str]]] = {
    "where they are": lambda size: ("x\n" * (size // 2), numbered(size // 30, "-x\n+y\n", moved=0)),
    "elsewhere": lambda size: (
        "".join(f"{i}\n" for i in range(size // 6)),
        "--- a\n+++ a\n" + "".join(f"@@ -{size} +{size} @@\n-{i}\n+y\n" for i in range(size // 30)),
    ),
    "in several places": lambda size: ("x\ny\n" * (size // 4), numbered(size // 30, "-y\n+z\n", moved=0)),
    "nowhere": lambda size: ("x\n" * (size // 2), numbered(size // 30, "-z\n+y\n", moved=3)),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patches_are_read_in_linear_time(name: str) -> None:
    def made(size: int) -> Callable[[], Any]:
        patch = PATCHES[name](size)
        return lambda: (patch_sections(patch), parse_patch(patch))

    assert not steep_growth(made)


@pytest.mark.parametrize("name", UNIFIED)
def test_unified_diffs_are_read_in_linear_time(name: str) -> None:
    def made(size: int) -> Callable[[], Any]:
        diff = UNIFIED[name](size)
        return lambda: parse_unified(diff)

    assert not steep_growth(made)


@pytest.mark.parametrize("name", APPLIED)
def test_hunks_are_placed_in_linear_time(name: str) -> None:
    def made(size: int) -> Callable[[], Any]:
        text, diff = APPLIED[name](size)
        hunks = parse_hunks(diff, "/a")
        return lambda: apply_hunks("/a", text, hunks)

    assert not steep_growth(made)


@pytest.mark.parametrize("name", PLACED)
def test_hunks_with_numbers_are_placed_in_linear_time(name: str) -> None:
    def made(size: int) -> Callable[[], Any]:
        text, diff = PLACED[name](size)
        [patch] = parse_unified(diff)
        return lambda: apply_numbered("/a", text, patch.exact or ())

    assert not steep_growth(made)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_compared_in_linear_time(name: str) -> None:
    def made(size: int) -> Callable[[], Any]:
        old, new = TEXTS[name](size)
        before, after = "".join(old), "".join(new)

        def compare() -> None:
            difference(before, after)
            merge_texts(before, after, after + "x\n")
            unified_diff(before.encode(), after.encode(), "a", "a")
            for _ in TextDiff(before, after).rows():
                pass

        return compare

    assert not steep_growth(made)
