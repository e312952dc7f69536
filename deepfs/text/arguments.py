"""Checks of the arguments of operations. A wrong type is an error in the calling program: a TypeError that names it."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from operator import index
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from deepfs.types import ContentChange

T = TypeVar("T")


def check_installed(package: str, extra: str, needed_by: str) -> None:
    """Raise ModuleNotFoundError, which names the extra to install, if a package is not installed."""
    if sys.modules.get(package) is None and find_spec(package) is None:
        raise ModuleNotFoundError(f"{needed_by} needs {package}: pip install 'deepfs[{extra}]'", name=package)


def check_string(name: str, given: object) -> str:
    """Raise TypeError unless `given` is a string."""
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a string, not {type(given).__name__}")
    return given


def check_bool(name: str, given: object) -> None:
    """Raise TypeError unless `given` is True or False."""
    if not isinstance(given, bool):
        raise TypeError(f"{name} must be True or False, not {given!r:.100}")


def check_integer(name: str, given: object) -> None:
    """Raise TypeError unless `given` is an integer, of any integer type."""
    # On the type, as Python looks it up: the class `int` has the attribute, but is no integer.
    if not hasattr(type(given), "__index__"):
        raise TypeError(f"{name} must be an integer, not {given!r}")


def check_number(name: str, given: float, *, positive: bool = True) -> None:
    """Raise TypeError unless `given` is a number, ValueError unless it is over 0 (or 0, if `positive` is False)."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{name} must be a number, not {given!r}")
    if positive and not given > 0:
        raise ValueError(f"{name} must be positive, not {given}")
    if not given >= 0:
        raise ValueError(f"{name} must not be negative, not {given}")


MAX_CHUNK_BYTES: Final = 64 * 1024 * 1024


def chunk_bytes(chunk_size: int) -> int:
    """Return the size of a chunk, cut to `MAX_CHUNK_BYTES`. Raises TypeError or ValueError if it is not a size."""
    check_integer("chunk_size", chunk_size)
    size = index(chunk_size)
    check_number("chunk_size", size)
    return min(size, MAX_CHUNK_BYTES)


def check_directory(name: str, given: str | os.PathLike[str]) -> str:
    """Return the path of a directory of the host. Raises TypeError if `given` is no path."""
    found = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(found, str):
        raise TypeError(f"{name} must be a path, not {given!r:.100}")
    return found


def bytes_from_mb(max_file_size_mb: float) -> int:
    """Return the size in bytes; infinity becomes `sys.maxsize`. Raises TypeError or ValueError if it is not a size."""
    check_number("max_file_size_mb", max_file_size_mb, positive=False)
    return int(min(max_file_size_mb * 1024 * 1024, sys.maxsize))


def seconds_of(timeout: float | None, most: float) -> float:
    """Return `timeout`, but at most `most`, which None and 0 mean. Raises TypeError or ValueError if it is no time."""
    if timeout is None:
        return most
    check_number("timeout", timeout, positive=False)
    return min(timeout or most, most)


def path_list(given: Iterable[object]) -> list[str]:
    """Return the paths to download as a list. Raises TypeError for anything else."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"paths must be a list of paths, not the {type(given).__name__} {given!r:.100}")
    return [check_string("path", path) for path in given]


def upload_list(given: Iterable[object]) -> list[tuple[str, bytes]]:
    """Return the files to upload, each a path with its bytes, as a list. Raises TypeError for anything else."""
    if not isinstance(given, Iterable):
        raise TypeError(f"files must be a list of pairs of a path and bytes, not {given!r:.100}")
    return [_upload(item) for item in given]


def _upload(item: object) -> tuple[str, bytes]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"files must be a list of pairs of a path and bytes, and {item!r:.100} is none")
    path, content = item
    return check_string("path", path), check_bytes(f"the content of {path!r:.100}", content)


def change_list(given: Iterable[object]) -> list[ContentChange]:
    """Return the changes of files as a list. Raises TypeError for anything else."""
    if not isinstance(given, Iterable):
        raise TypeError(f"files must be a list of ContentChange, not {given!r:.100}")
    return [_content_change(item) for item in given]


def _content_change(item: object) -> ContentChange:
    if not isinstance(item, ContentChange):
        raise TypeError(f"files must be a list of ContentChange, and {item!r:.100} is none")
    check_string("path", item.path)
    check_bool("overwrite", item.overwrite)
    if item.if_match is not None:
        check_string("if_match", item.if_match)
    content: object = item.content
    if content is None or isinstance(content, bytes):
        return item
    return replace(item, content=check_bytes(f"the content of {item.path!r:.100}", content))


def check_bytes(name: str, given: object) -> bytes:
    """Return `given` as bytes, copied if it is mutable. Raises TypeError unless it is bytes-like."""
    if isinstance(given, bytes):
        return given
    if not isinstance(given, bytearray | memoryview):
        raise TypeError(f"{name} must be bytes, not {type(given).__name__}")
    return bytes(given)


def check_callables(name: str, given: Iterable[T]) -> list[T]:
    """Return `given` as a list. Raises TypeError unless every item is callable."""
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list of functions, not {given!r:.100}")
    return [check_callable(f"each of {name}", function) for function in given]


def check_callable(name: str, given: T) -> T:
    """Raise TypeError unless `given` is callable."""
    if not callable(given):
        raise TypeError(f"{name} must be a function, not {given!r:.100}")
    return given


def check_env(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the environment variables. Raises TypeError unless `given` maps strings to strings without NUL."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"env must be a mapping of strings, not {given!r:.100}")
    for name, value in (given or {}).items():
        check_string("a name in env", name)
        check_string(f"the value of {name!r:.100} in env", value)
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env cannot hold {name!r:.100}: a name is not empty and has no '=', and neither has NUL")
    return given or {}


# --- the arguments of operations ---

Check: TypeAlias = Callable[[str, Any], object]


def _optional(check: Check) -> Check:
    return lambda name, given: None if given is None else check(name, given)


CHECKS: Final[Mapping[Any, Check]] = {
    str: check_string,
    str | None: _optional(check_string),
    int: check_integer,
    int | None: _optional(check_integer),
    bool: check_bool,
    float | None: _optional(partial(check_number, positive=False)),
}
"""By the type of an argument, what raises TypeError or ValueError, naming it, unless a value is valid."""
