"""Every search ends at its deadline with the results so far, and ends when its caller is cancelled."""

import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from deepfs import BackendProtocol, FilesystemBackend, MemoryBackend
from deepfs.search.request import GrepRequest, SearchRequest
from deepfs.threads.deadline import Deadline
from support.processes import children
from support.sandboxes import LocalSandbox
from support.search_options import BACKENDS

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

MANY = 1200
"""So many files are searched in a worker thread."""


@pytest.fixture(params=["memory", "store", "state", "sandbox", "three policies"])
async def searched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
    async with BACKENDS[request.param](tmp_path) as backend:
        yield backend


def give_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in [*sys.modules.items()]:
        if name.startswith("deepfs.") and "SEARCH_SECONDS" in vars(module):
            monkeypatch.setattr(module, "SEARCH_SECONDS", 0)


@pytest.mark.parametrize("files", [0, MANY])
async def test_a_glob_and_a_grep_end_at_the_deadline(
    searched: BackendProtocol, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if files:
        await searched.aupload_files([(f"/many/{number}.txt", b"alpha") for number in range(files)])
    give_no_time(monkeypatch)
    found = await searched.aglob("*.txt")
    assert (found.error, found.matches, found.truncated, found.truncation_reason) == (None, [], True, "budget")
    lines = await searched.agrep("alpha")
    assert (lines.error, lines.matches, lines.truncated) == (None, [], True)


# --- the caller is cancelled -----------------------------------------------------------------------------------------


class Filter:
    """Hides nothing; signals its first call, and blocks until the deadline of the search is cancelled."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.asked = 0

    def __call__(self, path: str, *, is_dir: bool) -> bool:
        self.asked += 1
        self.begun.set()
        if not self.may_go_on.wait(20):
            self.may_go_on.set()
        return False


REQUESTS: list[Callable[[Filter], SearchRequest]] = [
    lambda hidden: GrepRequest("x", hidden=hidden),
    lambda hidden: GrepRequest("x+", "/", "*", regex=True, hidden=hidden),
]


@pytest.mark.parametrize("make", REQUESTS, ids=["grep", "regex"])
@pytest.mark.parametrize("kind", ["memory", "filesystem", "sandbox"])
async def test_a_search_stops_when_its_caller_is_cancelled(
    tmp_path: Path, kind: str, make: Callable[[Filter], SearchRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: dict[str, Callable[[], BackendProtocol]] = {
        "memory": MemoryBackend,
        "filesystem": lambda: FilesystemBackend(tmp_path),
        "sandbox": lambda: LocalSandbox(tmp_path),
    }
    backend = backends[kind]()
    await backend.aupload_files([(f"/{number}.txt", b"x") for number in range(MANY)])
    hidden, cancel = Filter(), Deadline.cancel

    def cancelled(deadline: Deadline) -> None:
        cancel(deadline)
        hidden.may_go_on.set()

    monkeypatch.setattr(Deadline, "cancel", cancelled)
    request = make(hidden)
    run = backend.arun
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, request)
        await anyio.to_thread.run_sync(hidden.begun.wait, 20)
        tasks.cancel_scope.cancel()
    # In memory, the deadline is checked after a number of files, on disk after a time, which is good for some files.
    assert 0 < hidden.asked < MANY // 2


@pytest.fixture
def stuck(tmp_path: Path) -> LocalSandbox:
    """A sandbox whose script creates the file `begun` and does not end."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f"#!/bin/sh\n: > {tmp_path}/begun\nexec /bin/sleep 60\n")
    (programs / "python3").chmod(0o755)
    (programs / "sh").symlink_to("/bin/sh")
    return LocalSandbox(tmp_path, str(programs))


async def test_the_command_of_a_search_ends_when_its_caller_is_cancelled(stuck: LocalSandbox) -> None:
    begun = stuck.root / "begun"
    before = await anyio.to_thread.run_sync(children)
    for search in (stuck.agrep, stuck.aglob):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(search, "x")
            await anyio.to_thread.run_sync(wait_for, begun)
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(children) == before
        await anyio.Path(begun).unlink()


def wait_for(path: Path) -> None:
    for _ in range(2000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(path)
