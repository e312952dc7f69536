"""The same reads on the file system of the inputs, on tmpfs, and on overlayfs, as in a container.

`python -m benchmarks.scenarios.filesystems NAME ROOT [--quick]` runs the races of one file system, and prints them as
JSON: the overlay exists only in a mount namespace, and thus only for the process in it.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.machine import file_system
from benchmarks.readers import concurrent, readers, sequential
from benchmarks.record import Race

TITLE: Final = "Reads on several file systems"

_SHARED_MEMORY: Final = Path("/dev/shm")
_OVERLAY: Final = """
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" || exit 77
shift 2
exec "$@"
"""
"""Mounts an overlay, and runs a command; 77 if the machine forbids the mount."""


async def measure(bench: Bench) -> None:
    """Race reads on each file system; a note tells which one the machine has not."""
    root = inputs.django()
    await _race(bench, "disk", root)
    bench.note(f"The file system of the disk is {file_system(root)}.")
    with _in_memory() as copy:
        if copy is None:
            bench.note(f"tmpfs: not measured, since {_SHARED_MEMORY} is not a tmpfs here.")
        else:
            await _race(bench, "tmpfs", copy)
    _race_on_overlay(bench, root)
    bench.note("On the overlay, the files lie in the lower layer, as those of an image do.")


async def _race(bench: Bench, name: str, root: Path) -> None:
    """Race reads below `root`, all at once and one after another."""
    paths = list(inputs.python_files())[: 512 if bench.quick else None]
    ways = readers(str(root))[:2]
    for work, contenders in (("concurrent", concurrent), ("sequential", sequential)):
        race = f"{name}: {work} reads"
        await bench.race(race, contenders(ways, str(root), paths), noun="files", rounds=9, seconds=4)


# --- tmpfs -----------------------------------------------------------------------------------------------------------


@contextmanager
def _in_memory() -> Iterator[Path | None]:
    """A copy of the files on tmpfs; None if there is none."""
    if not (_SHARED_MEMORY.is_dir() and file_system(_SHARED_MEMORY) == "tmpfs"):
        yield None
        return
    with TemporaryDirectory(dir=_SHARED_MEMORY, prefix="deepfs-benchmarks-") as name:
        yield inputs.write_tree(Path(name), inputs.python_files())


# --- overlayfs -------------------------------------------------------------------------------------------------------


def _race_on_overlay(bench: Bench, root: Path) -> None:
    if bench.is_paired:
        return  # Its races run in a process of their own, which cannot take turns with that of another commit.
    with inputs.scratch() as layers:
        for name in ("upper", "work", "merged"):
            (layers / name).mkdir()
        reason = _refusal(root, layers)
        if reason:
            bench.note(f"overlayfs: not measured, since this machine does not let it be mounted: {reason}")
            return
        command = [sys.executable, "-m", __name__, "overlayfs", str(layers / "merged"), *["--quick"] * bench.quick]
        done = _on_overlay(root, layers, command)
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace"))
        bench.record.races += msgspec.json.decode(done.stdout, type=list[Race])


def _refusal(root: Path, layers: Path) -> str:
    """Why the overlay cannot be mounted; empty if it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    done = _on_overlay(root, layers, ["true"])
    return "" if done.returncode == 0 else done.stderr.decode(errors="replace").strip().split(": ")[-1]


def _on_overlay(root: Path, layers: Path, command: list[str]) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in a namespace where `root` is the lower layer of `layers/merged`."""
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", _OVERLAY, "sh", str(root), str(layers)]
    return subprocess.run([*namespace, *command], capture_output=True, check=False)


def main() -> None:
    """Run the races of one file system, and print them."""
    name, root, *options = sys.argv[1:]
    bench = Bench("filesystems", TITLE, quick="--quick" in options)
    asyncio.run(_race(bench, name, Path(root)))
    sys.stdout.buffer.write(msgspec.json.encode(bench.record.races))


if __name__ == "__main__":
    main()
