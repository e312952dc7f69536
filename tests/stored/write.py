"""Writes the data that a version of deepfs stores, for the tests of later versions.

Run it from a checkout of this repository, with an earlier version on the path, and keep the archive:

    git archive 67c86ec | tar -x -C OLD
    PYTHONPATH=OLD python tests/stored/write.py tests/stored/67c86ec.tar.gz

The archive holds: `checkpoints.sqlite` (threads of graphs and agents), `state.json` (the files of a thread, as msgpack
and plain), `store.sqlite` and `postgres.json` (files of StoreBackend and histories, the latter as rows), `directory`
(of FilesystemBackend, with what an agent stored there and what a killed process left) and `history` (a directory that
HistoryBackend kept the versions of). It is one archive, since git keeps no modes and no empty directories. Archives are
never made again, since they must stay as they were.

`67c86ec.zip`, written beside it, has the modules of the package that FilesystemBackend and StoreBackend need. Tests run
them in separate processes that share directories and stores with this version. A clone may have no history from which
the earlier version could be taken.
"""

import asyncio
import gzip
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from base64 import b64encode
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

sys.path.append(str(Path(__file__).parents[1]))

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command

import deepfs
from deepfs import FilesystemBackend, StoreBackend
from deepfs.policy import HistoryBackend
from stored.contents import (
    CLASH,
    DIRECTORY,
    LONG_STEPS,
    MESSAGE,
    MODES,
    SHARED,
    VERSIONS,
    commands_of_store,
    commands_of_v1,
)
from stored.graphs import approving_agent, model_calls, nested, parallel, reading_agent, run, steps
from support.chat import ScriptedModel
from support.postgres import running_server

KILLED = """
import os, signal, sys
from deepfs import FilesystemBackend
os.link = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
FilesystemBackend(sys.argv[1]).write("/half.txt", "half of it")
"""


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


# --- checkpoints -----------------------------------------------------------------------------------------------------


def write_threads(saver: Any) -> None:
    for name, each, file_format in (("steps", commands_of_store(), "v2"), ("v1", commands_of_v1(), "v1")):
        graph = steps(file_format).compile(checkpointer=saver)
        for commands in each:
            assert graph.invoke({"todo": {"work": commands}}, thread(name))["log"] == []
    graph = steps().compile(checkpointer=saver)
    graph.invoke({"todo": {"work": [["write", "/log", ""], ["write", "/kept", "kept\n"]]}}, thread("long"))
    for number in range(LONG_STEPS):
        change = ["write", f"/{number}", f"{number}\n"]
        graph.invoke({"todo": {"work": [change]}}, thread("long"), durability="exit")
    write_parallel(saver)
    write_agents(saver)


def write_parallel(saver: Any) -> None:
    first = {"todo": {"join": [["write", "/shared", SHARED], ["write", "/clash", CLASH], ["write", "/out", "out\n"]]}}
    right = [["edit", "/shared", "line 7\n", "RIGHT\n"], ["write", "/right", "right\n"]]
    for name in ("parallel", "interrupted", "conflict", "conflicts", "failed", "nested"):
        graph = parallel().compile(checkpointer=saver)
        graph.invoke(first, thread(name))
    left = [["edit", "/shared", "line 2\n", "LEFT\n"], ["delete", "/out"]]
    both = {"todo": {"left": left, "right": right}}
    graph.invoke(both, thread("parallel"))
    graph.invoke({**both, "asks": ["right"]}, thread("interrupted"))
    clash = {name: [["edit", "/clash", "nobody", name]] for name in ("left", "right")}
    for name in ("conflict", "conflicts"):
        graph.invoke({"todo": clash, "asks": ["right"]}, thread(name))
    # Continue as a new process would: with another graph, which remembers nothing.
    parallel().compile(checkpointer=saver).invoke(Command(resume=True), thread("conflicts"))
    with suppress(RuntimeError):
        parallel(fails=["right"]).compile(checkpointer=saver).invoke(both, thread("failed"))
    outer = nested().compile(checkpointer=saver)
    outer.invoke({**both, "asks": ["right"]}, thread("nested"))


def write_agents(saver: Any) -> None:
    writes = model_calls("write_file", "1", file_path="/kept/a.txt", content="approved\n")
    for by in ("rule", "tool"):
        approving_agent([writes], saver, by=by).invoke({"messages": [HumanMessage("go", id="h")]}, thread(f"by {by}"))
    delegates = model_calls("task", "0", description="write it", subagent_type="general-purpose")
    agent = approving_agent([delegates, writes], saver, by="tool")
    agent.invoke({"messages": [HumanMessage("go", id="h")]}, thread("by subagent"))
    turns = [model_calls("report", "r1"), AIMessage("done", id="done")]
    agent = reading_agent(turns, saver=saver)
    agent.invoke({"messages": [HumanMessage(MESSAGE, id="large")]}, thread("evicted"))
    model = ScriptedModel(
        script=[AIMessage("a" * 4_000), AIMessage("b" * 4_000), AIMessage("the summary"), AIMessage("third")],
        profile={"max_input_tokens": 2_300},
    )
    agent = reading_agent((), model=model, saver=saver)
    for text in ("one", "two", "three"):
        agent.invoke({"messages": [HumanMessage(text)]}, thread("summarised"))


async def write_async_thread(path: Path) -> None:
    """Write one thread with the async form of the saver."""
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph = steps().compile(checkpointer=saver)
        for commands in commands_of_store():
            await graph.ainvoke({"todo": {"work": commands}}, thread("async"))


def checkpoints(root: Path) -> None:
    path = root / "checkpoints.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        write_threads(saver)
        files = steps().compile(checkpointer=saver).get_state(thread("steps")).values["files"]
    asyncio.run(write_async_thread(path))
    kind, data = JsonPlusSerializer().dumps_typed(files)
    state = {"type": kind, "data": b64encode(data).decode(), "files": files}
    (root / "state.json").write_text(json.dumps(state, indent=1))
    compact(path)


def compact(path: Path) -> None:
    """Move everything into the single database file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")


# --- stores ----------------------------------------------------------------------------------------------------------


def _store_all(store: Any) -> None:
    """Make all calls synchronously, in a thread beside the event loop of the store."""
    for namespace in (("user.a", "files"), ("user.a", "files", "sub")):
        for commands in commands_of_store():
            assert run(StoreBackend(store, namespace=namespace), commands) == []
    for commands in commands_of_v1():
        assert run(StoreBackend(store, namespace=("v1",), file_format="v1"), commands) == []
    graph = steps(backend=StoreBackend()).compile(store=store)
    for config in ({}, {"metadata": {"assistant_id": "helper"}}):
        for commands in commands_of_store():
            assert graph.invoke({"todo": {"work": commands}}, config)["log"] == []
    keep_versions(HistoryBackend(StoreBackend(store, namespace=("kept",))))
    keep_versions(
        HistoryBackend(StoreBackend(store, namespace=("files",)), StoreBackend(store, namespace=("kept.by",)))
    )


async def write_store(path: Path) -> None:
    async with AsyncSqliteStore.from_conn_string(str(path)) as store:
        await store.setup()
        await asyncio.to_thread(_store_all, store)


async def stored_rows(dsn: str) -> str:
    async with AsyncPostgresStore.from_conn_string(dsn) as store:
        await store.setup()
        await asyncio.to_thread(_store_all, store)
        async with store._cursor() as cursor:
            await cursor.execute("SELECT prefix, key, value, created_at, updated_at FROM store ORDER BY prefix, key")
            rows = [[*row.values()] for row in await cursor.fetchall()]
    return json.dumps(rows, default=str, ensure_ascii=False, indent=0)


def stores(root: Path) -> None:
    asyncio.run(write_store(root / "store.sqlite"))
    compact(root / "store.sqlite")
    with running_server() as server, server.database() as name:
        (root / "postgres.json").write_text(asyncio.run(stored_rows(server.dsn(name))))


def keep_versions(history: HistoryBackend) -> None:
    for number, content in enumerate([*VERSIONS["/plan.md"], b"four\n"]):
        [outcome] = history.upload_files([("/plan.md", content)])
        assert outcome.error is None, number
    commands: list[Any] = [["upload", path, held[0]] for path, held in VERSIONS.items() if path != "/plan.md"]
    commands += [["delete", "/gone.bin"], ["move", "/moved.txt", "/there.txt"], ["edit", "/größe.txt", "µ", "ß"]]
    assert run(history, commands) == []


# --- disk ------------------------------------------------------------------------------------------------------------


def directory(root: Path) -> None:
    backend = FilesystemBackend(root)
    first = {"/run.sh": b"#!/bin/sh\necho first\n", "/secret.txt": b"first secret\n"}
    for path, content in {**DIRECTORY, **first}.items():
        assert run(backend, [["upload", path, content]]) == []
    for path, mode in MODES.items():
        (root / path[1:]).chmod(mode)
    assert run(backend, [["edit", path, "first", "edited"] for path in MODES]) == []
    (root / "linked.md").symlink_to("AGENTS.md")
    (root / "nothing").mkdir()
    turns = [model_calls("report", "r1"), AIMessage("done")]
    reading_agent(turns, backend).invoke({"messages": [HumanMessage(MESSAGE, id="large")]})
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED, str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL


# --- the archive -----------------------------------------------------------------------------------------------------


def packed(root: Path, archive: Path) -> None:
    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        for path in sorted(root.iterdir()):
            file.add(path, path.name, filter=anonymous)
    archive.write_bytes(gzip.compress(tar.getvalue(), mtime=0))


IMPORTED = """
import sys, tempfile
from langgraph.store.memory import InMemoryStore
from deepfs import FilesystemBackend, StoreBackend

with tempfile.TemporaryDirectory() as directory:
    for backend in (FilesystemBackend(directory), StoreBackend(InMemoryStore(), namespace=("files",))):
        backend.write("/a", "one")
        backend.edit("/a", "two", "2")
        backend.move("/a", "/b/c")
        backend.grep("one")
        backend.delete("/b")
print(*(module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "deepfs"), sep="\\n")
"""


def package(archive: Path) -> None:
    """Write the modules that are imported for files on disk and in stores, all with the same date."""
    printed = subprocess.run([sys.executable, "-P", "-c", IMPORTED], check=True, capture_output=True, text=True).stdout
    root = Path(deepfs.__file__).parents[1]
    with ZipFile(archive, "w", ZIP_DEFLATED, compresslevel=9) as file:
        for path in sorted(map(Path, printed.splitlines())):
            file.writestr(ZipInfo(str(path.relative_to(root))), path.read_bytes(), ZIP_DEFLATED)


def main() -> None:
    """Write the archive named by the only argument, and the package beside it."""
    os.umask(0o022)
    archive = Path(sys.argv[1])
    with TemporaryDirectory() as name:
        root = Path(name)
        checkpoints(root)
        stores(root)
        (root / "directory").mkdir()
        directory(root / "directory")
        keep_versions(HistoryBackend(FilesystemBackend(root / "history")))
        packed(root, archive)
    package(archive.with_name(archive.name.replace(".tar.gz", ".zip")))


if __name__ == "__main__":
    main()
