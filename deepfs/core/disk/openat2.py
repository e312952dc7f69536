"""Linux's own way to open a path of many names beneath a directory in one call, which refuses every link on the way.

After openat2(2): `struct open_how` is three 64-bit numbers (flags, mode, resolve), and the number of the system call is
the same on every architecture that CPython supports.
"""

import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import cache

__all__ = ["open_beneath"]

_OPENAT2 = 437
_NO_SYMLINKS, _BENEATH = 0x04, 0x08

_Call = Callable[[int, bytes, bytes], int]


def open_beneath(directory: int, path: str, flags: int) -> int | None:
    """Open `path`, relative to `directory`, where no name in it is a link or `..`.

    None where that fails, or this system cannot do it; opening name by name then tells why.
    """
    call = _system_call()
    if call is None:
        return None
    descriptor = call(directory, os.fsencode(path), _how(flags))
    return None if descriptor < 0 else descriptor


@cache
def _how(flags: int) -> bytes:
    return struct.pack("QQQ", flags | os.O_CLOEXEC, 0, _NO_SYMLINKS | _BENEATH)


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

    def call(directory: int, path: bytes, how: bytes) -> int:
        descriptor: int = syscall(_OPENAT2, directory, path, how, len(how))
        return descriptor

    probe = call(-1, b".", _how(os.O_RDONLY))
    is_known = probe < 0 and ctypes.get_errno() == errno.EBADF
    return call if is_known else None
