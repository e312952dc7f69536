"""Deprecation warnings that point at the line of the user's code."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["already_warned", "warn_deprecated"]

_issued_risks: ContextVar[set[str] | None] = ContextVar("deepfs_issued_risks", default=None)


def warn_deprecated(message: str, *, is_risk: bool = False) -> None:
    """Emit a DeprecationWarning that points at the innermost line outside deepfs.

    `is_risk` says that the warning is about files that a wrong user may see, and not just about a name.
    """
    issued = _issued_risks.get()
    if issued is not None and (not is_risk or message in issued):
        return
    if issued is not None:
        issued.add(message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("deepfs."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


@contextmanager
def already_warned(issued: set[str]) -> Iterator[None]:
    """Issue no deprecation warnings in this context, except each warning about a risk once.

    Use it for calls of code, such as a backend factory, whose deprecation was already warned about. `issued` is the set
    of warnings about risks that were issued; pass the same set to later calls.
    """
    token = _issued_risks.set(issued)
    try:
        yield
    finally:
        _issued_risks.reset(token)
