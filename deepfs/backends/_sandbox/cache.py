"""What a backend knows of the files in its sandbox; each use is checked there, so that only transfers are saved."""

from collections import OrderedDict
from hashlib import sha256

from msgspec import Struct

__all__ = ["Known", "KnownFiles", "version"]


def version(data: bytes) -> str:
    """What identifies content: scripts work it out as well."""
    return sha256(data).hexdigest()


class Known(Struct, frozen=True):
    """The content of a file when it was last seen."""

    data: bytes
    version: str


class KnownFiles:
    """The files that were used last, up to `limit` bytes."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._size = 0
        self._files: OrderedDict[str, Known] = OrderedDict()

    def get(self, path: str) -> Known | None:
        """What is known of `path`."""
        if path in self._files:
            self._files.move_to_end(path)
        return self._files.get(path)

    def put(self, path: str, data: bytes) -> Known:
        """Remember the content of `path`, and forget what was used longest ago."""
        self.forget(path)
        known = Known(data, version(data))
        self._files[path] = known
        self._size += len(data)
        while self._size > self._limit:
            self.forget(next(iter(self._files)))
        return known

    def forget(self, path: str) -> None:
        """Forget `path`."""
        known = self._files.pop(path, None)
        self._size -= len(known.data) if known else 0
