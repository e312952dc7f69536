"""System calls that a program in a sandbox makes by their numbers, and tells how they ended."""

import os
from collections.abc import Sequence
from typing import Final

from deepfs.sandboxes.seccomp import ARCHITECTURES

__all__ = ["CALLED", "NUMBERS", "attempts"]

NUMBERS: Final = ARCHITECTURES[os.uname().machine].numbers
"""The numbers of system calls on this machine, by name."""

CALLED: Final = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
def called(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    return ctypes.get_errno() if result < 0 else 0
"""
"""A Python function that makes a system call, and returns its errno, or 0."""


def attempts(calls: Sequence[tuple[str, str]]) -> str:
    """A program that makes system calls, and prints the number of the error of each, or 0.

    Args:
        calls: The names of the calls, with their arguments, among which `file` is a descriptor of the new file `f`.
    """
    lines = [f"called({NUMBERS[name]}, {arguments})" for name, arguments in calls]
    return f"{CALLED}\nopened = open('f', 'w'); file = opened.fileno()\nprint(json.dumps([{', '.join(lines)}]))"
