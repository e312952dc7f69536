"""ripgrep, asked for one thing only: which files of a directory hold a literal text, and which it did not look at.

The bytes of every file are searched as they are: no encoding is guessed, nothing is taken for binary. What ripgrep
leaves out of its own accord (dot-names, links, large files, ignored files) it says only in its log; a ripgrep whose log
is not understood is not used. None of its output is shown to anybody.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryDirectory

from deepfs.core.cancellation import Cancellation

__all__ = ["MAX_NEEDLE", "Ripgrep", "RipgrepError", "Run", "find_ripgrep"]

MAX_NEEDLE = 4096
"""The longest text that ripgrep is asked for, in bytes; it must fit the pipe by which it is passed."""

_OPTIONS = (
    "--no-config --debug --color=never --sort=none --files-with-matches --null "
    "--fixed-strings --case-sensitive --text --encoding=none --no-mmap --no-follow --no-messages-off"
)
_OPTIONS = (
    "--no-config",
    "--debug",
    "--color=never",
    "--files-with-matches",
    "--null",
    "--fixed-strings",
    "--case-sensitive",
    "--text",
    "--encoding=none",
    "--no-mmap",
)
_NO_IGNORE = ("--no-ignore",)
_GITIGNORE = (
    "--no-ignore-dot",
    "--no-ignore-exclude",
    "--no-ignore-global",
    "--no-ignore-parent",
    "--no-require-git",
)

_CHUNK = 64 * 1024
_MAX_LOG = 1024 * 1024
"""Bytes of log, which are slow to come by: what is left out is as much as what is searched."""
_LOOK_UP_S = 0.05

# Both "rg: DEBUG|" and, up to version 13, "DEBUG|".
_is_log = re.compile(rb"(?:rg: )?DEBUG\|").match
_IGNORING = b": ignoring "
_REASON = re.compile(rb": (?:Ignore\(IgnoreMatch\(|\d+ bytes\Z|failed to pass \w+ filter: )")
_failed = re.compile(rb"(?:rg: )?\./(.*): [^:/]+ \(os error \d+\)").fullmatch


class RipgrepError(Exception):
    """ripgrep could not be run, or what it said is not understood; what it said until then does not count."""
