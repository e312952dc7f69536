"""Trees to copy by the command line, and what is at a place afterwards."""

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from deepfs.cli.app import app

__all__ = ["HOSTILE", "Ran", "command", "contents", "fill", "tree"]

HOSTILE: dict[str, bytes] = {
    "crlf.txt": b"one\r\ntwo\r\n",
    "bom.txt": b"\xef\xbb\xbfone\n",
    "latin-1.txt": "Zoë\n".encode("latin-1"),
    "nul.txt": b"a\0b",
    "empty": b"",
    "no-end": b"x",
    "a/b/c/deep.py": b"pass\n",
    "a/pixel.png": b"\x89PNG\r\n\x1a\n\0\xff",
    "name with spaces": b"1",
    "-rf": b"2",
    "line\nbreak": b"3",
    "\x1b[31mred": b"4",
    "ünïcode ☃": b"5",
    ".hidden": b"6",
    "large.bin": bytes(range(256)) * 40_000,
}
"""Files that a careless copy changes or loses; the last is streamed."""


class Ran(NamedTuple):
    status: int
    out: str
    err: str


def command(*arguments: str | Path, **options: Any) -> Ran:
    """Run a command of `deepfs` in this process."""
    result = CliRunner(catch_exceptions=False).invoke(app, [*map(str, arguments)], prog_name="deepfs", **options)
    return Ran(result.exit_code, result.stdout, result.stderr)


def fill(root: Path, files: dict[str, bytes]) -> Path:
    """Write files beneath a directory."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def contents(root: Path) -> dict[str, bytes]:
    """The files beneath a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def tree(root: Path) -> dict[str, object]:
    """All that is beneath a directory: contents of files with their modes, modes of directories, links."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name, status = str(path.relative_to(root)), path.lstat()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = stat.S_IMODE(status.st_mode)
        else:
            found[name] = (stat.S_IMODE(status.st_mode), path.read_bytes())
    return found
