"""What is too large for messages, in files: a long text shows its head and tail, media are references by hash."""

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.config import get_config

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, ErrorCode
from deepfs.middleware._base import artifacts_root
from deepfs.middleware._messages import (
    Inline,
    Payload,
    blocks_of,
    digest_of,
    encode,
    family,
    fill_references,
    has_references,
    inline,
    inline_size,
    is_digest,
    is_reference,
    refer,
    text_block,
)
from deepfs.middleware.rendering import output_and_notes
from deepfs.policy.permissions import as_approved
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.text.visible import fence, one_line
from deepfs.threads import pool
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import FileDownloadResponse, FileInfo

__all__ = ["Blobs"]


MessageT = TypeVar("MessageT", bound=BaseMessage)

CHARS_PER_TOKEN: Final = 4
_HEAD: Final = 1_000
_TAIL: Final = 500
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Evictor:
    """Stores the texts of messages that are too long in files.

    The name of a file is made from a key and a hash of key and text: unsafe characters of the key are replaced, the
    same text of a key is stored once, and different texts have different names. If the text cannot be stored, or the
    model could not read the file, the message says so and keeps as much of head and tail as the limit allows.
    """

    def __init__(self, backend: BackendProtocol, token_limit: int, directory: str) -> None:
        self._backend = backend
        self._max_chars = token_limit * CHARS_PER_TOKEN
        self._directory = directory

    def is_oversized(self, message: BaseMessage) -> bool:
        """Whether the text of a message is over the limit."""
        return sum(map(len, _texts(message.content))) > self._max_chars

    async def evict(self, message: MessageT, key: str, reader: BackendProtocol | None = None) -> MessageT:
        """Store the text of a message that is over the limit. Blocks of media stay in the message."""
        if not self.is_oversized(message):
            return message
        text, notes = "\n".join(_texts(message.content)), list[str]()
        if isinstance(message, ToolMessage) and message.name == "execute":
            text, notes = output_and_notes(text)
        path = f"{self._directory}/{_name(key, text)}"
        failed = await self._failure(path, "\n".join([text, *notes]), reader or self._backend)
        # Tools may have cut what they return.
        whole = "All that the tool returned" if isinstance(message, ToolMessage) else "All of it"
        preview = "\n".join([self._preview(text, path if failed is None else None, failed or whole), *notes])
        blocks = [] if isinstance(message.content, str) else message.content
        media = [block for block in blocks if _block_text(block) is None]
        return message.model_copy(update={"content": [text_block(preview), *media] if media else preview})

    async def _failure(self, path: str, text: str, reader: BackendProtocol) -> str | None:
        """Store the text; return the reason if it cannot be stored, or if `reader` may not read the file."""
        # No backend stores NUL and lone surrogates as text.
        text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
        try:
            with as_approved():  # The model may ask a person to read the file.
                read = await reader.aread(path, 0, 1)
            if read.code is ErrorCode.PERMISSION_DENIED:
                return read.error
            written = await self._backend.awrite(path, text, overwrite=True)
            if written.code is not ErrorCode.UNSUPPORTED:
                return written.error
            created = await self._backend.awrite(path, text)
        except Exception as error:  # The tool's result must not be lost with a failing storage.
            return f"Error: {type(error).__name__}"
        # The name has a hash of the text, so an existing file holds the same text.
        return None if created.code is ErrorCode.ALREADY_EXISTS else created.error

    def _preview(self, text: str, path: str | None, about: str) -> str:
        """Head and tail of the text, which is stored at `path`, as `about` names it, or was not because of `about`."""
        lines = text.count("\n") + 1
        size = f"{len(text):,} characters, {lines:,} {'line' if lines == 1 else 'lines'}"
        if path is not None:
            note = f"[Too large to show: {size}. {about} is in {path}: page with read_file, or search with grep.]"
            head, tail = min(_HEAD, self._max_chars // 2), min(_TAIL, self._max_chars // 4)
        else:
            why = one_line(about)
            note = f"[Too large to show: {size}. It could not be stored either ({why}): the middle is lost.]"
            head, tail = self._max_chars // 2, self._max_chars // 4
        left_out = f"[… {len(text) - head - tail:,} characters …]"
        start, end = fence("text", text[:head], text[len(text) - tail :])
        return "\n".join([note, start, left_out, end])


def _name(key: str, text: str) -> str:
    digest = sha256(f"{key}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return "-".join(filter(None, [_UNSAFE.sub("_", key)[:48].strip("_"), digest]))


Content = str | Sequence[str | dict[str, Any]]


def _texts(content: Content) -> list[str]:
    """The texts of the content, without its media."""
    if isinstance(content, str):
        return [content]
    return [text for text in map(_block_text, content) if text is not None]


def _block_text(block: Any) -> str | None:
    if isinstance(block, str):
        return block
    is_text = isinstance(block, dict) and isinstance(block.get("text"), str)
    return block["text"] if is_text else None


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

    async def store(self, messages: Sequence[MessageT]) -> list[MessageT]:
        """Store the media of messages. What cannot be stored stays in its message, and a warning is logged.

        Args:
            messages: The messages.

        Returns:
            The messages; copies with references for those with media.
        """
        blocks = (block for message in messages for block in blocks_of(message) if family(block))
        found = await _compute(sum(inline_size(block) or 0 for block in blocks), _inline_rows, messages)
        contents = {each.digest: each.content for row in found for each in row if each is not None}
        known = await self._upload_new(contents) if contents else set()
        return [refer(message, row, known) for message, row in zip(messages, found, strict=True)]

    async def fill(self, messages: Sequence[MessageT]) -> list[MessageT]:
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
        return [fill_references(message, found) if has_references(message) else message for message in messages]

    async def find_unreferenced(self, messages: Iterable[BaseMessage]) -> list[FileInfo]:
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

    async def _upload_new(self, contents: Mapping[str, bytes]) -> set[str]:
        """Upload the contents; return the hashes of those that are stored."""
        try:
            scope = await self._scope()
            # Each upload to graph state adds to its checkpoints, even of content that it already holds.
            known = await self._verify(contents) if scope.is_state else set()
            missing = {digest: content for digest, content in contents.items() if digest not in known}
            known |= await self._upload(missing, scope) if missing else set()
        except Exception as error:  # The messages must not be lost with a failing storage.
            _log.warning("Media stay in the messages, because they cannot be stored: %s", type(error).__name__)
            return set()
        await _compute(sum(map(len, contents.values())), _remember, scope, contents, known)
        return known

    async def _upload(self, contents: Mapping[str, bytes], scope: "_Scope") -> set[str]:
        files = [(self._path(digest), content) for digest, content in contents.items()]
        uploaded = await self._backend.aupload_files(files)
        failed = {digest: each.error for digest, each in zip(contents, uploaded, strict=True) if each.error}
        lost = {digest for digest, error in failed.items() if error not in _STORED_MEANWHILE}
        if not scope.is_state:  # In state, this task does not see what another one stored.
            lost = failed.keys() - await self._verify(failed) if failed else set()
        if lost:
            _log.warning("Media stay in the messages, because they cannot be stored: %s", failed[min(lost)])
        return contents.keys() - lost

    async def _verify(self, digests: Mapping[str, Any]) -> set[str]:
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
        downloads = await self._download(missing) if missing else ()
        size = sum(len(each.content or b"") for each in downloads)
        loaded = await _compute(size, _load, missing, downloads)
        for digest, payload in loaded.items():
            _CACHE.put(scope, digest, payload.text)
        return {**found, **loaded}

    async def _download(self, digests: Sequence[str]) -> Sequence[FileDownloadResponse]:
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
        try:
            thread: Hashable = get_config().get("configurable", {}).get("thread_id")
        except RuntimeError:  # Not in a run.
            thread = None
        return _Scope(None if thread is None else (self._owner, thread, place.keys), is_state=is_state)


class _Scope(NamedTuple):
    """A storage: hashes alone would give one tenant what is cached of another."""

    key: Hashable
    """Its name; None if nothing may be cached."""
    is_state: bool


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


async def _compute(size: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function that hashes or encodes content of that size; off the event loop if this takes long."""
    return function(*args) if is_inline() or size <= _SHORT else await pool.run(function, *args)


def _inline_rows(messages: Sequence[BaseMessage]) -> list[list[Inline | None]]:
    return [[inline(block) for block in blocks_of(message)] for message in messages]


def _remember(scope: _Scope, contents: Mapping[str, bytes], known: Iterable[str]) -> None:
    for digest in known:
        _CACHE.put(scope, digest, encode(contents[digest]))


def _load(digests: Sequence[str], downloads: Sequence[FileDownloadResponse]) -> dict[str, Payload]:
    loaded: dict[str, Payload] = {}
    for digest, download in zip(digests, downloads, strict=True):
        fault = _fault(digest, download)
        loaded[digest] = Payload(encode(download.content or b"")) if fault is None else Payload(None, fault)
    return loaded


def _fault(digest: str, download: FileDownloadResponse) -> str | None:
    """Why a download is not the content of that hash; None if it is."""
    if download.error is not None:
        is_missing = download.error == ErrorCode.FILE_NOT_FOUND
        return "its file was deleted" if is_missing else f"its file cannot be read ({one_line(str(download.error))})"
    if download.content is None or sha256(download.content).hexdigest() != digest:
        return "its file was changed"
    return None
