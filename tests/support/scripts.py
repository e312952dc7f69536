"""Scripts that run in an interpreter of their own."""

import subprocess
import sys
from textwrap import dedent

__all__ = ["run_script"]


def run_script(code: str, *options: str) -> str:
    """The output of `code`, which must end in time, with status 0 and nothing on stderr."""
    command = [sys.executable, *options, "-c", dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if ended.returncode or ended.stderr:
        raise AssertionError(f"ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout
