"""System calls that a program in a sandbox makes by their numbers, and tells how they ended."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from deepfs.sandboxes.seccomp import ARCHITECTURES, program
from support.bpf import decision

__all__ = ["CALLED", "EVERY_CALL", "NUMBERS", "attempts", "wrongly_allowed"]

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


_CALLS = 600
"""More than any architecture has."""
EVERY_CALL: Final = f"""
{CALLED}
import os, signal
def tried(number):
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        os.close(2)  # After `vfork` two processes share a stack, which the C library may complain of.
        signal.alarm(1)
        os.write(theirs, called(number, *[ctypes.c_long(-1)] * 6).to_bytes(2, "little"))
        os._exit(0)
    os.close(theirs)
    found = os.read(ours, 2)
    os.close(ours)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return int.from_bytes(found, "little") if found else None
print(json.dumps([tried(number) for number in range({_CALLS})]))
"""
"""A program that makes every system call, each in a process of its own, and prints how each ended.

All arguments are -1. That is the number of an error, 0, or null if the process did not come back from the call.
"""


def wrongly_allowed(found: Sequence[int | None], **options: bool) -> Mapping[int, tuple[int | None, int]]:
    """The calls that ended otherwise than the filter says, of those that it refuses: what they ended with, and should.

    Args:
        found: What `EVERY_CALL` printed.
        options: The options of the filter.
    """
    machine = os.uname().machine
    assert len(found) == _CALLS
    decided = [
        decision(program(machine, **options), ARCHITECTURES[machine].audit, number, [-1] * 6)
        for number in range(_CALLS)
    ]
    refused = {number: outcome & 0xFFFF for number, outcome in enumerate(decided) if outcome >> 16 == 0x5}
    refused.pop(NUMBERS.get("uprobe", -1), None)  # The kernel filters no calls of its own probes.
    return {number: (found[number], error) for number, error in refused.items() if found[number] != error}
