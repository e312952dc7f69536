"""The simplest implementations of paths, texts, globs and searches of the contract, for the model only."""

import re
from collections.abc import Callable, Sequence
from typing import Final

__all__ = [
    "above",
    "bare",
    "beside",
    "count_places",
    "finder",
    "glob_fits",
    "is_storable",
    "is_under",
    "lines_of",
    "normal",
    "parent",
    "text_of",
]

_BINARY_SUFFIX: Final = ".png"


def normal(path: str) -> str:
    """The normal form of `path`."""
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def above(path: str) -> list[str]:
    """The directories above `path`, without the root."""
    names = path.split("/")[1:]
    return ["/" + "/".join(names[:count]) for count in range(1, len(names))]


def is_under(path: str, directory: str) -> bool:
    return path != directory and path.startswith(directory.rstrip("/") + "/")


def text_of(path: str, data: bytes) -> str | None:
    """The text of a file, or None if it is binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or path.endswith(_BINARY_SUFFIX) else text


def is_storable(text: str) -> bool:
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its line end, without a BOM."""
    lines = [f"{line}\n" for line in text.removeprefix("\ufeff").split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def bare(line: str) -> str:
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def count_places(text: str, old: str) -> int:
    """The number of places where `old` occurs, including overlapping ones."""
    return sum(text.startswith(old, place) for place in range(len(text)))


def _name_fits(segment: str, name: str) -> bool:
    if not segment:
        return not name
    if segment[0] == "*":
        return any(_name_fits(segment[1:], name[start:]) for start in range(len(name) + 1))
    return bool(name) and segment[0] in ("?", name[0]) and _name_fits(segment[1:], name[1:])


def _path_fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        enters = bool(names) and not names[0].startswith(".") and _path_fits(segments, names[1:])
        rest = segments[1:] or ["*"]
        return enters or _path_fits(rest, names)
    if not names or (names[0].startswith(".") and not segments[0].startswith(".")):
        return False
    return _name_fits(segments[0], names[0]) and _path_fits(segments[1:], names[1:])


def glob_fits(pattern: str, relative: str) -> bool:
    """Whether a pattern without sets and braces matches."""
    segments = pattern.strip("/").split("/") if "/" in pattern else ["**", pattern]
    return _path_fits(segments, relative.split("/"))


def finder(pattern: str, regex: bool, ignore_case: bool) -> Callable[[str], object]:
    return re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0).search


def parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def beside(lines: Sequence[str], hit: int, count: int) -> tuple[list[str], list[str]]:
    """The `count` lines before and after a line."""
    return list(lines[max(hit - count, 0) : hit]), list(lines[hit + 1 : hit + 1 + count])
