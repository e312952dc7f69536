"""A backend as a workspace of pydantic-ai."""

from importlib import import_module
from pathlib import Path

import pytest

from deepfs import BackendProtocol, FilesystemBackend, FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.compat.pydantic_ai import WorkspaceFiles

pytestmark = [pytest.mark.anyio, pytest.mark.needs("pydantic-ai-slim")]


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    import_module("pydantic_ai.workspaces")  # Here, since importing it reads files, which would block the event loop.
    return MemoryBackend() if request.param == "memory" else FilesystemBackend(tmp_path)


async def test_a_workspace_has_the_files_of_the_backend(files: BackendProtocol) -> None:
    from pydantic_ai.workspaces import FileEntry, SupportsFilesystem, Workspace, WorkspaceBackend

    backend = WorkspaceFiles(files)
    assert isinstance(backend, WorkspaceBackend)
    assert isinstance(backend, SupportsFilesystem)
    workspace = Workspace(backend)
    await workspace.write_bytes("a/b.bin", b"\0\xff")
    assert await workspace.read_bytes("/a/b.bin") == b"\0\xff"
    assert await workspace.stat("a") == FileEntry(name="a", path="/a", is_dir=True, size=None)
    assert await workspace.list_dir("a") == [FileEntry(name="b.bin", path="/a/b.bin", is_dir=False, size=2)]
    assert await workspace.stat("a/b.bin") == FileEntry(name="b.bin", path="/a/b.bin", is_dir=False, size=2)
    await workspace.make_dir("empty/x")
    assert await workspace.exists("empty/x") is files.capabilities.keeps_empty_directories
    await workspace.remove("a")
    assert [await workspace.exists(path) for path in ("a", "/")] == [False, True]


async def test_failures_are_the_errors_of_the_protocol(files: BackendProtocol) -> None:
    await files.aupload_files([("/d/f", b"x"), ("/locked", b"x")])
    backend = WorkspaceFiles(PermissionedBackend(files, [FilesystemPermission(["read", "write"], ["/locked"], "deny")]))
    for call, error in (
        (lambda: backend.read_bytes("/none"), FileNotFoundError),
        (lambda: backend.read_bytes("/d"), IsADirectoryError),
        (lambda: backend.write_bytes("/d", b""), IsADirectoryError),
        (lambda: backend.stat("/none"), FileNotFoundError),
        (lambda: backend.list_dir("/d/f"), NotADirectoryError),
        (lambda: backend.make_dir("/d/f"), FileExistsError),
        (lambda: backend.make_dir("/d/f/g"), NotADirectoryError),
        (lambda: backend.remove("/none"), FileNotFoundError),
        (lambda: backend.remove("/"), ValueError),
        (lambda: backend.read_bytes("/locked"), PermissionError),
        (lambda: backend.remove("/locked"), PermissionError),
    ):
        with pytest.raises(error):
            await call()
