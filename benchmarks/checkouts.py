"""Checks out the package as it is in a commit or a directory."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "CheckoutError", "check_out", "commits"]

ROOT: Final = Path(__file__).parents[1]
_PACKAGE: Final = "deepfs"


class CheckoutError(Exception):
    """The given name is not a commit."""


def commits(given: list[str]) -> tuple[str, str]:
    """The earlier and the later commit of `--compare`: `REV` (and this working tree), `REV..REV`, or two names."""
    if len(given) == 2:
        return given[0], given[1]
    if len(given) > 2:
        raise CheckoutError("--compare takes two commits at most")
    [name] = given
    if Path(name).is_dir() or ".." not in name:
        return name, str(ROOT)
    before, _, after = name.partition("..")
    return before or "HEAD", after or "HEAD"


def check_out(name: str, directory: Path) -> Path:
    """Put the package of a commit of this repository, or of another directory, into `directory`, and return this."""
    directory.mkdir()
    if Path(name, _PACKAGE).is_dir():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(name, _PACKAGE), directory / _PACKAGE, ignore=ignore, symlinks=True)
    else:
        _unpack(_archive(name), directory)
    return directory


def _archive(name: str) -> bytes:
    command = ["git", "archive", "--format=tar", f"{name}^{{commit}}", _PACKAGE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode().strip()
        raise CheckoutError(f"{name} is neither a commit nor a directory with the package: {reason}")
    return done.stdout


def _unpack(archive: bytes, directory: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        # The filter came with Python 3.11.4. The archive is from git.
        tar.extractall(directory, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
