"""Warnings about what still works, at the line that uses it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["already_warned", "warn_deprecated"]

_silent: ContextVar[bool] = ContextVar("deepfs_silent", default=False)


def warn_deprecated(message: str) -> None:
    """Emit a DeprecationWarning that points at the innermost line outside deepfs."""
    if _silent.get():
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


@contextmanager
def already_warned() -> Iterator[None]:
    """Code of a user that was warned about as a whole is not warned about again, in its parts, at each call."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def _is_ours(module: str) -> bool:
    return module == "deepfs" or module.startswith("deepfs.")
