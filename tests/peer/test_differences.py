"""Checks in both libraries the differences that the page on migration describes."""

from pathlib import Path
from typing import Any

import deepagents
import pytest
from deepagents import backends as peer_backends
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore

import deepfs
from deepfs import (
    BackendProtocol,
    CompositeBackend,
    ErrorCode,
    FilesystemBackend,
    GrepResult,
    LsResult,
    MemoryBackend,
    supports_execute,
)
from deepfs.backends import LocalShellBackend
from deepfs.errors import NotSupportedError
from deepfs.policy import WrapperBackend
from support.chat import ScriptedModel, call, calls


@pytest.fixture
def ours(tmp_path: Path) -> Any:
    return FilesystemBackend(tmp_path)


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    return peer_backends.FilesystemBackend(tmp_path, virtual_mode=True)


class Broken(WrapperBackend):
    """Its listings and searches fail."""

    async def als(self, path: str) -> LsResult:
        return LsResult("Error: The storage is down", code=ErrorCode.BACKEND_ERROR)

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **_: Any) -> GrepResult:
        return GrepResult("Error: The storage is down", code=ErrorCode.BACKEND_ERROR)


def test_a_pattern_without_a_slash_enters_no_dot_directory(ours: Any, theirs: Any) -> None:
    ours.write("/.github/ci.yml", "x")
    assert [info["path"] for info in theirs.glob("*.yml").matches] == ["/.github/ci.yml"]
    assert ours.glob("*.yml").matches == []
    for pattern in (".github/*.yml", "**/*.yml"):
        found = [[info["path"] for info in backend.glob(pattern).matches] for backend in (ours, theirs)]
        assert found[0] == found[1]


def test_carriage_returns_in_the_text_to_replace_must_match(ours: Any, theirs: Any) -> None:
    ours.write("/a.txt", "one\ntwo\n")
    refused = ours.edit("/a.txt", "one\r\ntwo", "1")
    assert refused.code is ErrorCode.NO_MATCH
    assert "line ends" in refused.error
    assert theirs.edit("/a.txt", "one\r\ntwo", "1").occurrences == 1


def test_a_symlink_to_itself_is_listed(ours: Any, theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "a.txt").write_text("x")
    listing = theirs.ls("/")
    assert listing.error
    assert [entry["path"] for entry in listing.entries] == ["/a.txt"]
    assert ours.ls("/").ok
    assert [entry.path for entry in ours.ls("/").entries] == ["/a.txt", "/loop"]
    assert ours.read("/loop").code is ErrorCode.PERMISSION_DENIED


def test_reads_include_times(ours: Any, theirs: Any) -> None:
    ours.write("/a.txt", "x")
    memory = MemoryBackend()
    memory.write("/a.txt", "x")
    assert not {"modified_at", "created_at"} & theirs.read("/a.txt").file_data.keys()
    assert {"modified_at", "created_at"} & set(ours.read("/a.txt").file_data) == {"modified_at"}
    read = memory.read("/a.txt").file_data
    assert read is not None
    assert {"modified_at", "created_at"} <= set(read)


def test_a_match_may_be_context_of_another(ours: Any, theirs: Any) -> None:
    ours.write("/a.txt", "hit\nhit\n")
    assert theirs.grep("hit", context_lines=1).matches[0]["context_after"] == []
    assert ours.grep("hit", context_lines=1).matches[0]["context_after"] == [{"line": 2, "text": "hit"}]


def test_an_error_of_a_mount_names_the_mount() -> None:
    tree = CompositeBackend(MemoryBackend(), {"/m/": Broken(MemoryBackend())})
    tree.write("/a.txt", "x")
    found = tree.grep("x")
    assert found.error == "Error: The storage is down (in '/m/')"
    assert [match.path for match in found.matches or ()] == ["/a.txt"]


def test_a_failed_listing_still_includes_the_mounts() -> None:
    listing = CompositeBackend(Broken(MemoryBackend()), {"/m/": MemoryBackend()}).ls("/")
    assert listing.error == "Error: The storage is down"
    assert [entry.path for entry in listing.entries or ()] == ["/m/"]


def test_execute_without_commands_is_not_supported() -> None:
    flat = peer_backends.StoreBackend(store=InMemoryStore(), namespace=lambda _: ("a",))
    with pytest.raises(NotImplementedError):
        peer_backends.CompositeBackend(default=flat, routes={}).execute("true")
    tree = CompositeBackend(MemoryBackend())
    assert not supports_execute(tree)
    with pytest.raises(NotSupportedError):
        tree.execute("true")


def test_timeouts_and_output_of_commands(tmp_path: Path) -> None:
    mine: Any = LocalShellBackend(tmp_path)
    there: Any = peer_backends.LocalShellBackend(tmp_path, virtual_mode=True)
    late, late_there = (shell.execute("echo begun; sleep 60", timeout=1) for shell in (mine, there))
    assert (late.exit_code, late.output) == (None, "begun\n[The command was stopped: its time of 1 s was up]\n")
    assert (late_there.exit_code, "begun" in late_there.output) == (124, False)
    empty, empty_there = (shell.execute("") for shell in (mine, there))
    assert (empty.exit_code, empty.output) == (0, "")
    assert (empty_there.exit_code, empty_there.output.startswith("Error")) == (1, True)
    assert (mine.execute("true").output, there.execute("true").output) == ("", "<no output>")
    assert ("Exit code: 3" in mine.execute("exit 3").output, "Exit code: 3" in there.execute("exit 3").output) == (
        False,
        True,
    )


def answered(library: Any, backend: Any, rules: list[tuple[str, str]], *calls_made: Any) -> list[str]:
    """The status of each call that an agent makes under rules about reading."""
    permissions = [library.FilesystemPermission(operations=["read"], paths=[path], mode=mode) for path, mode in rules]
    model = ScriptedModel(script=[*map(calls, calls_made), AIMessage("done")])
    agent = library.create_deep_agent(model, backend=backend, permissions=permissions)
    return [message.status for message in agent.invoke({"messages": "go"})["messages"] if message.type == "tool"]


def test_rules_cover_names_that_start_with_a_dot_and_grep_finds_what_they_allow(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".env").write_text("SECRET=1\n")
    mine, there = FilesystemBackend(tmp_path), peer_backends.FilesystemBackend(tmp_path, virtual_mode=True)
    read, listing = call("read_file", file_path="/work/.env"), call("ls", path="/work")
    assert answered(deepfs, mine, [("/work/**", "deny")], read, listing) == ["error", "error"]
    assert answered(deepagents, there, [("/work/**", "deny")], read, listing) == ["success", "success"]
    rules, search = [("/work/**", "allow"), ("/**", "deny")], call("grep", pattern="SECRET")
    assert answered(deepfs, mine, rules, search) == ["success"]
    assert answered(deepagents, there, rules, search) == ["success"]


def test_rules_over_a_backend_that_runs_commands(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    rules, read = [("/**", "deny")], call("read_file", file_path="/a")
    assert answered(deepfs, LocalShellBackend(tmp_path), rules, read) == ["error"]
    with pytest.raises(NotImplementedError):
        answered(deepagents, peer_backends.LocalShellBackend(tmp_path, virtual_mode=True), rules, read)


@pytest.mark.anyio
async def test_a_method_replaced_on_an_instance_is_not_called_by_its_async_form(
    anyio_backend_name: str, theirs: Any
) -> None:
    called: list[str] = []

    def grep(pattern: str, *_: Any, **__: Any) -> Any:
        called.append(pattern)
        return GrepResult(matches=[])

    ours: Any = MemoryBackend()
    ours.grep = theirs.grep = grep
    await ours.agrep("ours")
    if anyio_backend_name == "asyncio":  # The backend of deepagents needs asyncio.
        await theirs.agrep("theirs")
    assert called == ["theirs"] * (anyio_backend_name == "asyncio")


def test_an_override_of_write_must_check_for_existing_files_itself() -> None:
    class Own(MemoryBackend):
        def write(self, file_path: str, content: str) -> Any:
            kept.append(content)
            return super().write(f"{file_path}.{len(kept)}", content)

    kept: list[str] = []
    backend: BackendProtocol = Own()
    assert [backend.write("/a", text).ok for text in ("1", "2")] == [True, True]
    assert kept == ["1", "2"]
