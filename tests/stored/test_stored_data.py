"""Stores and directories of earlier versions are read, searched, edited, deleted and restored.

`write.py` makes the archives, `contents.py` lists their content. Each test works on a copy.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import psycopg
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore

from deepfs import FilesystemBackend, StoreBackend
from deepfs.middleware import MemoryMiddleware
from deepfs.policy import HistoryBackend
from stored.checks import check_and_change, check_and_change_v1, check_files, check_history, lines_with, text_of
from stored.contents import DIRECTORY, LEFTOVER, MESSAGE, MODES, REPORT, STORE
from stored.graphs import State, model_calls, reading_agent
from support.chat import ScriptedModel
from support.stores import open_sqlite_store

# --- stores ----------------------------------------------------------------------------------------------------------


class StoredInStore:
    """Tests of data that AsyncSqliteStore and AsyncPostgresStore both hold."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_files_are_read_and_changed(self, store: BaseStore) -> None:
        await check_and_change(StoreBackend(store, namespace=("user.a", "files")))
        await check_files(StoreBackend(store, namespace=("user.a", "files", "sub")), STORE)

    @pytest.mark.filterwarnings("ignore:StoreBackend without a namespace is deprecated:DeprecationWarning")
    @pytest.mark.parametrize("config", [{}, {"metadata": {"assistant_id": "helper"}}], ids=["all", "assistant"])
    async def test_files_of_the_namespace_of_an_agent_are_read_and_changed(self, store: BaseStore, config: Any) -> None:
        async def work(state: State) -> None:
            await check_and_change(StoreBackend())

        graph = StateGraph(State).add_node("work", work).add_edge(START, "work")
        await graph.compile(store=store).ainvoke({}, config)

    @pytest.mark.parametrize("file_format", ["v1", "v2"])
    async def test_files_of_the_older_format_are_read_and_changed(self, store: BaseStore, file_format: Any) -> None:
        before = await store.aget(("v1",), "/a.txt")
        assert before is not None
        assert before.value["content"] == ["one", "TWO", "three", ""]
        await check_and_change_v1(StoreBackend(store, namespace=("v1",), file_format=file_format))

    async def test_a_history_beside_its_files_is_read_and_restored(self, store: BaseStore) -> None:
        await check_history(HistoryBackend(StoreBackend(store, namespace=("kept",))))

    async def test_a_history_in_a_namespace_of_its_own_is_read_and_restored(self, store: BaseStore) -> None:
        kept = StoreBackend(store, namespace=("kept.by",))
        await check_history(HistoryBackend(StoreBackend(store, namespace=("files",)), kept))


class TestSqliteStore(StoredInStore):
    @pytest.fixture
    async def store(self, stored: Path) -> AsyncIterator[BaseStore]:
        async with open_sqlite_store(stored / "store.sqlite") as store:
            yield store


class TestPostgresStore(StoredInStore):
    @pytest.fixture
    def rows(self, stored: Path, _postgres_store_dsn: str) -> None:
        """The stored rows, loaded into the table of a real server."""
        rows = json.loads((stored / "postgres.json").read_text())
        values = [(prefix, key, json.dumps(value), *times) for prefix, key, value, *times in rows]
        insert = "INSERT INTO store (prefix, key, value, created_at, updated_at) VALUES (%s, %s, %s, %s, %s)"
        with psycopg.connect(_postgres_store_dsn) as connection:
            connection.cursor().executemany(insert, values)

    @pytest.fixture
    def store(self, rows: None, postgres_store: BaseStore) -> BaseStore:
        return postgres_store


# --- disk ------------------------------------------------------------------------------------------------------------


class TestDirectory:
    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def backend(self, stored: Path) -> FilesystemBackend:
        return FilesystemBackend(stored / "directory")

    async def test_files_are_read_and_found(self, backend: FilesystemBackend) -> None:
        await check_files(backend, ON_DISK, missing=["/half.txt"], beside=["/nothing/"])
        assert [info.path for info in (await backend.als("/nothing")).entries or ()] == []
        assert await text_of(backend, "/bom.txt") == "bom\nsecond\n"
        assert (await backend.aread("/latin1.txt")).file_data.encoding == "base64"
        assert await lines_with(backend, "größe") == [(DISK_UNICODE, 1, "größe")]
        assert await lines_with(backend, "return", glob="deep/**/*.py") == [("/deep/a/b/c.py", 2, "    return 1")]
        assert await lines_with(backend, "half") == []

    async def test_changes_keep_the_other_content_and_the_modes(self, backend: FilesystemBackend, stored: Path) -> None:
        assert (await backend.aedit("/crlf.txt", "two\nthree", "2\n3")).error is None
        assert (await backend.aedit("/bom.txt", "bom", "mark")).error is None
        assert (await backend.aedit("/no-newline.txt", "last", "end")).error is None
        assert (await backend.aedit("/linked.md", "8123", "8124")).error is None
        for path in MODES:
            assert (await backend.aedit(path, "edited", "edited again")).error is None
        assert (await backend.aedit("/latin1.txt", "caf", "x")).code == "binary_file"
        assert (await backend.amove("/deep", "/nothing/deep")).error is None
        assert (await backend.acopy(DISK_UNICODE, "/copy.txt")).error is None
        assert (await backend.adelete("/日本")).error is None
        assert (await backend.awrite("/half.txt", "whole")).error is None
        expected = {
            **ON_DISK,
            "/AGENTS.md": ON_DISK["/AGENTS.md"].replace(b"8123", b"8124"),
            "/bom.txt": b"\xef\xbb\xbfmark\nsecond\n",
            "/copy.txt": ON_DISK[DISK_UNICODE],
            "/crlf.txt": b"one\r\n2\r\n3\r\n",
            "/half.txt": b"whole",
            "/linked.md": ON_DISK["/AGENTS.md"].replace(b"8123", b"8124"),
            "/no-newline.txt": b"first\nend",
            "/nothing/deep/a/b/c.py": ON_DISK["/deep/a/b/c.py"],
            "/run.sh": b"#!/bin/sh\necho edited again\n",
            "/secret.txt": b"edited again secret\n",
        }
        del expected[DISK_UNICODE], expected["/deep/a/b/c.py"]
        await check_files(backend, expected)
        modes = [(await anyio.Path(stored / "directory" / path[1:]).stat()).st_mode & 0o7777 for path in MODES]
        assert modes == list(MODES.values())

    async def test_unfinished_files_of_a_killed_process_are_hidden_and_removed_when_old(
        self, backend: FilesystemBackend, stored: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [left] = await leftovers(stored)
        assert f"/{left}" not in [info.path for info in (await backend.als("/")).entries or ()]
        assert (await backend.awrite("/a.txt", "a")).error is None
        assert await leftovers(stored) == [left]
        monkeypatch.setattr("deepfs.disk.atomic._STALE_AFTER_S", -1.0)
        assert (await FilesystemBackend(stored / "directory").awrite("/b.txt", "b")).error is None
        assert await leftovers(stored) == []

    async def test_evicted_results_and_messages_are_read_and_not_stored_again(
        self, backend: FilesystemBackend, anyio_backend_name: str
    ) -> None:
        [large] = [path for path in ON_DISK if path.startswith("/large_tool_results/")]
        turns = [model_calls("report", "r1"), model_calls("read_file", "2", file_path=large, offset=50, limit=1)]
        agent = reading_agent([*turns, AIMessage("done")], backend)
        final = await anyio.to_thread.run_sync(agent.invoke, {"messages": [HumanMessage(MESSAGE, id="large")]})
        told = [message.text for message in final["messages"] if message.type in ("human", "tool")]
        assert large in told[1]
        assert "0050: a line of a large result" in told[2]
        await check_files(backend, ON_DISK, beside=["/nothing/"])

    async def test_stored_memory_is_shown(self, backend: FilesystemBackend) -> None:
        model = ScriptedModel(script=[AIMessage("done")])
        agent = create_agent(model, middleware=[MemoryMiddleware(backend=backend, sources=["/AGENTS.md"])])
        await anyio.to_thread.run_sync(agent.invoke, {"messages": [HumanMessage("go")]})
        assert "The build runs on port 8123." in model.asked[0][0].text

    async def test_a_history_on_disk_is_read_and_restored(self, stored: Path) -> None:
        await check_history(HistoryBackend(FilesystemBackend(stored / "history")))


DISK_UNICODE: Final = next(path for path in DIRECTORY if path.startswith("/日本"))
ON_DISK: Final = {
    **DIRECTORY,
    "/large_messages/large-e5c82a4e1b90d950": MESSAGE.encode(),
    "/large_tool_results/r1-e721fe95d48e4251": REPORT.encode(),
    "/linked.md": DIRECTORY["/AGENTS.md"],
}


async def leftovers(stored: Path) -> list[str]:
    names = [each.name async for each in anyio.Path(stored / "directory").iterdir()]
    return [name for name in names if name.startswith(LEFTOVER)]
