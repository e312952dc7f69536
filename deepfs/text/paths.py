"""Paths of the contract: absolute, POSIX, normalised once.

`normalize` takes what a caller wrote; every other function takes and returns normalised paths and checks nothing.
Names are compared as they are: case matters, and no Unicode normalisation takes place.
"""

import os
import re
import sys
from collections.abc import Collection, Container, Iterable
from typing import Any

from deepfs.errors import InvalidPathError
from deepfs.text.arguments import check_string

MAX_NAME_BYTES = 255
"""The longest name of a file or directory, in UTF-8."""
MAX_PATH_BYTES = 4096
"""The longest normalised path, in UTF-8."""

# Most paths are normal already, and one scan proves it. The scan is stricter than the rules so that it stays short:
# names of 64 characters in a path of 1,000 fit their limits at four bytes a character, and a name that starts with two
# dots or holds a backslash or a colon takes the slow path.
_is_plainly_normal = re.compile(
    r"(?=.{1,1000}\Z)(?:/|(?:/(?:[^/\\:.\0]|\.[^/\\:.\0])[^/\\:\0]{0,62}+)++)", re.DOTALL
).fullmatch


def normalize(path: str) -> str:
    """The normal form of `path`: absolute, without trailing slash; the root is `/`.

    Runs of `/` and `.` segments collapse, a missing leading `/` is added, so the empty path is the root. A backslash
    inside a name is a character like any other, except that no `..` may stand beside it.

    Raises `InvalidPathError`, with the reason, for a `..` segment, a leading `~`, a NUL, a lone surrogate, a Windows
    path (drive letter, also behind a slash; UNC; a leading backslash), a name over 255 bytes or a path over 4,096;
    `TypeError` if `path` is not a string.
    """
    if type(path) is not str:
        check_string("path", path)
    if _is_plainly_normal(path) and (path.isascii() or not re.search("[\ud800-\udfff]", path)):
        return path
    names = [segment for segment in path.split("/") if segment not in ("", ".")]
    normal = "/" + "/".join(names)
    objection = _objection(path, normal) or _length_objection(normal, names)
    if objection:
        raise InvalidPathError(path, objection)
    return normal


def is_normal(path: str) -> bool:
    """Whether `path` is the normal form of a path."""
    try:
        return normalize(path) == path
    except InvalidPathError:
        return False


def are_plainly_normal(given: Collection[Any]) -> bool:
    """Whether all `given` are certainly normal paths other than the root. One scan checks them all at once."""
    try:
        joined = "\0".join(("", *given, ""))
    except TypeError:
        return False
    return (
        joined.count("\0/") == joined.count("\0") - 1 == len(given)
        and joined.isascii()
        and max(map(len, given), default=0) <= MAX_NAME_BYTES
        and not any(part in joined for part in _UNPLAIN)
    )


_UNPLAIN = ("//", "/\0", "/./", "/.\0", "..", "\\", ":")
"""Several paths joined by NUL contain one of these if a path is not normal; some normal paths do, too."""


_WINDOWS = r"\\|[A-Za-z]:|/[A-Za-z]:(?:[/\\]|\Z)"


def _objection(path: str, normal: str) -> str | None:
    if path.startswith("~"):
        return "'~' is not expanded; start the path with '/'"
    if re.match(_WINDOWS, path) or re.match(_WINDOWS, normal):
        return "Windows paths are not supported; start the path with '/' and separate names with '/'"
    if re.search(r"(?:\A|[/\\])\.\.(?:[/\\]|\Z)", path):
        return "'..' is not allowed; name the path from '/'"
    if "\0" in path:
        return "it holds a NUL character"
    return None


def _length_objection(normal: str, names: list[str]) -> str | None:
    try:
        size = len(normal.encode())
    except UnicodeEncodeError:
        return "it holds a lone surrogate, which is not text"
    if size > MAX_PATH_BYTES:
        return f"it is {size:,} bytes long, the limit is {MAX_PATH_BYTES:,}"
    if any(len(segment.encode()) > MAX_NAME_BYTES for segment in names):
        return f"a name in it is over {MAX_NAME_BYTES} bytes"
    return None


def parent(path: str) -> str:
    """The parent directory of `path`. The root is its own parent."""
    return path[: path.rindex("/")] or "/"


def name(path: str) -> str:
    """The last segment of `path`; empty for the root."""
    return path[path.rindex("/") + 1 :]


def ancestors(path: str) -> list[str]:
    """The directories above `path`, outermost first, without the root: `/a` and `/a/b` for `/a/b/c`."""
    found = []
    end = path.find("/", 1)
    while end > 0:
        found.append(path[:end])
        end = path.find("/", end + 1)
    return found


def is_beneath(path: str, directory: str) -> bool:
    """Whether `path` is under `directory`, at any depth. No path is beneath itself."""
    return path != "/" if directory == "/" else path.startswith(f"{directory}/")


def is_within(path: str, tops: Container[str]) -> bool:
    """Whether `path` is one of `tops`, or under one of them."""
    return path in tops or "/" in tops or any(directory in tops for directory in ancestors(path))


def join(directory: str, name: str) -> str:
    """The path of `name`, or of several names with `/` between them, under `directory`; undoes `relative`."""
    if not name:
        return directory
    return f"/{name}" if directory == "/" else f"{directory}/{name}"


def relative(path: str, directory: str) -> str:
    """`path` relative to `directory`, without a leading slash; empty if both are the same.

    Raises `ValueError` if `path` is neither `directory` nor beneath it.
    """
    if path == directory:
        return ""
    if not is_beneath(path, directory):
        raise ValueError(f"{path!r} is not beneath {directory!r}")
    return path[1:] if directory == "/" else path[len(directory) + 1 :]


def is_visible(relative: str) -> bool:
    """Whether no name in the relative path `relative` starts with a dot."""
    return not (relative.startswith(".") or "/." in relative)


def visible_in(relative_directory: str, names: Iterable[str]) -> list[str]:
    """The `names` in `relative_directory` on whose path no name starts with a dot; the directory may end in `/`."""
    return [name for name in names if name[0] != "."] if is_visible(relative_directory) else []


def host_path(path: str, root: str) -> str:
    """`path` as an absolute path of the host; a relative one starts at `root`. `..` removes the name before it."""
    check_string("path", path)
    if "\0" in path:
        raise InvalidPathError(path, "it holds a NUL character")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPathError(path, "it holds a lone surrogate, which is not text") from error
    # Making a relative root absolute takes a system call, which may not be made on an event loop.
    absolute = os.path.normpath(os.path.join(root if os.path.isabs(root) else os.path.abspath(root), path))
    return f"/{absolute.lstrip('/')}"


def end_of_prefix(prefix: str) -> str:
    """The first text behind all that begin with `prefix`, in the order of code points, which is that of UTF-8.

    The prefix begins with `/`; the text has no surrogates.
    """
    last = ord(prefix[-1]) + 1
    if last > sys.maxunicode:
        return end_of_prefix(prefix[:-1])
    return prefix[:-1] + chr(0xE000 if last == 0xD800 else last)
