"""Backends by URL, and trees that a TOML file describes."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs import ErrorCode
from deepfs.config import Address, open_backend, parse_address
from deepfs.policy import HistoryBackend
from support.command_line import deepfs, deepfs_process

pytestmark = pytest.mark.anyio


ADDRESSES = [
    ("notes/../a.md", "file:///", "/here/a.md", "notes/../a.md"),
    ("/srv/a#b?c", "file:///", "/srv/a#b?c", "/srv/a#b?c"),
    ("file:///srv/docs", "file:///", "/srv/docs", "/srv/docs"),
    ("file://localhost/srv/a%20b", "file:///", "/srv/a b", "/srv/a b"),
    ("file:///srv/docs#/a b", "file:///srv/docs", "/a b", "/a b"),
    ("sqlite:///x.db", "sqlite:///x.db", "/", "/"),
    ("sqlite:///x.db?namespace=a#notes", "sqlite:///x.db?namespace=a", "notes", "notes"),
    ("postgres://u:p@h/db#/a#b", "postgres://u:p@h/db", "/a#b", "/a#b"),
    ("redis://u:p@h/0?namespace=a#/a", "redis://u:p@h/0?namespace=a", "/a", "/a"),
    ("unix:///run/redis.sock?db=0", "unix:///run/redis.sock?db=0", "/", "/"),
    ("s3://bucket/dir/a.md?region=eu", "s3://bucket?region=eu", "/dir/a.md", "s3://bucket/dir/a.md"),
    ("s3://bucket/dir#/a.md", "s3://bucket/dir", "/a.md", "/a.md"),
    ("zip://a/b::file:///x.zip", "zip://a/b::file:///x.zip", "/", "/"),
    ("checkpoint+sqlite:///x.db?thread=1", "checkpoint+sqlite:///x.db?thread=1", "/", "/"),
    ("tree://deepfs.toml#/m", "tree://deepfs.toml", "/m", "/m"),
    ("tree:deepfs.toml", "file:///", "/here/tree:deepfs.toml", "tree:deepfs.toml"),
]


def test_an_address_is_a_url_and_a_path() -> None:
    for text, *expected in ADDRESSES:
        assert parse_address(text, directory="/here") == Address(*expected), text
    assert parse_address("/a#b", within="memory://") == Address("memory://", "/a#b", "/a#b")
    assert parse_address("sqlite:///x.db", within="memory://").url == "sqlite:///x.db"


WRONG_URLS: list[tuple[str, type[Exception], str]] = [
    ("sqlite:///none.db", FileNotFoundError, "no database"),
    ("sqlite:///x.db?namspace=a", ValueError, "namspace"),
    ("sqlite:///x.db?max_scanned=many", ValueError, "max_scanned"),
    ("file:///x?ignore=svn", ValueError, "ignore"),
    ("file:///x?durable=perhaps", ValueError, "durable"),
    ("memory://?read_only=perhaps", ValueError, "read_only"),
    ("checkpoint+sqlite:///none.db?thread=1", FileNotFoundError, "no database"),
    ("checkpoint+sqlite:///none.db", ValueError, "thread"),
    ("nosuch://x", ValueError, "nosuch"),
    ("nothing", ValueError, "no URL"),
    ("tree://none.toml", FileNotFoundError, "none.toml"),
]


async def test_what_is_wrong_with_a_url_is_told(tmp_path: Path) -> None:
    for url, error, told in WRONG_URLS:
        with pytest.raises(error, match=told):
            async with open_backend(url, directory=str(tmp_path), creates=False):
                pass
    assert not [name async for name in anyio.Path(tmp_path).iterdir()]


async def test_options_and_read_only(tmp_path: Path) -> None:
    async with open_backend(f"file://{tmp_path}?durable=true&max_file_size_mb=1&read_only=true") as backend:
        assert (await backend.awrite("/a", "")).code is ErrorCode.PERMISSION_DENIED
    async with open_backend(f"file://{tmp_path}?max_file_size_mb=1") as backend:
        assert (await backend.awrite("/a", "x" * (2**20 + 1))).ok
        assert (await backend.agrep("x")).skipped == 1


TREE = """
url = "./workspace"
[mounts]
"/memories" = "sqlite:///memories.db?namespace=${USER_NAME}"
"/docs" = { url = "docs", read_only = true, ignore = "git" }
[[permissions]]
operations = ["read", "write"]
paths = ["/secret/**"]
[history]
url = "sqlite:///history.db"
keep = 2
[limits]
max_files = 6
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("USER_NAME", "ada")
    (tmp_path / "docs/build").mkdir(parents=True)
    (tmp_path / "docs/.gitignore").write_text("build\n")
    (tmp_path / "docs/build/made.md").write_text("needle\n")
    (tmp_path / "docs/guide.md").write_text("needle\n")
    (tmp_path / "deepfs.toml").write_text(TREE)
    return f"tree://{tmp_path}/deepfs.toml"


async def test_a_tree_of_a_file(tree: str, tmp_path: Path) -> None:
    async with open_backend(tree, variables=["USER_NAME"]) as backend:
        assert isinstance(backend, HistoryBackend)
        assert (await backend.awrite("/plan.md", "1")).ok
        assert (await backend.awrite("/memories/a.md", "1")).ok
        assert (await backend.awrite("/docs/b.md", "1")).code is ErrorCode.PERMISSION_DENIED
        assert (await backend.awrite("/secret/c.md", "1")).code is ErrorCode.PERMISSION_DENIED
        assert [match.path for match in (await backend.agrep("needle")).matches or ()] == ["/docs/guide.md"]
        assert (await backend.awrite("/more.md", "1")).ok
        assert (await backend.awrite("/most.md", "1")).code is ErrorCode.QUOTA_EXCEEDED
    assert await anyio.Path(tmp_path, "workspace/plan.md").read_text() == "1"
    async with open_backend(f"sqlite:///{tmp_path}/memories.db?namespace=ada", creates=False) as memories:
        assert (await memories.aread("/a.md")).ok


WRONG_FILES = [
    ("url = 1", "url"),
    ("uri = 'x'", "uri"),
    ("[mounts]\n'/a' = { path = 'x' }", "url"),
    ("[mounts]\n'/a' = 'sqlite:///x.db?nmespace=b'", "nmespace"),
    ("[[permissions]]\noperations = ['fly']\npaths = ['/**']", "fly"),
    ("url = '${NO_SUCH_VARIABLE}'", "has no variable NO_SUCH_VARIABLE"),
    ("url = 's3://b?prefix=${HOME}'", "HOME, which it may not use"),
    ("url = ", "deepfs.toml"),
    ("[limits]\nmax_bytes = -1", "max_bytes"),
    ("url = 'tree://deepfs.toml'", "a part of itself"),
    ("[mounts]\n'/a' = { url = 'tree://./deepfs.toml' }", "a part of itself"),
    ("[mounts]\n'/a' = 'x'\n'/a/' = 'y'", "same path"),
    ("url = " + "[" * 3000, "too deep"),
]


async def test_what_is_wrong_with_a_file_is_told(tmp_path: Path) -> None:
    for content, told in WRONG_FILES:
        await anyio.Path(tmp_path, "deepfs.toml").write_text(content)
        with pytest.raises(ValueError, match=told):
            async with open_backend(f"tree://{tmp_path}/deepfs.toml", variables=["NO_SUCH_VARIABLE"]):
                pass


async def test_a_path_in_a_tree_may_have_any_characters(tmp_path: Path) -> None:
    name = "a?b=1&c#d%20e f"
    await anyio.Path(tmp_path, name).mkdir()
    await anyio.Path(tmp_path, name, "a.md").write_text("x")
    await anyio.Path(tmp_path, "deepfs.toml").write_text(f"url = '{name}'\n[mounts]\n'/m' = {{ url = './{name}' }}")
    async with open_backend(f"tree://{tmp_path}/deepfs.toml") as backend:
        assert [entry.path for entry in (await backend.aglob("**")).matches or ()] == ["/a.md", "/m/a.md"]


def test_errors_of_a_driver_tell_no_password(tmp_path: Path) -> None:
    Path(tmp_path, "text.txt").write_text("no database " * 100)
    urls = ("postgresql://user:se cret@127.0.0.1:x/db", f"sqlite:///{tmp_path}/text.txt")
    for url in [f"store+{url}" for url in urls] + [f"checkpoint+{url}?thread=1" for url in urls]:
        outcome = deepfs("ls", url)
        assert (outcome.status, outcome.out) == (2, "")
        assert "The storage failed" in outcome.err
        assert "cret" not in outcome.err


def test_a_url_without_its_driver_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paramiko", None)
    outcome = deepfs("ls", "sftp://host/dir")
    assert (outcome.status, "paramiko" in outcome.err) == (2, True)


async def test_a_file_that_another_one_names_may_use_no_variable(tree: str, tmp_path: Path) -> None:
    await anyio.Path(tmp_path, "outer.toml").write_text("url = 'tree://deepfs.toml'")
    with pytest.raises(ValueError, match="USER_NAME, which it may not use"):
        async with open_backend(f"tree://{tmp_path}/outer.toml", variables=["USER_NAME"]):
            pass


def test_a_user_allows_variables(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = deepfs("ls", on=tree)
    assert (refused.status, "--env USER_NAME" in refused.err) == (2, True)
    assert deepfs("--env=USER_NAME", "--on", tree, "ls").status == 0
    monkeypatch.setenv("DEEPFS_ENV", "HOME USER_NAME")
    assert deepfs("ls", on=tree).status == 0


def test_history_and_restore(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPFS_ENV", "USER_NAME")
    for text in ("one\n", "two\n", "three\n"):
        assert deepfs("write", "-f", "/plan.md", text, on=tree).status == 0
    assert [line.split()[:2] for line in deepfs("history", "/plan.md", on=tree).lines] == [["1", "4"], ["2", "4"]]
    assert deepfs("history", "/plan.md", "1", on=tree).out == "one\n"
    assert "-two\n+three\n" in deepfs("history", "--diff", "/plan.md", "2", on=tree).out
    assert deepfs("restore", "/plan.md", "1", on=tree).status == 0
    assert deepfs("cat", "/plan.md", on=tree).out == "one\n"
    assert deepfs("history", "/none.md", on=tree).status == 1
    assert "no history" in deepfs("history", "/plan.md", on="memory://").err


def test_undo(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPFS_ENV", "USER_NAME")
    assert "no change to undo" in deepfs("undo", on=tree).err
    deepfs("write", "/plan.md", "one\n", on=tree)
    deepfs("edit", "/plan.md", "one", "two", on=tree)
    edited, written = deepfs("undo", "--list", on=tree).lines
    assert (edited.split()[1:], written.split()[1:]) == (["edit", "/plan.md"], ["write", "/plan.md"])
    assert [json.loads(line)["operation"] for line in deepfs("undo", "--list", "--json", on=tree).lines] == [
        "edit",
        "write",
    ]
    refused = deepfs("undo", written.split()[0], on=tree)
    assert (refused.status, "'/plan.md': It was changed meanwhile" in refused.err) == (1, True)
    assert deepfs("undo", on=tree).lines == ["/plan.md: undone"]
    assert deepfs("cat", "/plan.md", on=tree).out == "one\n"
    assert deepfs("undo", on=tree).status == 0  # It undoes the undo.
    assert deepfs("cat", "/plan.md", on=tree).out == "two\n"
    assert deepfs("undo", "--force", written.split()[0], on=tree).status == 0
    assert deepfs("cat", "/plan.md", on=tree).status == 1
    [latest, *_] = deepfs("undo", "--list", "-n", "1", "--json", on=tree).lines
    assert json.loads(deepfs("undo", "--run", json.loads(latest)["run"], "--json", on=tree).out)["conflicts"] == {}
    assert deepfs("undo", "--run", "none", on=tree).status == 1
    assert "no history" in deepfs("undo", on="memory://").err


@pytest.fixture(params=["sqlite", "postgres"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    if request.param == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        return f"sqlite:///{tmp_path}/runs.db", SqliteSaver.from_conn_string(f"{tmp_path}/runs.db")
    from langgraph.checkpoint.postgres import PostgresSaver

    dsn = request.getfixturevalue("postgres_dsn")
    return dsn, PostgresSaver.from_conn_string(dsn)


def test_files_of_a_thread(saved: tuple[str, Any]) -> None:
    from langgraph.graph import START, StateGraph

    from deepfs import FilesystemState, StateBackend

    url, opened = saved
    graph = StateGraph(FilesystemState)
    graph.add_node("write", lambda state: StateBackend().write("/notes/a.md", "from a run") and {})
    graph.add_edge(START, "write")
    with opened as saver:
        saver.setup()
        graph.compile(checkpointer=saver).invoke({}, {"configurable": {"thread_id": "1"}})
    options = "&thread=1" if "?" in url else "?thread=1"
    thread = f"checkpoint+{url}{options}"
    assert deepfs("cat", f"{thread}#/notes/a.md") == (0, "from a run", "")
    assert deepfs("write", f"{thread}#/b.md", "x").status == 1
    assert "no thread" in deepfs("ls", thread.replace("thread=1", "thread=2")).err


@pytest.mark.parametrize("command", ["ls", "agent"])
def test_a_checkpoint_runs_no_code(command: str, tmp_path: Path) -> None:
    """A checkpoint can name any function, which LangGraph's default serializer calls."""
    import ormsgpack
    from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG, JsonPlusSerializer
    from langgraph.checkpoint.sqlite import SqliteSaver

    made = tmp_path / "made"
    call = ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, ormsgpack.packb(("os", "mkdir", str(made))))
    state = {"v": 4, "id": "1", "ts": "2026-01-01T00:00:00+00:00", "channel_versions": {}, "versions_seen": {}}
    stored = ormsgpack.packb({**state, "channel_values": {"messages": call, "files": call}})
    database = tmp_path / "runs.db"
    with SqliteSaver.from_conn_string(str(database)) as saver:
        saver.setup()
        columns = "thread_id, checkpoint_ns, checkpoint_id, type, checkpoint, metadata"
        saver.conn.execute(
            f"INSERT INTO checkpoints ({columns}) VALUES ('1', '', '1', 'msgpack', ?, '{{}}')", (stored,)
        )
        saver.conn.commit()
    if command == "ls":
        deepfs_process("ls", f"checkpoint+sqlite:///{database}?thread=1")
    else:
        script = tmp_path / "script.toml"
        script.write_text("[[turn]]\ntext = 'Done.'\n")
        options = ["--on", tmp_path, "--threads", database, "--thread", "1", "--model", f"scripted:{script}"]
        deepfs_process("agent", "go", *options)
    assert not made.exists()
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", stored))
    assert made.is_dir()
