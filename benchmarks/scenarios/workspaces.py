"""Workspaces: what a fork costs, attempts of several agents at one tree, and reads and searches through a workspace."""

import subprocess
import time
import tracemalloc
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks import inputs
from benchmarks.bench import Bench, Contender, Timed
from deepfs.backends import FilesystemBackend, MemoryBackend
from deepfs.workspaces import OverlayBackend, fork

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPTS: Final = 8
_EDITED: Final = 20
_READ: Final = 50
_FORKS: Final = 1_000


async def workspaces(bench: Bench) -> None:
    """Workspaces: a copy of a tree that costs nothing."""
    sizes = (10, 1_000) if bench.quick else (10, 100_000)
    for size in sizes:
        below = MemoryBackend()
        await below.aupload_files([(path, text.encode()) for path, text in inputs.flat_files(size).items()])
        _fork(bench, below, size)
    files = inputs.flat_files(500 if bench.quick else 10_000)
    await _attempt(bench, files)
    with inputs.scratch() as directory:
        tree = FilesystemBackend(inputs.write_tree(directory / "tree", files))
        await _look(bench, tree, [*files])


def _fork(bench: Bench, below: MemoryBackend, size: int) -> None:
    """Set bars for the time and memory of a fork."""
    fork(below)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        made = [fork(below) for _ in range(_FORKS)]
        times.append((time.perf_counter() - start) / _FORKS * 1e6)
        del made
    bench.at_most(f"a fork of {size:,} files", 50, times, "µs")
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    made = [fork(below) for _ in range(_FORKS)]
    taken = (tracemalloc.get_traced_memory()[0] - before) / len(made) / 1_000
    tracemalloc.stop()
    bench.at_most(f"the memory of a fork of {size:,} files", 5, [taken], "kB")


async def _attempt(bench: Bench, files: dict[str, str]) -> None:
    """Race eight attempts at one tree, of which the last is merged, beside worktrees of git."""
    chosen = sorted(files)
    edited = {number: chosen[number * _EDITED : (number + 1) * _EDITED] for number in range(_ATTEMPTS)}
    read = chosen[-_READ:]

    async def by_workspaces() -> Timed:
        with TemporaryDirectory() as directory:
            below = FilesystemBackend(inputs.write_tree(Path(directory) / "tree", files))
            start = time.perf_counter()
            for number in range(_ATTEMPTS):
                workspace = fork(below)
                for path in edited[number]:
                    (await workspace.awrite(path, f"attempt {number}\n", overwrite=True)).unwrap()
                for path in read:
                    (await workspace.aread(path)).unwrap()
                assert len((await workspace.agrep("attempt")).matches or ()) == _EDITED
            assert (await workspace.amerge()).ok
            return Timed(time.perf_counter() - start, _read_all(Path(directory) / "tree", chosen))

    def by_git() -> Timed:
        with TemporaryDirectory() as directory:
            root = Path(directory) / "tree"
            inputs.write_tree(root, files)
            git = partial(_git, root)
            for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
                git(*command)
            start = time.perf_counter()
            for number in range(_ATTEMPTS):
                tree = Path(directory) / f"attempt-{number}"
                git("worktree", "add", "-q", "-b", f"attempt-{number}", str(tree))
                for path in edited[number]:
                    (tree / path[1:]).write_text(f"attempt {number}\n")
                for path in read:
                    (tree / path[1:]).read_text()
                found = subprocess.run(["git", "-C", tree, "grep", "-n", "attempt"], capture_output=True, check=True)
                assert found.stdout.count(b"\n") == _EDITED
            _git(tree, "commit", "-qam", "attempt")
            git("merge", "-q", f"attempt-{_ATTEMPTS - 1}")
            return Timed(time.perf_counter() - start, _read_all(root, chosen))

    contenders = [
        Contender("deepfs", "fork(tree), …, await workspace.amerge()", by_workspaces, rows=_rows),
        Contender("git", "git worktree add, …, git merge", by_git, rows=_rows),
    ]
    await bench.race(f"{_ATTEMPTS} attempts over {len(files):,} files", contenders, "files", rounds=3)


def _rows(answer: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(answer.items())


def _read_all(root: Path, chosen: list[str]) -> dict[str, str]:
    return {path: (root / path[1:]).read_text() for path in chosen}


def _git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@example.com", "-c", "gc.auto=0"]
    subprocess.run(["git", "-C", root, *who, *arguments], check=True, capture_output=True)


async def _look(bench: Bench, below: FilesystemBackend, chosen: list[str]) -> None:
    """Race reads and searches through workspaces with entries against the tree itself."""
    stacked: Any = below
    for _ in range(10):
        stacked = OverlayBackend(stacked)
    views: dict[str, Any] = {"deepfs, the tree": below}
    for entries in (0, 10, 1_000):
        views[f"deepfs, {entries:,} changed"] = workspace = fork(below)
        for path in chosen[: min(entries, len(chosen) // 2)]:
            [download] = await below.adownload_files([path])
            await workspace.aupload_files([(path, download.unwrap())])
    views["deepfs, a stack of ten"] = stacked
    read = chosen[-100:]

    async def read_each(backend: Any) -> list[Any]:
        return [(path, (await backend.aread(path)).unwrap().content) for path in read]

    async def search(backend: Any) -> list[Any]:
        return [(match.path, match.line) for match in (await backend.agrep("needle")).unwrap()]

    async def find(backend: Any) -> list[Any]:
        return [info.path for info in (await backend.aglob("**/*.txt")).unwrap()]

    work: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "reads of 100 files": ("100× aread(path)", read_each),
        "grep": ('agrep("needle")', search),
        "glob": ('aglob("**/*.txt")', find),
    }
    for name, (call, run) in work.items():
        contenders = [Contender(view, call, partial(run, backend), rows=list) for view, backend in views.items()]
        await bench.race(f"{name} through a workspace of {len(chosen):,} files", contenders, "rows", rounds=5)
