"""Creating a backend and its first use do not block the event loop, which a guard checks in every async test."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs import FilesystemBackend, StateBackend

pytestmark = pytest.mark.anyio


async def test_a_missing_root_directory_behaves_like_an_empty_one(tmp_path: Path) -> None:
    calls: list[Any] = [
        lambda on: on.als("/"), lambda on: on.aread("/"), lambda on: on.awrite("/", "x"),
        lambda on: on.aedit("/", "a", "b"), lambda on: on.aglob("*"), lambda on: on.agrep("x"),
        lambda on: on.adelete("/"), lambda on: on.amove("/", "/x"), lambda on: on.amove("/x", "/", overwrite=True),
        lambda on: on.acopy("/x", "/"), lambda on: on.adownload_files(["/"]),
        lambda on: on.aupload_files([("/", b"x")]),
    ]  # fmt: skip
    await anyio.Path(tmp_path / "there").mkdir()
    for number, call in enumerate(calls):
        missing = await call(FilesystemBackend(tmp_path / str(number)))
        assert missing == await call(FilesystemBackend(tmp_path / "there")), number


async def test_state_backend_outside_a_graph_raises_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"graph\.invoke"):
        await StateBackend().aread("/a.txt")
    with pytest.raises(RuntimeError, match="MemoryBackend"):
        StateBackend().write("/a.txt", "text")
