"""What the arguments of an operation must be. A wrong type is an error of the program: a TypeError that names it."""

import sys
from collections.abc import Sequence

__all__ = ["bytes_of", "check_integer", "check_number", "check_paths", "check_string", "check_uploads", "seconds_of"]


def check_string(name: str, given: object) -> None:
    """Raise TypeError unless `given` is a string."""
    if not isinstance(given, str):
        raise TypeError(f"{name} must be a string, not {type(given).__name__}")


def check_integer(name: str, given: object) -> None:
    """Raise TypeError unless `given` is an integer, of whatever type."""
    if not hasattr(given, "__index__"):
        raise TypeError(f"{name} must be an integer, not {given!r}")


def check_number(name: str, given: float, *, positive: bool = True) -> None:
    """Raise TypeError unless `given` is a number, ValueError unless it is over 0, or from 0 where not `positive`."""
    if not isinstance(given, int | float):
        raise TypeError(f"{name} must be a number, not {given!r}")
    if positive and not given > 0:
        raise ValueError(f"{name} must be positive, not {given}")
    if not given >= 0:
        raise ValueError(f"{name} must not be negative, not {given}")


def bytes_of(max_file_size_mb: float) -> int:
    """The size in bytes, which may be infinite; TypeError and ValueError for what is none."""
    check_number("max_file_size_mb", max_file_size_mb, positive=False)
    return int(min(max_file_size_mb * 1024 * 1024, sys.maxsize))


def seconds_of(timeout: float | None, default: float) -> float:
    """The seconds that are given, or else `default`; TypeError and ValueError for what is no positive number."""
    if timeout is None:
        return default
    check_number("timeout", timeout)
    return timeout


def check_paths(given: Sequence[object]) -> None:
    """Raise TypeError unless `given` is a list of paths to download."""
    if isinstance(given, str | bytes):
        raise TypeError(f"paths must be a list of paths, not the {type(given).__name__} {given!r}")


def check_uploads(given: Sequence[object]) -> None:
    """Raise TypeError unless `given` is a list of paths, each with its bytes."""
    for item in given:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"files must be a list of pairs of a path and bytes, and {item!r:.100} is none")
        path, content = item
        check_string("path", path)
        if not isinstance(content, bytes | bytearray | memoryview):
            raise TypeError(f"the content of {path!r:.100} must be bytes, not {type(content).__name__}")
