"""Media of messages, stored by content hash: state holds references, which are filled for each request of a model."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage
from langgraph.config import get_config

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, ErrorCode
from deepfs.middleware._base import artifacts_root
from deepfs.middleware._media_blocks import (
    Inline,
    Payload,
    blocks_of,
    digest_of,
    encoded,
    family,
    filled,
    has_references,
    inline,
    inline_size,
    is_digest,
    is_reference,
    referring,
)
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.text.visible import one_line
from deepfs.threads import pool
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import FileDownloadResponse, FileInfo

__all__ = ["Blobs"]

MessageT = TypeVar("MessageT", bound=BaseMessage)
T = TypeVar("T")

_log = logging.getLogger("deepfs")

_DIRECTORY: Final = "blobs"
_STORED_MEANWHILE: Final = frozenset({ErrorCode.ALREADY_EXISTS, ErrorCode.CONFLICT})
"""The errors in graph state if a parallel task stores the same content."""


class Blobs:
    """Stores media of messages in files that are named by their SHA-256, and fills references to them.

    A file that is missing, cannot be read, or has another hash than its name becomes a note in the message.

    Args:
        backend: The backend of the files.
        directory: The directory of the files; None is `blobs` below the `artifacts_root` of `backend`.
    """

    def __init__(self, backend: BackendProtocol, directory: str | None = None) -> None:
        self._backend = backend
        self._directory = directory or paths.join(artifacts_root(backend), _DIRECTORY)
        # Names of places may hold the `id` of an object, which a later object can have. This one stays with its key.
        self._owner = object()

    async def stored(self, messages: Sequence[MessageT]) -> list[MessageT]:
        """Store the media of messages. What cannot be stored stays in its message, and a warning is logged.

        Args:
            messages: The messages.

        Returns:
            The messages; copies with references for those with media.
        """
        found = await _computed(_inline_size(messages), _inline_rows, messages)
        contents = {each.digest: each.content for row in found for each in row if each is not None}
        known = await self._uploaded(contents) if contents else set()
        return [referring(message, row, known) for message, row in zip(messages, found, strict=True)]

    async def filled(self, messages: Sequence[MessageT]) -> list[MessageT]:
        """Fill the references in messages, with one download for all that are not cached.

        Args:
            messages: The messages.

        Returns:
            The messages; copies with media or notes for those with references.
        """
        digests = dict.fromkeys(
            map(digest_of, filter(is_reference, (block for each in messages for block in blocks_of(each))))
        )
        found = await self._payloads([digest for digest in digests if digest is not None]) if digests else {}
        return [filled(message, found) if has_references(message) else message for message in messages]

    async def unreferenced(self, messages: Iterable[BaseMessage]) -> list[FileInfo]:
        """Find the stored media to which no message refers.

        A run that stores media saves the message that refers to them a moment later, so files that are about to be
        referred to can be among those returned: delete only old ones.

        Args:
            messages: The messages of all threads, and of the older checkpoints that are still needed.

        Returns:
            The files.

        Raises:
            BackendError: If the directory cannot be listed.
        """
        known = {digest_of(block) for each in messages for block in filter(is_reference, blocks_of(each))}
        listed = await self._backend.als(self._directory)
        if listed.error is not None and listed.code is not ErrorCode.FILE_NOT_FOUND:
            raise BackendError(listed.error)
        names = {each: each.path.rpartition("/")[2] for each in listed.entries or ()}
        return [each for each, name in names.items() if is_digest(name) and name not in known]

    # --- storing ---

    async def _uploaded(self, contents: Mapping[str, bytes]) -> set[str]:
        """Upload the contents; return the hashes of those that are stored."""
        try:
            scope = await self._scope()
            # Each upload to graph state adds to its checkpoints, even of content that it already holds.
            known = await self._verified(contents) if scope.is_state else set()
            missing = {digest: content for digest, content in contents.items() if digest not in known}
            known |= await self._upload(missing, scope) if missing else set()
        except Exception as error:  # The messages must not be lost with a failing storage.
            _log.warning("Media stay in the messages, because they cannot be stored: %s", type(error).__name__)
            return set()
        await _computed(sum(map(len, contents.values())), _remember, scope, contents, known)
        return known

    async def _upload(self, contents: Mapping[str, bytes], scope: "_Scope") -> set[str]:
        files = [(self._path(digest), content) for digest, content in contents.items()]
        uploaded = await self._backend.aupload_files(files)
        failed = {digest: each.error for digest, each in zip(contents, uploaded, strict=True) if each.error}
        lost = {digest for digest, error in failed.items() if error not in _STORED_MEANWHILE}
        if not scope.is_state:  # In state, this task does not see what another one stored.
            lost = failed.keys() - await self._verified(failed) if failed else set()
        if lost:
            _log.warning("Media stay in the messages, because they cannot be stored: %s", failed[min(lost)])
        return contents.keys() - lost

    async def _verified(self, digests: Mapping[str, Any]) -> set[str]:
        """Those of the hashes whose files exist and have that hash."""
        found = await self._backend.adownload_files([self._path(digest) for digest in digests])
        return {digest for digest, each in zip(digests, found, strict=True) if _fault(digest, each) is None}

    def _path(self, digest: str) -> str:
        return f"{self._directory}/{digest}"

    # --- filling ---

    async def _payloads(self, digests: Sequence[str]) -> dict[str, "Payload"]:
        scope = await self._scope()
        found = {digest: Payload(text) for digest in digests if (text := _CACHE.get(scope, digest)) is not None}
        missing = [digest for digest in digests if digest not in found]
        downloads = await self._downloaded(missing) if missing else ()
        size = sum(len(each.content or b"") for each in downloads)
        loaded = await _computed(size, _loaded, missing, downloads)
        for digest, payload in loaded.items():
            _CACHE.put(scope, digest, payload.text)
        return {**found, **loaded}

    async def _downloaded(self, digests: Sequence[str]) -> Sequence[FileDownloadResponse]:
        files = [self._path(digest) for digest in digests]
        try:
            downloads = await self._backend.adownload_files(files)
        except Exception as error:  # The conversation must go on even if the storage fails.
            return [FileDownloadResponse(path, error=type(error).__name__) for path in files]
        if len(downloads) != len(files):
            return [FileDownloadResponse(path, error="no answer") for path in files]
        return downloads

    async def _scope(self) -> "_Scope":
        """The storage of the files, under a name that no two tenants share."""
        try:
            place = await self._backend.astorage_place(self._directory)
        except Exception:  # The storage will report its failure itself.
            return _Scope(None, is_state=False)
        is_state = place.storage == "state"
        if place.storage is not None and not place.is_sole:
            return _Scope((self._owner, place.keys), is_state=is_state)
        # Another storage may have this name, in another thread or later, so the thread is part of it.
        thread = _thread()
        return _Scope(None if thread is None else (self._owner, thread, place.keys), is_state=is_state)


class _Scope(NamedTuple):
    """A storage: hashes alone would give one tenant what is cached of another."""

    key: Hashable
    """Its name; None if nothing may be cached."""
    is_state: bool


def _thread() -> Hashable:
    try:
        thread: Hashable = get_config().get("configurable", {}).get("thread_id")
    except RuntimeError:  # Not in a run.
        return None
    return thread


class _Cache:
    """The least recently used payloads go first when there are more than `limit` characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._lock = ForkSafeLock()
        self._payloads: OrderedDict[Hashable, str] = OrderedDict()

    def get(self, scope: _Scope, digest: str) -> str | None:
        """Return a payload, if cached."""
        key = (scope.key, digest)
        with self._lock:
            if key in self._payloads:
                self._payloads.move_to_end(key)
            return self._payloads.get(key)

    def put(self, scope: _Scope, digest: str, payload: str | None) -> None:
        """Cache a payload."""
        if payload is None or scope.key is None or len(payload) > self._limit:
            return
        with self._lock:
            self._size += len(payload) - len(self._payloads.pop((scope.key, digest), ""))
            self._payloads[scope.key, digest] = payload
            while self._size > self._limit:
                self._size -= len(self._payloads.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all payloads."""
        with self._lock:
            self._payloads.clear()
            self._size = 0


_CACHE: Final = _Cache(64 * 1024 * 1024)


# --- computing -------------------------------------------------------------------------------------------------------

_SHORT: Final = 500_000
"""The most bytes that are hashed and encoded on the event loop."""


async def _computed(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function that hashes or encodes content of that size; off the event loop if this takes long."""
    return function(*args) if is_inline() or size <= _SHORT else await pool.run(function, *args)


def _inline_size(messages: Sequence[BaseMessage]) -> int:
    return sum(inline_size(block) or 0 for message in messages for block in blocks_of(message) if family(block))


def _inline_rows(messages: Sequence[BaseMessage]) -> list[list[Inline | None]]:
    return [[inline(block) for block in blocks_of(message)] for message in messages]


def _remember(scope: _Scope, contents: Mapping[str, bytes], known: Iterable[str]) -> None:
    for digest in known:
        _CACHE.put(scope, digest, encoded(contents[digest]))


def _loaded(digests: Sequence[str], downloads: Sequence[FileDownloadResponse]) -> dict[str, Payload]:
    return {digest: _payload(digest, each) for digest, each in zip(digests, downloads, strict=True)}


def _payload(digest: str, download: FileDownloadResponse) -> Payload:
    fault = _fault(digest, download)
    return Payload(encoded(download.content or b"")) if fault is None else Payload(None, fault)


def _fault(digest: str, download: FileDownloadResponse) -> str | None:
    """Why a download is not the content of that hash; None if it is."""
    if download.error is not None:
        is_missing = download.error == ErrorCode.FILE_NOT_FOUND
        return "its file was deleted" if is_missing else f"its file cannot be read ({one_line(str(download.error))})"
    if download.content is None or sha256(download.content).hexdigest() != digest:
        return "its file was changed"
    return None
