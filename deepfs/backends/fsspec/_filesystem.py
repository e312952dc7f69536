"""Any backend as a filesystem of fsspec: `deepfs://name/path` for pandas, zarr, universal_pathlib and others.

>>> register_backend("notes", MemoryBackend())
>>> pandas.read_csv("deepfs://notes/today.csv")
"""

import errno
import io
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, TypeVar

from fsspec import AbstractFileSystem, register_implementation

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol, as_backend
from deepfs.errors import DeepFSError, ErrorCode, PermissionDeniedError
from deepfs.sync import call_sync
from deepfs.text import media
from deepfs.text.arguments import check_string
from deepfs.text.entries import EntryChange, TreeEntry
from deepfs.text.flat_tree import Change
from deepfs.text.lines import decode, version
from deepfs.types import FileInfo, Result

__all__ = ["DeepFSFileSystem", "register_backend", "unregister_backend"]

T = TypeVar("T")
ResultT = TypeVar("ResultT", bound=Result)

PROTOCOL: Final = "deepfs"
_ATTEMPTS: Final = 1000
"""How often an addition to a file is tried anew while others change the file."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_backends: dict[str, BackendProtocol] = {}


def register_backend(name: str, backend: BackendProtocol) -> None:
    """Make a backend available to all code of this process as `deepfs://name/`.

    Args:
        name: Letters, digits, `.`, `_` and `-`, beginning with a letter or digit. A backend of this name is replaced.
        backend: The backend. It is not closed by what uses it here.

    Raises:
        TypeError: `backend` is no backend.
        ValueError: For another name.
    """
    if not _NAME.fullmatch(check_string("name", name)):
        raise ValueError(f"a name has letters, digits, '.', '_' and '-' only, not {name!r:.100}")
    _backends[name] = as_backend(backend)
    _compose_registered.cache_clear()
    # In case the package was not installed with its entry points.
    register_implementation(PROTOCOL, DeepFSFileSystem, clobber=True)


def unregister_backend(name: str) -> None:
    """Forget a backend that was registered. Filesystems that use it already keep it.

    Args:
        name: Its name; one that is not registered is ignored.
    """
    _backends.pop(name, None)
    _compose_registered.cache_clear()


class _Names(MemoryBackend):
    """What is beside the registered backends: nothing, and nothing can be stored there."""

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        raise PermissionDeniedError(changes[0].path, "no backend is registered by this name")


@cache
def _compose_registered() -> BackendProtocol:
    """The registered backends as one tree."""
    return CompositeBackend(_Names(), {f"/{name}/": backend for name, backend in _backends.items()})


_ERRORS: Final[Mapping[ErrorCode, int]] = {
    ErrorCode.FILE_NOT_FOUND: errno.ENOENT,
    ErrorCode.IS_DIRECTORY: errno.EISDIR,
    ErrorCode.NOT_A_DIRECTORY: errno.ENOTDIR,
    ErrorCode.PERMISSION_DENIED: errno.EACCES,
    ErrorCode.INVALID_PATH: errno.EINVAL,
    ErrorCode.INVALID_CONTENT: errno.EINVAL,
    ErrorCode.INVALID_PATTERN: errno.EINVAL,
    ErrorCode.ALREADY_EXISTS: errno.EEXIST,
    ErrorCode.TOO_LARGE: errno.EFBIG,
    ErrorCode.QUOTA_EXCEEDED: errno.EDQUOT,
    ErrorCode.CONFLICT: errno.EBUSY,
    ErrorCode.TIMEOUT: errno.ETIMEDOUT,
    ErrorCode.UNSUPPORTED: errno.ENOTSUP,
}


def _os_error(code: str | None, text: str, path: str) -> OSError:
    """The error of Python for an error of a backend: `FileNotFoundError`, `PermissionError` and so on."""
    number = _ERRORS.get(ErrorCode(code), errno.EIO) if code in set(ErrorCode) else errno.EIO
    return OSError(number, text.removeprefix("Error: "), path)


def _check(result: ResultT, path: str) -> ResultT:
    if result.error is not None:
        raise _os_error(result.code, result.error, path)
    return result


class DeepFSFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a backend, for libraries that use fsspec.

    A file that is opened is read as a whole. What is written is stored when the file is closed, as a whole. If an
    exception ends the `with` block, only `fs.open(path, "wb")` itself drops it; `fsspec.open`, text and compression
    store what was written so far, unless they are within `with fs.transaction`. Failures are OSErrors. Empty
    directories are kept where the backend keeps them; elsewhere making one does nothing.

    Args:
        backend: The backend. Without one, the filesystem has a directory for each registered backend.
        **storage_options: What fsspec passes to every filesystem.

    Raises:
        TypeError: `backend` is no backend.
    """

    protocol = PROTOCOL
    # An instance costs nothing, and fsspec's cache would keep its backend.
    cachable = False

    def __init__(self, backend: BackendProtocol | None = None, **storage_options: Any) -> None:
        super().__init__(**storage_options)
        self._given = None if backend is None else as_backend(backend)

    @property
    def backend(self) -> BackendProtocol:
        """The backend, whose path `/a` is the name `a` here."""
        return _compose_registered() if self._given is None else self._given

    def _keeps_directories(self, name: str) -> bool:
        """Whether an empty directory of this name would be kept."""
        owner = _backends.get(name.partition("/")[0]) if self._given is None else self._given
        return owner is not None and owner.capabilities.keeps_empty_directories

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return str(super()._strip_protocol(path)).strip("/")

    @property
    def fsid(self) -> str:
        return PROTOCOL if self._given is None else f"{PROTOCOL}_{id(self._given)}"

    # --- looking ---

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        listed = self.backend.ls(f"/{path}")
        if listed.code == ErrorCode.NOT_A_DIRECTORY and (found := self._entry(path)) is not None:
            infos = [found]
        else:
            infos = [_info(entry) for entry in _check(listed, path).entries or ()]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self._entry(path) if path else _directory(path)
        if found is None:
            raise _os_error(ErrorCode.FILE_NOT_FOUND, f"File {path!r} not found", path)
        return found

    def _entry(self, path: str) -> dict[str, Any] | None:
        """What the listing of its directory says about `path`."""
        parent = self._parent(path)
        listed = self.backend.ls(f"/{parent}")
        if listed.code in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
            return None
        infos = [_info(entry) for entry in _check(listed, parent).entries or ()]
        return next((info for info in infos if info["name"] == path), None)

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        found = {info["name"]: info for info in self._tree(path) if withdirs or info["type"] == "file"}
        if maxdepth is not None:
            most = maxdepth + (path.count("/") if path else -1)
            found = {name: info for name, info in found.items() if name.count("/") <= most}
        found.pop("", None)
        if not detail:
            return sorted(found)
        # A tree says where a link leads, and a listing how large the file is there.
        of_links = {self._parent(name) for name, info in found.items() if info["size"] is None}
        listed: dict[str, dict[str, Any]] = {}
        for directory in of_links:
            with suppress(OSError):  # Whoever may not list it does not learn the sizes; or it is gone by now.
                listed |= {info["name"]: info for info in self.ls(directory)}
        return {name: listed.get(name, info) for name, info in sorted(found.items())}

    def _tree(self, path: str) -> Iterable[dict[str, Any]]:
        try:
            listing = self._call_backend(partial(self.backend.alist_tree, f"/{path}"), "find", path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return filter(None, map(_tree_info, listing.entries))

    def _call_backend(self, call: Callable[[], Coroutine[Any, Any, T]], name: str, path: str) -> T:
        """Make an async call of the backend that has no sync method."""
        try:
            return call_sync(self.backend, call, f"{type(self).__name__}.{name}()", "the backend's async methods")
        except DeepFSError as error:
            raise _os_error(error.code, str(error), path) from error

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        path = self._strip_protocol(path)
        if end is None or end < 0 or (start or 0) < 0:
            return self._content(path)[start:end]
        return self._call_backend(partial(_range, self.backend, f"/{path}", start or 0, end), "cat_file", path)

    def _content(self, path: str) -> bytes:
        [answer] = self.backend.download_files([f"/{path}"])
        if answer.error is not None or answer.content is None:
            raise _os_error(answer.error, "The file cannot be read", path)
        return answer.content

    def created(self, path: str) -> datetime:
        path = self._strip_protocol(path)
        data = _check(self.backend.read_raw(f"/{path}"), path).data
        return _time(None if data is None else data.created_at, path)

    def modified(self, path: str) -> datetime:
        return _time(self.info(path).get("modified"), self._strip_protocol(path))

    def ukey(self, path: str) -> str:
        """The version of a file, which identifies its content.

        Args:
            path: The path.

        Returns:
            A hexadecimal number, or another text.

        Raises:
            OSError: The file cannot be read.
        """
        path = self._strip_protocol(path)
        read = self.backend.read(f"/{path}", 0, 1)
        return read.version if read.ok and read.version is not None else str(super().ukey(path))

    def checksum(self, path: str) -> int:
        return int.from_bytes(self.ukey(path).encode())

    # --- changing ---

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **kwargs: Any) -> io.BytesIO:
        path = self._strip_protocol(path)
        if mode == "rb":
            return _ReadFile(self, path, self._content(path))
        if mode not in ("wb", "xb", "ab"):
            raise io.UnsupportedOperation(f"files are opened in the modes rb, wb, xb and ab, not {mode!r:.20}")
        self._check_writable(path, mode)
        return _WrittenFile(self, path, mode, autocommit=autocommit)

    def _check_writable(self, path: str, mode: str) -> None:
        """Raise what can be known before the content is."""
        try:
            kind = self.info(path)["type"]
        except FileNotFoundError:
            return
        if kind == "directory":
            raise _os_error(ErrorCode.IS_DIRECTORY, f"{path!r} is a directory", path)
        if mode == "xb":
            raise _os_error(ErrorCode.ALREADY_EXISTS, f"File {path!r} already exists", path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        path, content = self._strip_protocol(path), bytes(value)
        if mode != "create":
            return self._upload(path, content)
        # Only a write of text is refused by the storage itself where there is a file.
        text = None if media.is_binary_name(path) else decode(content)
        if text is not None:
            _check(self.backend.write(f"/{path}", text), path)
            return None
        self._check_writable(path, "xb")
        return self._upload(path, content)

    def append(self, path: str, content: bytes) -> None:
        """Store content behind that of a file. To text it is added whatever others do at the same time.

        Args:
            path: The path of the file, which need not exist.
            content: The content.

        Raises:
            OSError: It could not be stored.
        """
        path = self._strip_protocol(path)
        for _ in range(_ATTEMPTS):
            try:
                before = self._content(path)
            except FileNotFoundError:
                before = None
            text = None if media.is_binary_name(path) else decode((before or b"") + content)
            if text is None:  # There is no conditional write of binary content.
                return self._upload(path, (before or b"") + content)
            stored = self.backend.write(f"/{path}", text, if_match=None if before is None else version(before))
            if stored.code == ErrorCode.UNSUPPORTED:
                return self._upload(path, (before or b"") + content)
            if stored.code not in (ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS):
                _check(stored, path)
                return None
        raise _os_error(ErrorCode.CONFLICT, "Others change the file all the time", path)

    def _upload(self, path: str, content: bytes) -> None:
        [answer] = self.backend.upload_files([(f"/{path}", content)])
        if answer.error is not None:
            raise _os_error(answer.error, "The file cannot be stored", path)

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        if self.info(path)["type"] == "directory":
            return self.rmdir(path)
        _check(self.backend.delete(f"/{path}"), path)
        return None

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for each in self.expand_path(path):
            info = self.info(each)
            if info["type"] != "directory" or recursive:
                _check(self.backend.delete(f"/{info['name']}"), each)
            else:
                self.rmdir(each)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
        else:
            _check(self.backend.copy(f"/{path1}", f"/{path2}", overwrite=True), path1)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        if not _is_one(path1) or not isinstance(path2, str) or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source != target and (path2.endswith("/") or self.isdir(target)):
            target = f"{target}/{source.rpartition('/')[2]}".lstrip("/")
        _check(self.backend.move(f"/{source}", f"/{target}", overwrite=not self.isdir(source)), source)

    # --- directories ---

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        parent = self._parent(path)
        if self.exists(path):
            raise _os_error(ErrorCode.ALREADY_EXISTS, f"{path!r} already exists", path)
        if create_parents and parent:
            self.makedirs(parent, exist_ok=True)
        if self._keeps_directories(path):
            self._change(EntryChange(f"/{path}", "make_directory"))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not self.isdir(path):
            self.mkdir(path)
        elif not exist_ok:
            raise _os_error(ErrorCode.ALREADY_EXISTS, f"{path!r} already exists", path)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if _check(self.backend.ls(f"/{path}"), path).entries:
            raise OSError(errno.ENOTEMPTY, "The directory is not empty", path)
        if path and self._keeps_directories(path):
            self._change(EntryChange(f"/{path}", "remove_directory"))

    def _change(self, change: EntryChange) -> None:
        [answer] = self._call_backend(partial(self.backend.achange_entries, [change]), "mkdir", change.path)
        if answer.error is not None:
            raise _os_error(answer.error, "The directory cannot be changed", change.path)


# --- open files ------------------------------------------------------------------------------------------------------


class _ReadFile(io.BytesIO):
    """An open file, with the content that it had when it was opened."""

    mode = "rb"

    def __init__(self, fs: DeepFSFileSystem, path: str, content: bytes) -> None:
        super().__init__(content)
        self.fs, self.path, self.size = fs, path, len(content)

    def write(self, _: Any) -> int:
        raise io.UnsupportedOperation("the file was opened to be read")

    def writable(self) -> bool:
        return False


class _WrittenFile(io.BytesIO):
    """An open file that is stored when it is closed, or with the transaction that it belongs to."""

    mode: str

    def __init__(self, fs: DeepFSFileSystem, path: str, mode: str, *, autocommit: bool) -> None:
        super().__init__()
        self.fs, self.path, self.mode = fs, path, mode
        self.autocommit = autocommit
        self._content: bytes | None = None

    def readable(self) -> bool:
        return False

    def read(self, size: int | None = -1, /) -> bytes:
        raise io.UnsupportedOperation("the file was opened to be written")

    def close(self) -> None:
        if self.closed:
            return
        self._content = self.getvalue()
        super().close()
        if self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Store what was written."""
        content, self._content = self._content, None
        if content is None:
            return
        if self.mode == "ab":
            self.fs.append(self.path, content)
        else:
            self.fs.pipe_file(self.path, content, mode="create" if self.mode == "xb" else "overwrite")

    def discard(self) -> None:
        """Drop what was written."""
        self.autocommit, self._content = False, None
        super().close()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


# --- values ----------------------------------------------------------------------------------------------------------


def _is_one(path: Any) -> bool:
    """Whether `path` names one file or directory, and not what is in it or what matches."""
    return isinstance(path, str) and not path.endswith("/") and not any(sign in path for sign in "*?[")


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _info(entry: FileInfo) -> dict[str, Any]:
    if entry.is_dir:
        return _directory(entry.path.strip("/"))
    return {"name": entry.path[1:], "size": entry.size, "type": "file", "modified": entry.modified_at}


def _tree_info(entry: TreeEntry) -> dict[str, Any] | None:
    kind = entry.leads_to if entry.kind == "link" else entry.kind
    if kind == "directory":
        return _directory(entry.path[1:]) if entry.kind == "directory" else None
    return {"name": entry.path[1:], "size": entry.size, "type": "file"} if kind == "file" else None


def _time(given: str | None, path: str) -> datetime:
    if given is None:
        raise _os_error(ErrorCode.UNSUPPORTED, "The backend does not know this time", path)
    return datetime.fromisoformat(given)


async def _range(backend: BackendProtocol, path: str, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`; what comes behind them is not read."""
    parts: list[bytes] = []
    seen = 0
    async with aclosing(backend.adownload_stream(path)) as chunks:
        async for chunk in chunks:
            parts.append(chunk[max(0, start - seen) : max(0, end - seen)])
            seen += len(chunk)
            if seen >= end:
                break
    return b"".join(parts)
