"""What a model is told to do next when a call failed or found nothing."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from json import dumps
from typing import Final

from deepfs.errors import ErrorCode
from deepfs.text import paths
from deepfs.text.visible import escaped, one_line, shown_path

__all__ = ["ERROR_CHARS", "advised", "closest", "no_file", "no_line", "suggestion"]

ERROR_CHARS: Final = 4_000
"""The most characters of an error that are shown; those of other libraries may be of any length."""

_NEXT: Final = {
    ErrorCode.FILE_NOT_FOUND: "Find the right path with ls or glob.",
    ErrorCode.IS_DIRECTORY: "List it with ls, or name a file.",
    ErrorCode.NOT_A_DIRECTORY: "Name a directory, or use read_file for a file.",
    ErrorCode.PERMISSION_DENIED: "Do not try again; choose a path that you may use.",
    ErrorCode.INVALID_PATH: "Give another absolute path such as /notes/plan.md.",
    ErrorCode.ALREADY_EXISTS: "To replace it, set overwrite.",
    ErrorCode.NO_MATCH: "Read the file again and copy the text exactly, without line numbers.",
    ErrorCode.BINARY_FILE: "Only text files can be edited; to make it one, use write_file with overwrite.",
    ErrorCode.INVALID_PATTERN: "Correct the pattern.",
    ErrorCode.INVALID_CONTENT: "Give other text.",
    ErrorCode.CONFLICT: "Read the file again, and decide by what it holds now.",
    ErrorCode.QUOTA_EXCEEDED: "Write less, or delete files that nobody needs.",
    ErrorCode.TIMEOUT: "Narrow the path or the pattern.",
    ErrorCode.UNSUPPORTED: "Reach your aim with other tools.",
    ErrorCode.BACKEND_ERROR: "Try once more; if it fails again, say so.",
}
_ADVISES: Final = re.compile(r"\boverwrite\b|never replaced|without (?:its )?line numbers", re.IGNORECASE)
"""Matches at an error that itself says what to do."""


def advised(error: str, code: ErrorCode | None, better: str = "") -> str:
    """Append to the text of an error what to do next: `better`, or the advice for its code."""
    error = escaped(error[:ERROR_CHARS])
    advice = better or ("" if code is None or _ADVISES.search(error) else _NEXT.get(code, ""))
    end = "" if error.endswith((".", "?")) else "."
    return f"{error}{end} {advice}" if advice else error


# --- names -----------------------------------------------------------------------------------------------------------

_MOST_NAMES: Final = 4_000
_MOST_COMPARED: Final = 50
_LONGEST_NAME: Final = 100


def closest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are most like `name`, the best first; names that look the same come before all others."""
    wanted = _folded(name)
    by_form: dict[str, str] = {}
    for each in islice(names, _MOST_NAMES):
        by_form.setdefault(_folded(each), each)
    if wanted in by_form:
        return [by_form[wanted]]
    likely = sorted(by_form, key=lambda form: -_shared(wanted, form))[:_MOST_COMPARED]
    stems = {form: _stem(form) for form in likely}
    near = get_close_matches(_stem(wanted), [*dict.fromkeys(stems.values())], most, 0.6)
    return [by_form[form] for stem in near for form in likely if stems[form] == stem][:most]


def _stem(name: str) -> str:
    """A name without its extension, which many names share."""
    return name.rpartition(".")[0] or name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name[:_LONGEST_NAME]).casefold()


def _shared(first: str, second: str) -> int:
    """How many characters both have in common at the start and at the end, and of those that they consist of."""
    return _prefix(first, second) + _prefix(first[::-1], second[::-1]) + len(set(first) & set(second))


def _prefix(first: str, second: str) -> int:
    return next((place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)


def suggestion(path: str, directory: str, found: Sequence[str]) -> str:
    """What to do about a missing path, by the paths in `directory`, the nearest one above it that exists.

    The paths of directories end in `/`. The text is empty if nothing there is like it.
    """
    here = {each.rstrip("/").rpartition("/")[2]: each for each in found}
    name, _, rest = paths.relative(path, directory).partition("/")
    if name in here:
        return f"{shown_path(paths.join(directory, name))} is a file." if rest else ""
    close = closest(name, here)
    if close:
        return f"Did you mean {' or '.join(_shown(here[each], name, each) for each in close)}?"
    if directory == "/" and rest:
        return _from_root(rest, here)
    return f"The nearest directory that exists is {shown_path(directory)}." if rest and directory != "/" else ""


def _shown(path: str, wanted: str, name: str) -> str:
    """The path; as a JSON string of ASCII if its name looks like the one that was given."""
    return dumps(path) if not path.isascii() and _folded(wanted) == _folded(name) else shown_path(path)


def _from_root(rest: str, here: Iterable[str]) -> str:
    """A suggestion for a path of the host, which has the path that is meant as its end."""
    known, names = set(here), rest.split("/")
    for place, name in enumerate(names):
        if name in known:
            meant = shown_path("/" + "/".join(names[place:]))
            return f"Paths start at the root of this filesystem: did you mean {meant}?"
    return "Paths start at the root of this filesystem: list it with ls."


# --- searches that found nothing -------------------------------------------------------------------------------------

_REGEX: Final = re.compile(
    r"\.[*+]|\\[.wWdDsSbB()\[\]|*+?]|\w\|\w|\(\?|\[\^?\w-\w|\([^()]*\|[^()]*\)|^\^|[\w)\]]\$$|\]\+"
)
"""Matches at what is common in regular expressions and rare in plain text."""
_WILD: Final = re.compile(r"[*?\[{]")


def no_line(pattern: str, path: str, glob: str, *, regex: bool, ignore_case: bool) -> str:
    """The note for a search without a match: where it looked, and what else to try."""
    files = f" in files {one_line(glob, 60)}" if glob else ""
    kind = "matches the expression" if regex else "contains the text"
    tried = f"[No line under {path}{files} {kind} {one_line(pattern, 100)}"
    if not regex and _REGEX.search(pattern):
        return f"{tried}, taken literally. For a regular expression set regex=true]"
    if not ignore_case and pattern.lower() != pattern.upper() and not pattern.startswith("(?i"):
        return f"{tried}. Case matters unless ignore_case is set]"
    return f"{tried}]"


def no_file(path: str, pattern: str) -> str:
    """The note for a glob that found nothing: where it looked, and what else to try."""
    name = pattern.rstrip("/").rpartition("/")[2]
    shown = one_line(name, 60)
    tried = f"[No file under {path} matches {one_line(pattern, 100)}"
    if pattern.endswith("/") or not _WILD.search(pattern):
        return f"{tried}. Only files are found; list a directory with ls, or try *{shown}*]"
    if pattern.strip("/").removeprefix("**/") == name:
        return f"{tried}. Names that start with a dot need a part of the pattern that does, as in .github/{shown}]"
    if name not in ("*", "**"):
        return f"{tried}. The pattern {shown} alone matches at any depth]"
    return f"{tried}]"
