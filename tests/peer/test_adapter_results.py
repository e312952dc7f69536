"""Results of the adapter have the form that the tools, rules and programs of deepagents expect."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deepagents import FilesystemMiddleware, FilesystemPermission
from deepagents import backends as peer_backends
from deepagents.backends import utils as peer_utils
from langchain.tools import ToolRuntime
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    MemoryBackend,
    StateBackend,
    StoreBackend,
)
from deepfs.backends import LocalShellBackend
from deepfs.compat.deepagents import from_deepagents, to_deepagents
from deepfs.policy import AuditedBackend, WrapperBackend
from support.rooted import RootedBackend

_PNG = b"\x89PNG\r\n\x1a\n"


def tool(backend: Any, name: str, permissions: list[FilesystemPermission] | None = None, **options: Any) -> Any:
    """The result of a tool of deepagents."""
    middleware: Any = FilesystemMiddleware(backend=backend, permissions=permissions)
    [found] = [each for each in middleware.tools if each.name == name]
    runtime = ToolRuntime(
        state={}, context=None, config={}, stream_writer=lambda _: None, tool_call_id="call", store=None
    )
    return found.func(runtime=runtime, **options)


# --- searches --------------------------------------------------------------------------------------------------------


def test_files_that_could_not_be_searched_are_reported() -> None:
    backend = to_deepagents(MemoryBackend())
    backend.upload_files([("/a.bin", b"needle\xff\x00"), ("/b.bin", b"needle\xff\x00")])
    nothing = tool(backend, "grep", pattern="needle")
    assert nothing.status == "error"
    assert nothing.content.startswith("Error: 2 files could not be searched")
    assert "No matches" not in nothing.content
    backend.write("/c.txt", "needle\n")
    some = tool(backend, "grep", pattern="needle")
    assert "2 files could not be searched" in some.content
    assert "Partial matches:\n/c.txt" in some.content
    assert backend.grep("absent").error is None


def test_context_lines_equal_those_of_deepagents(tmp_path: Path) -> None:
    text = "one\nhit a\nhit b\ntwo\nthree\nfour\nhit c\nfive\nhit d\n"
    (tmp_path / "a.txt").write_text(text)
    theirs: Any = peer_backends.FilesystemBackend(tmp_path, virtual_mode=True)
    ours: Any = to_deepagents(FilesystemBackend(tmp_path))
    for lines, max_count in product((1, 2, 9), (None, 2)):
        found = ours.grep("hit", context_lines=lines, max_count=max_count)
        assert found == theirs.grep("hit", context_lines=lines, max_count=max_count)
        assert all(type(line) is dict for match in found.matches for line in match["context_before"])
    assert "context_before" not in ours.grep("hit").matches[0]
    with pytest.raises(ValueError, match="context_lines"):
        ours.grep("hit", context_lines=-1)


# --- binary files ----------------------------------------------------------------------------------------------------


def test_binary_files_that_cannot_be_shown_are_errors() -> None:
    backend = to_deepagents(MemoryBackend())
    backend.upload_files(
        [("/latin.txt", b"caf\xe9\n"), ("/data.bin", b"\x00\x01"), ("/a.png", _PNG), ("/a.bmp", b"BM\0")]
    )
    for path in ("/latin.txt", "/data.bin", "/a.bmp"):
        answer = tool(backend, "read_file", file_path=path)
        assert answer.status == "error"
        assert "is binary" in answer.content
    assert tool(backend, "read_file", file_path="/a.png").content_blocks[0]["type"] == "image"


def test_the_shown_extensions_are_those_of_deepagents() -> None:
    from deepfs.compat.deepagents_backends import SHOWN_EXTENSIONS

    known = {*peer_utils._EXTENSION_TO_FILE_TYPE, *peer_utils._VIDEO_EXTRA_EXTENSIONS}
    assert known == SHOWN_EXTENSIONS


# --- commands --------------------------------------------------------------------------------------------------------


def test_a_command_that_timed_out_has_exit_code_124(tmp_path: Path) -> None:
    backend = LocalShellBackend(tmp_path)
    for adapted in (to_deepagents(backend), to_deepagents(CompositeBackend(backend, {"/m/": MemoryBackend()}))):
        answer = tool(adapted, "execute", command="echo begun; sleep 60", timeout=1)
        assert answer.artifact["exit_code"] == 124
        assert "begun" in answer.content
    assert tool(to_deepagents(backend), "execute", command="exit 3").artifact["exit_code"] == 3


def test_without_execution_the_error_is_that_of_deepagents() -> None:
    composite: Any = to_deepagents(CompositeBackend(MemoryBackend(), {"/m/": MemoryBackend()}))
    with pytest.raises(NotImplementedError):
        composite.execute("true")
    assert "Execution not available" in tool(composite, "execute", command="true").content


# --- classes of adapted backends -------------------------------------------------------------------------------------


def test_an_adapted_directory_is_a_filesystem_backend_of_deepagents(tmp_path: Path) -> None:
    for backend in (FilesystemBackend(tmp_path), AuditedBackend(FilesystemBackend(tmp_path), lambda _: None)):
        adapted: Any = to_deepagents(backend)
        assert isinstance(adapted, peer_backends.FilesystemBackend)
        assert (adapted.cwd, adapted.virtual_mode, adapted.max_file_size_bytes) == (tmp_path, True, 10 * 1024 * 1024)
    host: Any = to_deepagents(FilesystemBackend(tmp_path, virtual_mode=False, max_file_size_mb=1))
    assert (host.cwd, host.virtual_mode, host.max_file_size_bytes) == (tmp_path, False, 1024 * 1024)
    assert not isinstance(to_deepagents(MemoryBackend()), peer_backends.FilesystemBackend)
    assert not isinstance(to_deepagents(WrapperBackend(MemoryBackend())), peer_backends.FilesystemBackend)
    unknown: Any = to_deepagents(RootedBackend(CompositeBackend(MemoryBackend()), "/x"))
    assert not hasattr(unknown, "cwd")


def test_an_adapted_composite_is_a_composite_of_deepagents(tmp_path: Path) -> None:
    tree = CompositeBackend(
        StateBackend(),
        {"/disk": FilesystemBackend(tmp_path), "/a/b/": StoreBackend(InMemoryStore(), namespace=("a",))},
        artifacts_root="/disk",
    )
    for backend in (tree, from_deepagents(to_deepagents(tree))):
        adapted: Any = to_deepagents(backend)
        assert isinstance(adapted, peer_backends.CompositeBackend)
    adapted = to_deepagents(tree)
    assert adapted.artifacts_root == "/disk"
    assert [prefix for prefix, _ in adapted.sorted_routes] == ["/disk/", "/a/b/"]
    assert isinstance(adapted.default, peer_backends.StateBackend)
    assert isinstance(adapted.routes["/disk/"], peer_backends.FilesystemBackend)
    middleware: Any = FilesystemMiddleware(backend=adapted)
    assert middleware._large_tool_results_prefix == "/disk/large_tool_results"
    behind_a_policy: Any = FilesystemMiddleware(backend=to_deepagents(WrapperBackend(tree)))
    assert behind_a_policy._large_tool_results_prefix == "/disk/large_tool_results"


def test_beside_a_shell_only_rules_for_other_mounts_are_accepted(tmp_path: Path) -> None:
    shell = LocalShellBackend(tmp_path)

    def deny(path: str) -> list[FilesystemPermission]:
        return [FilesystemPermission(operations=["read"], paths=[path], mode="deny")]

    beside = to_deepagents(CompositeBackend(shell, {"/m": MemoryBackend()}))
    FilesystemMiddleware(backend=beside, permissions=deny("/m/secrets/**"))
    runs_in_it = to_deepagents(CompositeBackend(MemoryBackend(), {"/m": shell, "/n": MemoryBackend()}, executor="/m"))
    FilesystemMiddleware(backend=runs_in_it, permissions=deny("/n/secrets/**"))
    # A command could read the files that these rules deny.
    for backend, path in ((beside, "/secrets/**"), (beside, "/mine/**"), (runs_in_it, "/m/secrets/**")):
        with pytest.raises(NotImplementedError):
            FilesystemMiddleware(backend=backend, permissions=deny(path))
    for adapted in (beside, runs_in_it):
        assert "hello" in tool(adapted, "execute", command="echo hello").content
