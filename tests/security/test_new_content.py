"""New content carries over no right of the old: no set-id bits, no owner, no bits of a group that it does not have."""

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from anyio.to_thread import run_sync as in_thread

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk.writing import copy_access

pytestmark = pytest.mark.anyio

_SOMEBODY = 65534


async def chunks() -> AsyncIterator[bytes]:
    yield b"new"


CALLS: dict[str, Callable[[FilesystemBackend], Awaitable[object]]] = {
    "write": lambda backend: backend.awrite("/file", "new", overwrite=True),
    "edit": lambda backend: backend.aedit("/file", "old", "new"),
    "upload": lambda backend: backend.aupload_files([("/file", b"new")]),
    "upload_stream": lambda backend: backend.aupload_stream("/file", chunks()),
    "copy": lambda backend: backend.acopy("/other", "/file", overwrite=True),
}


def make(root: Path) -> None:
    (root / "other").write_text("new")
    (root / "file").write_text("old")
    if os.geteuid() == 0:
        os.chown(root / "file", _SOMEBODY, _SOMEBODY)
    (root / "file").chmod(0o6755)


async def test_a_replaced_file_has_no_set_id_bits_and_no_foreign_owner(tmp_path: Path) -> None:
    for number, name in enumerate(CALLS):
        root = tmp_path / str(number)
        await in_thread(root.mkdir)
        await in_thread(make, root)
        await CALLS[name](FilesystemBackend(root))
        file = root / "file"
        status = await in_thread(file.stat)
        assert await in_thread(file.read_text) == "new", name
        assert stat.S_IMODE(status.st_mode) == 0o755, name
        assert status.st_uid == os.geteuid(), name
        assert status.st_gid == (_SOMEBODY if os.geteuid() == 0 else os.getegid()), name


@pytest.mark.parametrize(("before", "after"), [(0o660, 0o600), (0o764, 0o744), (0o2775, 0o755), (0o666, 0o666)])
def test_a_group_that_cannot_be_given_leaves_no_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(os, "fchown", refuse)
    fstat = os.fstat
    with (tmp_path / "old").open("wb") as old, (tmp_path / "file").open("wb") as file:
        own = fstat(old.fileno())
        foreign = os.stat_result((stat.S_IFREG | before, *own[1:5], own.st_gid + 1, *own[6:]))
        number = old.fileno()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", lambda descriptor: foreign if descriptor == number else fstat(descriptor))
            copy_access("/file", number, file.fileno())
        assert stat.S_IMODE(fstat(file.fileno()).st_mode) == after
