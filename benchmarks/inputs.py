"""Inputs: the sources of a Django release, and generated trees."""

import hashlib
import os
import random
import shutil
import string
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

__all__ = [
    "DJANGO",
    "cache",
    "django",
    "flat_files",
    "huge_file",
    "python_files",
    "random_texts",
    "scratch",
    "write_tree",
]

DJANGO: Final = "Django 5.2"
_REQUIREMENT: Final = "django==5.2"
_SHA256: Final = "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"


# --- Django ----------------------------------------------------------------------------------------------------------


def cache() -> Path:
    """The directory that keeps inputs between runs; not in a checkout, whose ignore files ripgrep would honour."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base, "deepfs-benchmarks")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def django() -> Path:
    """The unpacked source distribution of Django; the first call downloads it from the package index."""
    unpacked = cache() / _REQUIREMENT
    if not unpacked.exists():
        with scratch() as directory:
            _unpack(_download(directory), directory / "unpacked").rename(unpacked)
    return unpacked


def _download(directory: Path) -> Path:
    options = ("--quiet", "--no-binary", ":all:", "--no-deps", "--dest", str(directory))
    subprocess.run([sys.executable, "-m", "pip", "download", *options, _REQUIREMENT], check=True)
    [archive] = directory.glob("*.tar.gz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
        raise ValueError(f"{archive.name} is not the release of {DJANGO} that these measurements are about")
    return archive


def _unpack(archive: Path, directory: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    [top] = directory.iterdir()
    return top


def python_files() -> dict[str, str]:
    """The texts of Django's Python files by path (`"/django/…"`), without files and directories with dot-names."""
    root = django()
    found = {path.relative_to(root): path for path in sorted(root.rglob("*.py"))}
    return {
        f"/{name}": path.read_text(encoding="utf-8")
        for name, path in found.items()
        if not any(part.startswith(".") for part in name.parts)
    }


# --- generated inputs ------------------------------------------------------------------------------------------------


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory on a real disk; the system's temporary directory may lie in memory."""
    with TemporaryDirectory(dir=cache(), prefix="scratch-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def flat_files(count: int, needles: int = 10) -> dict[str, str]:
    """`count` small files, 100 in each directory; `needles` of them, evenly spread, contain the word `needle`."""
    filler = "".join(f"line {number} of a small file\n" for number in range(20))
    every = count // needles
    return {
        f"/d{number // 100:04}/f{number % 100:02}.txt": filler + ("a needle here\n" if number % every == 0 else "")
        for number in range(count)
    }


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write the files below `root`."""
    for directory in {path.rpartition("/")[0] for path in files}:
        (root / directory[1:]).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (root / path[1:]).write_text(text, encoding="utf-8")
    return root


def random_texts(count: int, size: int) -> list[str]:
    """Texts of random words, of `size` characters each: a database compresses them about as well as prose."""
    chosen = random.Random(0)
    words = ["".join(chosen.choices(string.ascii_lowercase, k=chosen.randint(2, 10))) for _ in range(5_000)]
    return [" ".join(chosen.choices(words, k=size // 3))[:size] for _ in range(count)]


def huge_file(path: Path, size: int) -> int:
    """Write a text file of about `size` bytes with lines numbered from 0; return the number of lines."""
    block = 10_000
    line = len(_numbered(0))
    if shutil.disk_usage(path.parent).free < 2 * size:
        raise OSError(f"the measurement needs {2 * size / 1e9:.1f} GB of free disk at {path.parent}")
    with path.open("w", encoding="ascii") as file:
        for start in range(0, size // line, block):
            file.write("".join(_numbered(number) for number in range(start, start + block)))
    return -(-(size // line) // block) * block


def _numbered(number: int) -> str:
    return f"{number:010} the quick brown fox jumps over the lazy dog and runs on and on\n"
