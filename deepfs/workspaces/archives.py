"""The files of a tree as one zip file of this machine, and back."""

import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import datetime
from functools import partial
from typing import Final

from deepfs.backends._trees import list_present
from deepfs.backends.protocol import BACKEND_TYPES, as_backend
from deepfs.errors import AlreadyExistsError, BackendError, InvalidPathError, NotSupportedError, TooLargeError
from deepfs.sync import in_thread, run_shielded
from deepfs.text import paths
from deepfs.text.entries import files_of
from deepfs.types import item_error

_CHUNK_BYTES: Final = 1024 * 1024
_ENCRYPTED: Final = 1
"""The bit of the flags of an entry that says so."""
_EARLIEST: Final = 1980
"""The first year that a zip file can name."""


async def export_zip(backend: BACKEND_TYPES, file: str) -> int:
    """Write all files of a tree into a zip file, which is there once it is complete.

    Files are streamed, so none is held in memory where the backend streams. Links and modes are left out. Times are
    kept.

    Args:
        backend: The tree, also a workspace.
        file: The path on this machine; what is there is replaced.

    Returns:
        The number of files.

    Raises:
        DeepFSError: A file cannot be read.
        OSError: The zip file cannot be written.
    """
    tree = as_backend(backend)
    files = [entry.path for entry in files_of((await tree.alist_tree("/")).entries) if entry.kind == "file"]
    archive = await in_thread(partial(_open_part, file))
    try:
        times: dict[str, str | None] = {}
        for above in {paths.parent(path) for path in files}:
            times |= {each.path: each.modified_at for each in (await tree.als(above)).entries or ()}
        for path in files:
            info = zipfile.ZipInfo(path[1:], _time_of(times.get(path)))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            member = await in_thread(partial(archive.open, info, "w", force_zip64=True))
            try:
                async with aclosing(tree.adownload_stream(path)) as chunks:
                    async for chunk in chunks:
                        await in_thread(partial(member.write, chunk))
            finally:
                await run_shielded(partial(in_thread, member.close))
        await run_shielded(lambda: in_thread(partial(_finish, archive, file)))
    finally:
        await run_shielded(lambda: in_thread(partial(_remove, archive)))
    return len(files)


def _open_part(file: str) -> zipfile.ZipFile:
    descriptor, part = tempfile.mkstemp(".zip", ".deepfs-", os.path.dirname(os.path.abspath(file)))
    os.close(descriptor)
    return zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED)


def _time_of(modified_at: str | None) -> tuple[int, int, int, int, int, int]:
    with suppress(ValueError):
        time = datetime.fromisoformat(modified_at or "")
        if time.year >= _EARLIEST:
            return time.year, time.month, time.day, time.hour, time.minute, time.second
    return _EARLIEST, 1, 1, 0, 0, 0


def _finish(archive: zipfile.ZipFile, file: str) -> None:
    archive.close()
    assert archive.filename is not None
    with open(archive.filename, "rb+") as part:
        os.fsync(part.fileno())
    os.replace(archive.filename, file)


def _remove(archive: zipfile.ZipFile) -> None:
    """Remove what is left of an export that failed."""
    archive.close()
    with suppress(FileNotFoundError):
        os.unlink(archive.filename or "")


async def import_zip(
    file: str, backend: BACKEND_TYPES, *, overwrite: bool = False, max_bytes: int = 1024**3, max_files: int = 100_000
) -> int:
    """Store the files of a zip file in a tree. What the file has is checked before anything is stored.

    Args:
        file: The path on this machine.
        backend: The tree.
        overwrite: Whether files that are there are replaced.
        max_bytes: The most bytes of all files together, unpacked; by default 1 GiB.
        max_files: The most files; by default 100,000.

    Returns:
        The number of files.

    Raises:
        AlreadyExistsError: A file is there, and `overwrite` is False.
        InvalidPathError: A name is absolute, has `..`, is not valid for another reason, or is there twice.
        NotSupportedError: An entry is a link, encrypted, or packed by something else than deflate.
        TooLargeError: The files are more, or larger, than the limits.
        DeepFSError: A file cannot be stored; those before it are.
        OSError, zipfile.BadZipFile: The zip file cannot be read, or is damaged.
    """
    tree = as_backend(backend)
    archive = await in_thread(partial(zipfile.ZipFile, file))
    try:
        members = _check_members(archive, max_files, max_bytes)
        if not overwrite:
            present = {entry.path for entry in (await list_present(tree, "/")).entries}
            for path in sorted(members.keys() & present):
                raise AlreadyExistsError(path)
        for path, info in members.items():
            outcome = await tree.aupload_stream(path, _unpack(archive, info))
            if outcome.error is not None:
                raise item_error(outcome, "it cannot be stored")
    finally:
        await run_shielded(partial(in_thread, archive.close))
    return len(members)


def _check_members(archive: zipfile.ZipFile, max_files: int, max_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The files by their paths. The sizes that they declare are also the most that is unpacked of them."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > max_files or sum(info.file_size for info in infos) > max_bytes:
        raise TooLargeError(archive.filename or "", sum(info.file_size for info in infos), max_bytes)
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        path = f"/{info.orig_filename}"  # The other name ends before a NUL.
        kind = stat.S_IFMT(info.external_attr >> 16)
        if not paths.is_normal(path):
            raise InvalidPathError(info.orig_filename, "it is no path of a file in a tree")
        if path in members:
            raise InvalidPathError(path, "it is in the zip file twice")
        # What bzip2 and LZMA unpack of a few bytes has no bound.
        packed = info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if kind not in (0, stat.S_IFREG) or info.flag_bits & _ENCRYPTED or packed:
            raise NotSupportedError(path, "it is a link, encrypted, or packed in another way than by deflate")
        members[path] = info
    for path in members:
        for above in paths.ancestors(path):
            if above in members:
                raise InvalidPathError(path, "a file of the zip file is in its way")
    return members


async def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AsyncIterator[bytes]:
    """The content of a file. Raises BackendError if it is damaged."""
    try:
        member = await in_thread(partial(archive.open, info))
        try:
            while chunk := await in_thread(partial(member.read, _CHUNK_BYTES)):
                yield chunk
        finally:
            await run_shielded(partial(in_thread, member.close))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise BackendError(info.filename, "it is damaged in the zip file") from error
