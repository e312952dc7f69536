"""Glob and grep of FilesystemBackend: files excluded by `ignore`, with and without ripgrep, cancelled at any time."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.search import disk as engines
from deepfs.search.request import GlobRequest
from deepfs.search.ripgrep import Ripgrep
from deepfs.types import GlobResult, GrepResult
from support.processes import children, started, working_threads

pytestmark = pytest.mark.anyio

FILES = ("main.py", "main.log", "node_modules/lib.py", "src/deep/a.py", "src/deep/a.log", ".github/a.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in FILES:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("needle\n")
    (root / ".gitignore").write_text("*.log\nnode_modules\n")
    (tmp_path / ".gitignore").write_text("*")
    return root


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree that is large enough for ripgrep to be used."""
    root = tmp_path / "large"
    for number in range(2 * engines.FEW):
        target = root / f"{number // 50:02}" / f"{number % 50:02}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("a needle\n" * 20)
    return root


def paths(result: GrepResult | GlobResult) -> list[str]:
    assert result.ok, result.error
    return list(dict.fromkeys(match.path for match in result.matches or ()))


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Poll `condition` in a worker thread until it is true."""

    def wait() -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    await anyio.to_thread.run_sync(wait)


# --- searches that are stuck ----------------------------------------------------------------------------------------


async def test_a_stuck_search_does_not_block_other_backends(tmp_path: Path, project: Path) -> None:
    free, stuck = threading.Event(), threading.Semaphore(0)

    def hidden(path: str, *, is_dir: bool) -> bool:
        stuck.release()
        return not free.wait(60)

    memory = MemoryBackend()
    await memory.aupload_files([(f"/{number}.txt", b"needle") for number in range(3000)])
    hung, other = FilesystemBackend(project), FilesystemBackend(tmp_path / "other")
    await other.awrite("/a.txt", "needle")
    try:
        async with anyio.create_task_group() as group:
            for start in ("/", "/src", "/node_modules"):
                group.start_soon(hung.arun, GlobRequest("**", start, hidden=hidden))
            for _ in range(2):
                await until(lambda: stuck.acquire(blocking=False))
            with anyio.fail_after(30):
                assert len(paths(await memory.agrep("needle"))) == 3000
                assert len(paths(await memory.aglob("*.txt"))) == 3000
                assert paths(await other.agrep("needle")) == paths(await other.aglob("*.txt")) == ["/a.txt"]
            free.set()
    finally:
        free.set()


# --- out of descriptors ----------------------------------------------------------------------------------------------

OUT_OF_DESCRIPTORS = """
import os, resource, sys
import anyio
from deepfs import FilesystemBackend
from deepfs.search import disk as engines

root, how, begins_with_ripgrep = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
engines.FEW = 2 if begins_with_ripgrep else engines.FEW
for number in range(5):
    os.makedirs(f"{root}/{number}/deep")
    os.mkdir(f"{root}/{number}/out")
    for name in ("deep/a.txt", "out/a.txt"):
        with open(f"{root}/{number}/{name}", "w") as file:
            file.write("needle")
    with open(f"{root}/{number}/.gitignore", "w") as file:
        file.write("out")
    os.symlink("deep/a.txt", f"{root}/{number}/link.txt")
    os.symlink("deep", f"{root}/{number}/links")

async def main():
    files = FilesystemBackend(root, ignore="git")
    calls = {
        "glob": lambda: files.aglob("*.txt"),
        "grep": lambda: files.agrep("needle"),
        "regex": lambda: files.agrep("n.*", regex=True),
        "ls": lambda: files.als("/0"),
    }
    look = calls[how]
    whole = await look()
    assert whole.ok and len(whole.entries if how == "ls" else whole.matches) == (5 if how == "ls" else 10), whole
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20,) * 2)
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    while held:
        for _ in range(2):
            found = await look()
            if found == whole:
                print("whole")
            elif found.error and found.code == "backend_error" and "Too many files are open" in found.error:
                print("told")
            else:
                print("SILENT", len(held), found)
        os.close(held.pop())

anyio.run(main)
"""


# Before 3.11.4, a `Popen` that runs out of file descriptors leaks those that it has opened.
WITH_RIPGREP = [False, True] if sys.version_info >= (3, 11, 4) else [False]


@pytest.mark.parametrize("begins_with_ripgrep", WITH_RIPGREP)
@pytest.mark.parametrize("how", ["glob", "grep", "regex", "ls"])
def test_a_search_out_of_descriptors_is_complete_or_an_error(
    tmp_path: Path, how: str, begins_with_ripgrep: bool
) -> None:
    with started(OUT_OF_DESCRIPTORS, tmp_path / "root", how, begins_with_ripgrep) as process:
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert set(output.splitlines()) == {"whole", "told"}, output
    assert output.splitlines()[-1] == "whole"


# --- ignore ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignore", ["git", ["*.log", "node_modules/"]], ids=str)
async def test_ignored_files_are_neither_globbed_nor_grepped(project: Path, ignore: Any) -> None:
    backend = FilesystemBackend(project, ignore=ignore)
    expected = ["/main.py", "/src/deep/a.py"]
    assert paths(await backend.aglob("**")) == expected
    assert paths(await backend.agrep("needle")) == expected
    assert paths(await backend.aglob("*", "/src")) == expected[1:]
    assert paths(await backend.agrep("needle", "/src", regex=True)) == expected[1:]
    assert paths(await backend.agrep("needle", glob=".github/*")) == ["/.github/a.py"]


async def test_with_host_paths_ignore_rules_are_relative_to_the_root_directory(project: Path) -> None:
    backend = FilesystemBackend(project, virtual_mode=False, ignore="git")
    expected = [f"{project}/main.py", f"{project}/src/deep/a.py"]
    assert paths(await backend.aglob("**")) == expected
    assert paths(await backend.agrep("needle", str(project / "src"))) == expected[1:]
    listing = FilesystemBackend(project / "src", virtual_mode=False, ignore=["/main.py", "a.*"])
    assert paths(await listing.aglob("**")) == []
    assert paths(await listing.agrep("needle", str(project))) == [
        f"{project}/main.log",
        f"{project}/node_modules/lib.py",
    ]


@pytest.mark.parametrize("ignore", ["hg", "node_modules"])
async def test_an_invalid_ignore_is_refused_at_construction(project: Path, ignore: Any) -> None:
    with pytest.raises(ValueError, match="ignore="):
        FilesystemBackend(project, ignore=ignore)


# --- with ripgrep and without ----------------------------------------------------------------------------------------


async def test_results_with_and_without_ripgrep_are_equal(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    find = engines.find_ripgrep
    monkeypatch.setattr(engines, "find_ripgrep", lambda: asked.append(None) or find())
    for options in ({}, {"context_lines": 1}, {"max_count": engines.FEW * 20 + 30}, {"path": "/07"}):
        plain = await FilesystemBackend(large, ripgrep=False).agrep("needle", **options)
        assert not asked
        helped = await FilesystemBackend(large).agrep("needle", **options)
        assert helped == plain
        assert bool(asked) == ("path" not in options)
        asked.clear()


# --- cancellation and deadlines ---------------------------------------------------------------------------------------


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a ripgrep that creates a file when it starts and then sleeps; return the path of the file."""
    program, begun = tmp_path / "rg", tmp_path / "begun"
    program.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(engines, "find_ripgrep", lambda: Ripgrep(str(program)))
    return begun


async def test_cancelling_a_grep_ends_its_ripgrep_at_once(large: Path, sleeping: Path) -> None:
    backend = FilesystemBackend(large)
    before = await anyio.to_thread.run_sync(children)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.agrep, "needle")
        await until(sleeping.exists)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(children) == before
    await until(lambda: not working_threads(), 1)


@pytest.mark.parametrize("delay", [0, 0.001, 0.005, 0.02])
async def test_a_search_can_be_cancelled_at_any_time(large: Path, delay: float) -> None:
    backend = FilesystemBackend(large)
    before = await anyio.to_thread.run_sync(children)
    for search in (backend.agrep("needle"), backend.agrep("e+", regex=True), backend.aglob("**/*.txt")):
        with anyio.move_on_after(delay):
            await search
    assert await anyio.to_thread.run_sync(children) == before
    await until(lambda: not working_threads(), 1)
    assert len(paths(await backend.aglob("*"))) == 2 * engines.FEW


async def test_a_search_has_a_deadline(large: Path, sleeping: Path) -> None:
    with anyio.fail_after(10):
        result = await FilesystemBackend(large, search_timeout=0.5).agrep("needle")
    assert result.truncated
    assert (await FilesystemBackend(large, search_timeout=0).aglob("*")).truncated
