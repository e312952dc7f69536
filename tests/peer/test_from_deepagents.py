"""Backends of deepagents adapted for deepfs work like other backends, on both event loops."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from deepagents import backends as peer_backends
from deepagents.backends import protocol as peer
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore

from deepfs import (
    BackendProtocol,
    CompositeBackend,
    ErrorCode,
    MemoryBackend,
    StateBackend,
    create_deep_agent,
    supports_execute,
)
from deepfs.compat.deepagents import from_deepagents, to_deepagents
from support.chat import ScriptedModel, call, calls

pytestmark = pytest.mark.anyio

to_deepagents(MemoryBackend())  # The first call looks up the installed version on disk.


@pytest.fixture(params=["disk", "store"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    if request.param == "disk":
        return from_deepagents(peer_backends.FilesystemBackend(tmp_path, virtual_mode=True))
    return from_deepagents(peer_backends.StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",)))


async def test_an_adapted_backend_reads_and_writes(backend: BackendProtocol) -> None:
    assert (await backend.awrite("/dir/a.txt", "one\ntwo\nthree\n")).ok
    again = await backend.awrite("/dir/a.txt", "x")
    assert again.code is ErrorCode.ALREADY_EXISTS
    shown = await backend.aread("/dir/a.txt", 1, 1)
    assert (shown.file_data and shown.file_data.content, shown.start_line, shown.next_offset) == ("two\n", 2, 2)
    whole = await backend.aread("/dir/a.txt")
    assert (whole.file_data and whole.file_data.content, whole.next_offset) == ("one\ntwo\nthree\n", None)
    assert (await backend.awrite("/dir/a.txt", "new\n", if_match=whole.version)).ok
    assert (await backend.awrite("/dir/a.txt", "x", if_match=whole.version)).code is ErrorCode.CONFLICT
    assert (await backend.awrite("/dir/a.txt", "newer\n", overwrite=True)).ok
    assert (await backend.aedit("/dir/a.txt", "newer", "newest")).occurrences == 1
    assert (await backend.aedit("/dir/a.txt", "none", "x")).code is ErrorCode.NO_MATCH
    assert [info.path for info in (await backend.als("/")).entries or ()] == ["/dir/"]


async def test_errors_have_codes(backend: BackendProtocol) -> None:
    await backend.awrite("/dir/a.txt", "one\n")
    assert (await backend.aread("/none")).code is ErrorCode.FILE_NOT_FOUND
    assert (await backend.aread("/dir")).code is ErrorCode.IS_DIRECTORY
    assert (await backend.als("/none")).code is ErrorCode.FILE_NOT_FOUND
    assert (await backend.als("/dir/a.txt")).code is ErrorCode.NOT_A_DIRECTORY
    assert (await backend.awrite("/dir/a.txt/b", "x")).code is ErrorCode.NOT_A_DIRECTORY
    assert (await backend.awrite("/dir", "x")).code is ErrorCode.IS_DIRECTORY
    assert (await backend.adelete("/none")).code is ErrorCode.FILE_NOT_FOUND
    assert (await backend.adelete("/dir", if_match="1")).code is ErrorCode.IS_DIRECTORY
    assert (await backend.aread("/../a")).code is ErrorCode.INVALID_PATH
    assert (await backend.aglob("*", "/none")).code is ErrorCode.FILE_NOT_FOUND


async def test_bytes_are_uploaded_downloaded_and_moved_across_mounts(backend: BackendProtocol) -> None:
    tree = CompositeBackend(MemoryBackend(), {"/peer/": backend})
    [uploaded] = await tree.aupload_files([("/peer/a.bin", b"\xff\x00")])
    assert uploaded.error is None
    assert (await tree.amove("/peer/a.bin", "/a.bin")).ok
    [here, there] = await tree.adownload_files(["/a.bin", "/peer/a.bin"])
    assert (here.content, there.error) == (b"\xff\x00", "file_not_found")


class PartnerSandbox(peer.SandboxBackendProtocol):
    """A third-party sandbox with sync methods only and without `delete`."""

    @property
    def id(self) -> str:
        return "partner-1"

    def execute(self, command: str, *, timeout: int | None = None) -> peer.ExecuteResponse:
        return peer.ExecuteResponse(output=f"{command} {timeout}", exit_code=0)

    def ls(self, path: str) -> peer.LsResult:
        return peer.LsResult(entries=[])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> peer.ReadResult:
        return peer.ReadResult(error=f"File '{file_path}' not found")

    def write(self, file_path: str, content: str) -> peer.WriteResult:
        return peer.WriteResult(error="read-only file system")

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> peer.GrepResult:
        return peer.GrepResult(error="permission denied")


async def test_an_adapted_sandbox_executes() -> None:
    sandbox: Any = from_deepagents(PartnerSandbox())
    assert supports_execute(sandbox)
    assert sandbox.id == "partner-1"
    assert (await sandbox.aexecute("make")).output == "make None"
    assert (await sandbox.aexecute("make", timeout=3)).output == "make 3"
    assert (await sandbox.adelete("/a")).code is ErrorCode.UNSUPPORTED
    assert (await sandbox.aglob("*")).code is ErrorCode.UNSUPPORTED
    for failed in (await sandbox.awrite("/a", "x"), await sandbox.agrep("x")):
        assert failed.code is ErrorCode.PERMISSION_DENIED
    assert supports_execute(CompositeBackend(sandbox, {"/m/": MemoryBackend()}))


@pytest.mark.parametrize("given", [lambda backend: backend, from_deepagents])
def test_parallel_edits_of_files_in_state_are_merged(given: Any) -> None:
    tree = peer_backends.CompositeBackend(
        default=peer_backends.StateBackend(),
        routes={"/work/": peer_backends.CompositeBackend(default=peer_backends.StateBackend(), routes={})},
        artifacts_root="/work",
    )
    edits = [
        call("edit_file", file_path="/work/a", old_string=word, new_string=word.upper()) for word in ("one", "two")
    ]
    write = call("write_file", file_path="/work/a", content="one\ntwo\n")
    model = ScriptedModel(script=[calls(write), calls(*edits), AIMessage("done")])
    state = create_deep_agent(model, backend=given(tree)).invoke({"messages": [("user", "go")]})
    assert [file["content"] for file in state["files"].values()] == ["ONE\nTWO\n"]
    assert "execute" not in model.offered


def test_only_backends_of_state_are_replaced_by_those_of_deepfs_and_subclasses_are_not() -> None:
    class Own(peer_backends.StateBackend):
        pass

    theirs = peer_backends.StateBackend()
    tree: Any = from_deepagents(peer_backends.CompositeBackend(default=theirs, routes={"/own/": Own()}))
    assert isinstance(tree, CompositeBackend)
    assert isinstance(tree.default, StateBackend)
    assert isinstance(from_deepagents(theirs), StateBackend)
    assert not isinstance(from_deepagents(Own()), StateBackend)
    for backend in (theirs, Own()):
        assert isinstance(to_deepagents(from_deepagents(backend)), peer_backends.StateBackend)
    with pytest.raises(TypeError, match="MemoryBackend"):
        from_deepagents(MemoryBackend())


async def test_a_sync_override_is_called_though_its_base_has_an_async_method() -> None:
    class Guarded(peer_backends.StoreBackend):
        def write(self, file_path: str, content: str) -> peer.WriteResult:
            if file_path.startswith("/released"):
                return peer.WriteResult(error="Writes are not allowed there")
            return super().write(file_path, content)

    adapted = from_deepagents(Guarded(store=InMemoryStore(), namespace=lambda _: ("files",)))
    assert (await adapted.awrite("/released/a", "x")).code is ErrorCode.PERMISSION_DENIED
    assert (await adapted.awrite("/draft/a", "x")).ok


async def test_a_class_whose_read_raises_for_a_missing_file_can_be_written_to() -> None:
    class Documents(peer.BackendProtocol):
        error: type[Exception] = KeyError

        def __init__(self) -> None:
            self.texts: dict[str, str] = {}

        def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> peer.ReadResult:
            if file_path not in self.texts:
                raise self.error(file_path)
            return peer.ReadResult(file_data={"content": self.texts[file_path], "encoding": "utf-8"})

        def write(self, file_path: str, content: str) -> peer.WriteResult:
            self.texts[file_path] = content
            return peer.WriteResult(path=file_path)

    for Documents.error in (FileNotFoundError, KeyError):
        adapted = from_deepagents(Documents())
        assert (await adapted.awrite("/docs/a", "x")).ok
        assert (await adapted.awrite("/docs/a", "y")).code is ErrorCode.ALREADY_EXISTS
        assert (await adapted.awrite("/docs/b", "1\n2\n3\n4\n")).ok
        assert (await adapted.aread("/docs/b", 0, 1)).file_data.content.startswith("1\n")  # type: ignore[union-attr]


async def test_a_file_is_not_replaced_where_its_read_fails_for_an_unknown_reason() -> None:
    class Hub(peer.BackendProtocol):
        texts: ClassVar[dict[str, str]] = {"/a": "precious"}

        def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> peer.ReadResult:
            return peer.ReadResult(error="Hub unavailable: 503")

        def write(self, file_path: str, content: str) -> peer.WriteResult:
            self.texts[file_path] = content
            return peer.WriteResult(path=file_path)

    written = await from_deepagents(Hub()).awrite("/a", "new")
    assert (written.code, written.error) == (ErrorCode.BACKEND_ERROR, "Hub unavailable: 503")
    assert Hub.texts == {"/a": "precious"}
