"""The content of files in a sandbox: it is cached, and not transferred again while it is unchanged."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import TypeAlias

from msgspec import Struct

from deepfs.errors import BackendError, DeepFSError
from deepfs.sandboxes.answers import Content, bound_of, contents
from deepfs.sandboxes.wire import Calls, off_loop

__all__ = ["CachedContent", "FetchedFile", "SandboxContents"]


def _checksum(data: bytes) -> str:
    """Identifies content; the scripts compute the same checksum."""
    return sha256(data).hexdigest()


class CachedContent(Struct, frozen=True):
    """The content of a file when it was last seen; `version` is its checksum."""

    data: bytes
    version: str


FetchedFile: TypeAlias = tuple[CachedContent, str]
"""The content of a file, and its time of modification."""


class _Cache:
    """An LRU cache of files, with up to `limit` bytes of content."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._size = 0
        self._files: OrderedDict[str, CachedContent] = OrderedDict()

    def known(self, path: str) -> CachedContent | None:
        """The cached content of a file, if any.

        Args:
            path: Its path.
        """
        if path in self._files:
            self._files.move_to_end(path)
        return self._files.get(path)

    def learn(self, path: str, data: bytes) -> CachedContent:
        """Cache the content of a file; evict the least recently used files beyond the limit.

        Args:
            path: Its path.
            data: Its content.
        """
        self.forget(path)
        known = CachedContent(data, _checksum(data))
        self._files[path] = known
        self._size += len(data)
        while self._size > self._limit:
            self.forget(next(iter(self._files)))
        return known

    def forget(self, path: str) -> None:
        """Remove a file from the cache.

        Args:
            path: Its path.
        """
        known = self._files.pop(path, None)
        self._size -= len(known.data) if known else 0


class SandboxContents(_Cache):
    """Fetches files by calls to the scripts, and caches them.

    Args:
        calls: The calls.
        name_of: Returns the name in the sandbox of a path for file operations.
        most: The most bytes of content in one answer; a larger file is `too_large`.
    """

    def __init__(self, calls: Calls, name_of: Callable[[str], bytes], most: int) -> None:
        super().__init__()
        self._calls = calls
        self._name_of = name_of
        self._most = most

    async def fetch(self, wanted: list[str]) -> list[FetchedFile | DeepFSError]:
        """Fetch files, in one call if their names and contents fit.

        Args:
            wanted: The paths.

        Returns:
            For each path the file, or the error for which there is none.
        """
        found: dict[str, FetchedFile | DeepFSError] = {}
        for group in self._calls.groups(dict.fromkeys(wanted), self._words):
            # Each call answers at least its first path, so there are no more calls than paths.
            while missing := [path for path in group if path not in found]:
                await self._fetch(missing, found)
        return [found[path] for path in wanted]

    async def _fetch(self, group: list[str], found: dict[str, FetchedFile | DeepFSError]) -> None:
        """Add the files of `group` to `found`, as many as one answer may hold."""
        before = {path: self.known(path) for path in group}
        words = [word for path in group for word in self._words(path)]
        most = str(self._most).encode()
        bound = bound_of(len(group), self._most)
        answer = await self._calls.call("fetch", most, *words, about=group[0], bound=bound)
        fetched = await off_loop(answer.size, lambda: [*contents(answer, group, self._most)])
        for path, content in zip(group, fetched, strict=True):
            if content is not None:
                found[path] = self._file(path, before[path], content)

    async def file(self, path: str) -> FetchedFile:
        """Fetch one file.

        Args:
            path: Its path.

        Returns:
            The file.

        Raises:
            DeepFSError: If it cannot be fetched.
        """
        (found,) = await self.fetch([path])
        if isinstance(found, DeepFSError):
            raise found
        return found

    def _words(self, path: str) -> list[bytes]:
        known = self.known(path)
        return [self._name_of(path), known.version.encode() if known else b""]

    def _file(self, path: str, known: CachedContent | None, found: Content | DeepFSError) -> FetchedFile | DeepFSError:
        if isinstance(found, DeepFSError):
            self.forget(path)
            return found
        if found.data is not None:
            known = self.learn(path, found.data)
        if known is None:
            return BackendError(path, "the sandbox says that it is unchanged, but it was not read before")
        return known, found.modified_at
