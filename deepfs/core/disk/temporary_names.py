"""The names of unfinished files: hidden from every listing, and no path of a caller may hold one."""

import secrets

__all__ = ["PREFIX", "is_temporary", "temporary_name"]

PREFIX = ".~deepfs-"
_LENGTH = len(PREFIX) + 16


def temporary_name() -> str:
    """A name that nothing else has."""
    return PREFIX + secrets.token_hex(8)


def is_temporary(name: str) -> bool:
    """Whether `name` is one that an unfinished write, or one that was killed, has left."""
    return name.startswith(PREFIX) and len(name) == _LENGTH
