"""Linux's own way to open a path of many names in one call, which refuses every link on the way.

After openat2(2): `struct open_how` is three 64-bit numbers (flags, mode, resolve), and the number of the system call is
the same on every architecture that CPython supports.
"""

import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["open_unlinked"]

_OPENAT2 = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08
_HOW_BYTES = 24
_NOWHERE = -1  # Paths are then absolute.

_Call = Callable[[int, str, bytes], int | None]


def open_unlinked(path: str, flags: int, beneath: int | None = None) -> int | None:
    """Open the absolute `path` of the host where no name in it is a link.

    With `beneath` it is relative to that open directory and must not lead out. None where it cannot be opened like
    that, or this system cannot do it; opening name by name then tells why.
    """
    call = _system_call()
    if call is None:
        return None
    if beneath is None:
        return call(_NOWHERE, path, _how(flags, _NO_SYMLINKS))
    return call(beneath, path, _how(flags, _NO_SYMLINKS | _BENEATH))


@cache
def _how(flags: int, resolve: int) -> bytes:
    return struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)


@cache
def _system_call() -> _Call | None:
    """The system call by directory, path and how; None where there is none."""
    if sys.platform != "linux":
        return None
    # Imported late: it takes ten milliseconds.
    import ctypes

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    syscall.restype = ctypes.c_long

    def call(directory: int, path: str, how: bytes) -> int | None:
        descriptor: int = syscall(_OPENAT2, directory, os.fsencode(path), how, _HOW_BYTES)
        return None if descriptor < 0 else descriptor

    is_known = call(_NOWHERE, ".", _how(os.O_RDONLY, 0)) is None and ctypes.get_errno() == errno.EBADF
    return call if is_known else None
