"""Files in any filesystem of fsspec."""

import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

from deepfs._brief import address
from deepfs.backends.flat import StorageBackend
from deepfs.backends.fsspec.calls import FilesystemCalls, protocols_of
from deepfs.backends.fsspec.files import AwaitedFiles, BlockingFiles
from deepfs.backends.namespace import NamespaceFactory, check_chosen_prefix, check_prefix, choice_in, fixed_or_chosen
from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.storage.runners import RetryPolicy, Storage, check_policy
from deepfs.text import paths
from deepfs.text.arguments import check_bool, check_installed
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.threads import pool
from deepfs.threads.forks import ForkSafeLock
from deepfs.threads.locks import path_locks

__all__ = ["FsspecBackend"]

T = TypeVar("T")

_LOCAL: Final = frozenset({"file", "local"})
_CACHES: Final = frozenset({"blockcache", "cached", "filecache", "simplecache"})
"""Filesystems that keep copies of files, which may be older than what they are copies of."""
_FORWARDING: Final = frozenset({"async_wrapper", "asyncwrapper", "dir"})
_FRESH: Final = {"use_listings_cache": False, "skip_instance_cache": True}


class FsspecBackend(StorageBackend):
    """Files in any filesystem of fsspec, by URL (`s3://bucket/prefix`, `sftp://host/path`, chained ones) or object.

    The calls of async filesystems are awaited on the event loop that the filesystem belongs to; those of sync ones are
    made in worker threads, one at a time. Listings are not cached. Links are hidden and not followed.

    Within a process, operations exclude each other as everywhere. Between processes, a file is checked right before it
    is changed, which leaves a moment for another process; only S3 compares and stores in one step.

    Args:
        url_or_filesystem: A URL of fsspec, or a filesystem object. The backend does not close an object.
        root: The directory in the filesystem, behind that of the URL: a path; a tuple of names, of which each is one
            segment whatever it holds; or a factory of these that gets the `Runtime` of the running node (None outside
            a graph).
        retries: How often and how long failing calls are tried again; None is the default policy.
        unsafe_overwrites: Whether files are changed without the check that no other process has changed them since
            they were read. It saves a call.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.
        **storage_options: What fsspec passes to the filesystem, with a URL only.

    Raises:
        ImportError: Without the extra `fsspec`, or without the package that the filesystem needs.
        TypeError: For an argument of another type.
        ValueError: For local files, for which there is `FilesystemBackend`; for caching filesystems, whose answers may
            be outdated; for an unknown protocol.
    """

    capabilities: Capabilities = Capabilities(keeps_created_at=False, durable=True)
    _shown = ("_source.shown", "root=_given_root")
    _asks_together = True

    def __init__(
        self,
        url_or_filesystem: Any,
        root: str | Sequence[str] | NamespaceFactory = "",
        *,
        retries: RetryPolicy | None = None,
        unsafe_overwrites: bool = False,
        max_file_size_mb: int = 10,
        **storage_options: Any,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self._root = fixed_or_chosen("root", root, check_prefix, check_chosen_prefix)
        self._choice = choice_in(self._root)
        self._given_root = root if callable(root) else self._root()
        self._retries = check_policy(retries)
        check_bool("unsafe_overwrites", unsafe_overwrites)
        self._source = _source_of(url_or_filesystem, storage_options)
        self._unsafe_overwrites = unsafe_overwrites
        if "memory" in self._source.protocols:
            self.capabilities = Capabilities(keeps_created_at=False)

    def _storage(self) -> Storage:
        kind = AwaitedFiles if self._source.is_async else BlockingFiles
        opened = partial(self._source.open, self._retries)
        return kind(opened, _join(self._source.root, self._root()), checks=not self._unsafe_overwrites)

    def _full(self, path: str) -> str:
        """The path of a file in the filesystem, whichever backend reaches it."""
        top = _join(self._source.root, self._root()).strip("/")
        return f"/{top}{'' if path == '/' else path}" if top else path

    def _scope(self) -> Hashable:
        return "fsspec", self._source.identity

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        # Coarser than `_scope`, since objects with other options may reach the same files.
        return path_locks(("fsspec", self._source.protocols)).hold(*map(self._full, held))

    async def astorage_place(self, path: str) -> StoragePlace:
        return flat_place(self._scope(), self._full(paths.normalize(path)), storage=self._scope())

    def bound_to_this_thread(self) -> bool:
        calls = self._source.calls
        return calls is not None and calls.runs_here()

    async def aclose(self) -> None:
        # The finalizers of a filesystem may wait for its connections to be closed.
        await pool.run(self._source.close)


# --- the filesystem --------------------------------------------------------------------------------------------------


class _Source:
    """A directory in a filesystem that the caller has made."""

    protocols: frozenset[str]
    root: str
    is_async: bool
    identity: Hashable
    """Equal for objects over the same files."""
    shown: str
    """For the repr of the backend, without secrets."""
    calls: FilesystemCalls | None = None

    def __init__(self, filesystem: Any, root: str) -> None:
        self.protocols = protocols_of(filesystem)
        self.root = root
        self.is_async = bool(filesystem.async_impl)
        is_shared = "memory" in self.protocols and filesystem.store is type(filesystem).store
        self.identity = "memory" if is_shared else id(filesystem)
        self.shown = f"{min(self.protocols, default=type(filesystem).__name__)}://{root.lstrip('/')}"
        self._filesystem = filesystem

    def open(self, policy: RetryPolicy) -> FilesystemCalls:
        """The calls of the filesystem."""
        if (calls := self.calls) is None:
            calls = self.calls = FilesystemCalls(self._filesystem, policy)
        return calls

    def close(self) -> None:
        """Let go of what was opened here."""


class _UrlSource(_Source):
    """The filesystem that a URL names. It is made at the first operation, and anew in a forked child."""

    def __init__(self, url: str, root: str, options: Mapping[str, Any]) -> None:
        from fsspec.core import get_filesystem_class, split_protocol

        first, chained, behind = url.partition("::")
        first = f"{first}://" if chained and "://" not in first else first
        kind = get_filesystem_class(split_protocol(first)[0] or "file")
        self.protocols = protocols_of(kind)
        self.root = _join(str(kind._strip_protocol(first)), root)
        self.is_async = bool(kind.async_impl)
        given = sorted({**kind._get_kwargs_from_urls(first), **options}.items())
        # As a digest, since there are passwords among the options.
        text = repr((behind, _identify(given)))
        self.identity = "memory" if "memory" in self.protocols else sha256(text.encode()).digest()
        self.shown = address(url)
        self._url, self._options = url, options
        self._lock, self._process = ForkSafeLock(), os.getpid()

    def open(self, policy: RetryPolicy) -> FilesystemCalls:
        with self._lock:
            if self._process != os.getpid():
                self._process, self.calls = os.getpid(), None
            if self.calls is None:
                self.calls = FilesystemCalls(_make(self._url, self._options), policy)
            return self.calls

    def close(self) -> None:
        calls, self.calls = self.calls, None
        if calls is not None and "zip" in self.protocols:
            calls.filesystem.close()


def _identify(options: Any) -> Any:
    """Storage options with the identity of each backend among them, since different ones may have equal reprs."""
    if isinstance(options, Mapping):
        return {name: _identify(value) for name, value in options.items()}
    if isinstance(options, list | tuple):
        return [_identify(value) for value in options]
    return id(options) if isinstance(options, BackendProtocol) else options


def _source_of(given: Any, options: Mapping[str, Any]) -> _Source:
    check_installed("fsspec", "fsspec", "FsspecBackend")
    if isinstance(given, str):
        url, root = _unwrap_url(given)
        source: _Source = _UrlSource(url, root, options)
    elif options:
        raise TypeError("storage options go with a URL, not with a filesystem object")
    else:
        source = _Source(*_unwrap(given))
    if source.protocols & _LOCAL:
        raise ValueError("for local files there is FilesystemBackend, which is confined to its root and atomic")
    if source.protocols & _CACHES:
        raise ValueError("a caching filesystem may give outdated answers: pass the one that it caches")
    return source


def _unwrap_url(url: str) -> tuple[str, str]:
    """The URL without filesystems that only forward to the next one, and the directory there."""
    root = "/"
    while (first := url.partition("::")[0]).partition("://")[0] in _FORWARDING and "::" in url:
        root = paths.normalize(first.partition("://")[2] + root)
        url = url.partition("::")[2]
    return url, root


def _unwrap(given: Any) -> tuple[Any, str]:
    """The filesystem that does the work, and the directory in it that `given` is."""
    from fsspec import AbstractFileSystem
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.dirfs import DirFileSystem

    roots: list[str] = []
    while isinstance(given, AsyncFileSystemWrapper | DirFileSystem):
        if isinstance(given, DirFileSystem):
            roots.insert(0, str(given.path))
            given = given.fs
        else:
            given = given.sync_fs
    if not isinstance(given, AbstractFileSystem):
        raise TypeError(f"url_or_filesystem is a URL or a filesystem of fsspec, not {type(given).__name__}")
    return given, "/".join(root.rstrip("/") for root in roots if root.strip("/")) or str(given.root_marker)


def _join(root: str, inner: str) -> str:
    """The directory `inner`, a normalised path, in `root`; with a slash at its start only if `root` has one."""
    joined = f"{root.rstrip('/')}{inner}".rstrip("/")
    return joined if root.startswith("/") else joined.lstrip("/")


def _make(url: str, options: Mapping[str, Any]) -> Any:
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url, **{**options, **_FRESH})[0]
    except TypeError:
        # Some filesystems take no options but their own. The first listing drops what they remember.
        return url_to_fs(url, **options)[0]
