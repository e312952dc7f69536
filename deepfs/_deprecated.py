"""Warnings about what still works, at the line that uses it."""

import sys
import warnings

__all__ = ["warn_deprecated"]


def warn_deprecated(message: str) -> None:
    """Emit a DeprecationWarning that points at the innermost line outside deepfs."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module == "deepfs" or module.startswith("deepfs.")
