"""Runs programs that use deepfs as another account, for what holds for ordinary users and not for root."""

import os
import shutil
import subprocess
import sys
from typing import Final

__all__ = ["ACCOUNTS", "IMPORTS", "ordinary_interpreter", "output_as"]

ACCOUNTS: Final = ("root", "nobody") if os.geteuid() == 0 else ("this account",)
"""The accounts that these tests can run as."""

_NOBODY: Final = 65534

_BECOME: Final = f"""
import os
os.setgroups([])
os.setresgid({_NOBODY}, {_NOBODY}, {_NOBODY})
os.setresuid({_NOBODY}, {_NOBODY}, {_NOBODY})
"""


IMPORTS: Final = """
import json, os, signal, socket, sys
import anyio, anyio._backends._asyncio
from deepfs import process
from deepfs.disk.usage import disk_use
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, Limits, private_devices
from deepfs.sandboxes.landlock import LandlockSandbox
from deepfs.sandboxes.network import AllowedHosts
from deepfs.threads.deadline import Deadline
anyio.run(process.capture, process.Command(["/bin/true"]), 1)
"""
"""What programs with a sandbox import, and what commands import when the first of them runs."""


def ordinary_interpreter() -> str | None:
    """An interpreter that every account can run; None if there is none. That of these tests may be only for root."""
    return shutil.which("python3", path=os.defpath) if os.geteuid() == 0 else sys.executable


def output_as(account: str, program: str, *arguments: str, imports: str = IMPORTS) -> str:
    """What a Python program prints.

    Args:
        account: One of `ACCOUNTS`.
        program: The source of the program.
        arguments: The arguments of the program.
        imports: The imports of the program, which are done before the account changes, which may not reach
            the interpreter.

    Raises:
        subprocess.CalledProcessError: If the program fails.
    """
    source = imports + (_BECOME if account == "nobody" else "") + program
    done = subprocess.run([sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
