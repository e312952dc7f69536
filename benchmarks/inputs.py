"""Inputs: the sources of a Django release, and generated trees; and how to make files cold."""

import hashlib
import os
import random
import string
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

DJANGO: Final = "Django 5.2"
_REQUIREMENT: Final = "django==5.2"
DROP: Final = Path("/proc/sys/vm/drop_caches")
_SHA256: Final = "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"


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
            options = ("--quiet", "--no-binary", ":all:", "--no-deps", "--dest", str(directory), _REQUIREMENT)
            subprocess.run([sys.executable, "-m", "pip", "download", *options], check=True)
            [archive] = directory.glob("*.tar.gz")
            if hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
                raise ValueError(f"{archive.name} is not the release of {DJANGO} that these measurements are about")
            with tarfile.open(archive) as tar:
                tar.extractall(directory / "unpacked", filter="data")
            [top] = (directory / "unpacked").iterdir()
            top.rename(unpacked)
    return unpacked


def python_files() -> dict[str, str]:
    """The texts of Django's Python files by path (`"/django/…"`), without files and directories with dot-names."""
    found = ((f"/{path.relative_to(django())}", path) for path in sorted(django().rglob("*.py")))
    return {name: path.read_text(encoding="utf-8") for name, path in found if "/." not in name}


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
    line = "{:010} the quick brown fox jumps over the lazy dog and runs on and on\n"
    count = size // len(line.format(0))
    with path.open("w", encoding="ascii") as file:
        file.writelines(line.format(number) for number in range(count))
    return count


def evicting(root: Path) -> Callable[[], None]:
    """What evicts each page of the files below `root` from memory. Their names and inodes may stay."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    os.sync()  # Pages that are not written yet cannot be evicted.

    def evict() -> None:
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    return evict


def evict_all() -> None:
    """Evict everything of every file from memory, its name and directory included."""
    os.sync()
    DROP.write_text("3")
