"""The files of one namespace in Redis as flat storage.

A change carries a token that no other change has: the version of the files that it writes. The script that makes it
notes the outcome beside the token, so a request whose answer was lost is sent again, and only its outcome comes back.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from deepfs.backends.redis.client import Client, failure_of
from deepfs.backends.redis.scripts import APPLY, LIST, LOOK, Keys
from deepfs.errors import BackendError, DeepFSError, InvalidContentError, IsDirectoryError, TooLargeError
from deepfs.search.literals import path_needs
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.storage.runners import AsyncStorage, Page
from deepfs.text import paths, records
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles
from deepfs.text.lines import is_text
from deepfs.types import FileDataV2

_NAMES_AT_ONCE: Final = 1000
"""How many names a script looks at: the server does nothing else meanwhile."""
_FILES_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""How much content one answer has, unless a single file has more."""
_MOST_BYTES: Final = 256 * 1024 * 1024
"""How much content a change has: the server takes no request over 1 GiB, and no value over 512 MiB."""
_SETTLED_AT_ONCE: Final = 16
"""How many outcomes that nobody asks for any more a change removes."""
_KEPT_ENTRIES: Final = 4096
"""How many entries the stream of changes has at least before old ones are removed."""


class Tree(Struct):
    """What the operations on one namespace share."""

    client: Client
    keys: Keys
    expires_after: float | None
    settled: list[bytes]
    """The keys of outcomes that nobody asks for any more."""


class RedisFiles(AsyncStorage):
    """The files of a namespace, for one operation."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._ask = tree.client.ask
        self._cursor: bytes | None = None
        self._end = ""

    def translate(self, error: Exception) -> Exception:
        return failure_of(error)

    # --- reading ---

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: stat async for path, stat, _ in self._rows(paths, 0)}

    async def get(self, paths: Sequence[str]) -> TaggedFiles:
        files: dict[str, FileDataV2 | DeepFSError] = {}
        tags: dict[str, Any] = {}
        async for path, stat, content in self._rows(paths, _BYTES_AT_ONCE):
            files[path] = _file(path, stat, content)
            tags[path] = stat.tag
        return TaggedFiles(files, tags)

    async def _rows(self, paths: Sequence[str], most_bytes: int) -> AsyncIterator[tuple[str, FileStat, bytes | None]]:
        """What `LOOK` finds at each path that has a file."""
        start = 0
        while asked := paths[start : start + _FILES_AT_ONCE]:
            answer = await self._ask(LOOK, [self.tree.keys.file(path) for path in asked], most_bytes)
            lines, contents = _texts(*answer[:2]), _texts(*answer[2:])
            for path, line, content in zip(asked, lines, contents, strict=False):
                if line is not None:
                    yield path, _stat(line)[1], content
            start += len(lines)

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        return await self._walk(prefix, limit)

    async def children(self, prefix: str) -> Mapping[str, FileStat]:
        return await self._walk(prefix, depth=len(prefix.encode()))

    async def _walk(self, prefix: str, limit: int | None = None, depth: int = 0) -> dict[str, FileStat]:
        found: dict[str, FileStat] = {}
        cursor, end = b"[" + prefix.encode(), paths.end_of_prefix(prefix)
        while cursor and (limit is None or len(found) < limit):
            wanted = _NAMES_AT_ONCE if limit is None else limit - len(found)
            rows, cursor = await self._page(cursor, end, wanted, depth)
            found.update(rows)
        return found

    async def _page(self, cursor: bytes, end: str, wanted: int, depth: int = 0) -> tuple[dict[str, FileStat], bytes]:
        """The next rows of a listing, and where it goes on; that is empty at the end."""
        keys = self.tree.keys
        arguments = keys.file_prefix, cursor, b"(" + end.encode(), wanted, _NAMES_AT_ONCE, depth
        following, *joined = await self._ask(LIST, [keys.names], *arguments)
        if following and following[1:] <= cursor[1:]:  # Scores that differ make an order without an end.
            raise BackendError(None, "The names of this tree are out of order: another program wrote scores")
        return dict(_stat(line) for line in _texts(*joined) if line is not None), following

    async def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        found: dict[str, FileStat] = {}
        if self._cursor is None:
            prefix = path_needs(files).prefix
            self._cursor, self._end = b"[" + prefix.encode(), paths.end_of_prefix(prefix)
            if files.root != "/":
                found.update(await self.stat([files.root]))
        rows, self._cursor = await self._page(self._cursor, self._end, _NAMES_AT_ONCE)
        found.update(rows)
        skipped = sum(not paths.is_normal(path) for path in rows) if files.is_everything else 0
        last = self._cursor[1:].decode("utf-8", "surrogateescape") if self._cursor else None
        return Page(found, last, skipped)

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        try:
            await make_changes(self.tree, changes)
        except IsDirectoryError as error:
            if any(map(paths.is_normal, await self._walk(f"{error.path}/"))):
                raise
            await make_changes(self.tree, changes, names_beneath=False)  # They are no paths, so it is no directory.


async def make_changes(
    tree: Tree, changes: Sequence[Change], *, keeps_creation: bool = False, names_beneath: bool = True
) -> None:
    """Make changes, all or none; with `keeps_creation`, a file that is replaced keeps when it was created.

    Raises ChangedError if a condition does not hold, IsDirectoryError if there are names beneath a new file, unless
    `names_beneath` is False, TooLargeError for more content than a request may carry, and BackendError if the storage
    failed; then nothing was changed, unless the text says that this is not known.
    """
    if not changes:
        return
    contents: list[bytes] = []
    described: list[tuple[Any, ...]] = []
    for change in changes:
        after = change.after
        if after is None:
            described.append((change.path, change.condition, change.origin or "", False))
            continue
        contents.append(_content(change.path, after))
        times = after.created_at or records.timestamp(), after.modified_at or records.timestamp()
        fields = (*times, after.mime_type or "", keeps_creation, names_beneath)
        described.append((change.path, change.condition, change.origin or "", True, *fields))
    if (size := sum(map(len, contents))) > _MOST_BYTES:
        raise TooLargeError(changes[0].path, size, _MOST_BYTES)
    token = uuid4().hex
    keys, policy = tree.keys, tree.client.requests.policy
    outcome, settled = keys.made(token), tree.settled[:_SETTLED_AT_ONCE]
    del tree.settled[: len(settled)]
    kept = 2 * policy.attempts * (policy.timeout + policy.longest_delay)
    answer, is_settled = await tree.client.change(
        APPLY,
        [keys.names, outcome, keys.stream, *(keys.file(change.path) for change in changes), *settled],
        msgspec.msgpack.encode(described, enc_hook=str),  # A path may be of a class of its own.
        keys.file_prefix,
        token,
        int(kept * 1000),
        max(1, int(tree.expires_after * 1000)) if tree.expires_after is not None else 0,
        _KEPT_ENTRIES,
        *contents,
    )
    if is_settled and len(tree.settled) < _FILES_AT_ONCE:
        tree.settled.append(outcome)
    if answer:
        path = changes[abs(answer) - 1].path
        raise ChangedError(path) if answer > 0 else IsDirectoryError(path)


# --- rows ------------------------------------------------------------------------------------------------------------


def _texts(lengths: bytes, joined: bytes) -> list[bytes | None]:
    """The texts that a script has joined; None for one that is missing."""
    texts: list[bytes | None] = []
    start = 0
    for length in lengths.split():
        end = start if length == b"-" else start + int(length)
        texts.append(None if length == b"-" else joined[start:end])
        start = end
    return texts


def _stat(line: bytes) -> tuple[str, FileStat]:
    """The path and the stat that a script has put into a line."""
    size, modified_at, created_at, tag, mime_type, path = line.split(b"\0", 5)
    times = _time(modified_at), _time(created_at)
    stat = FileStat(int(size) if size else None, *times, tag.decode("ascii"), _text(mime_type))
    return path.decode("utf-8", "surrogateescape"), stat


def _file(path: str, stat: FileStat, content: bytes | None) -> FileDataV2 | DeepFSError:
    if content is None:
        return InvalidContentError(path, "it is malformed: another program has stored something else there.")
    file = records.new_file(content, now=stat.modified_at, mime_type=stat.mime_type)
    return FileDataV2(file.content, file.encoding, stat.created_at, stat.modified_at, file.mime_type)


def _text(stored: bytes | None) -> str | None:
    try:
        return stored.decode() if stored else None
    except UnicodeDecodeError:
        return None


def _time(stored: bytes | None) -> str | None:
    """A time that is stored; None if another program has stored something else there."""
    text = _text(stored)
    try:
        if text is not None:
            datetime.fromisoformat(text)
    except ValueError:
        return None
    return text


def _content(path: str, data: FileDataV2) -> bytes:
    """What is stored of a file. Raises InvalidContentError for a text that is none."""
    if data.encoding == "utf-8" and not is_text(data.content):
        raise InvalidContentError(path, "it holds NUL or half a surrogate pair, and a text cannot")
    return records.content_bytes(data, path)
