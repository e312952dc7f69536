"""Looking past a memory backend, at what it holds."""

from base64 import b64decode, b64encode

from deepfs.backends.memory import MemoryBackend
from deepfs.types import FileDataV2

__all__ = ["RawMemory"]

_PUT_AT = "2020-01-02T03:04:05.000006+00:00"


class RawMemory:
    """The hooks of the suite, for a test class that keeps the backend which stores the files in `self.memory`."""

    memory: MemoryBackend

    async def raw_put(self, path: str, data: bytes) -> None:
        self.memory._files[path] = _file(data)
        self.memory._parents.add(path)

    async def raw_peek(self, path: str) -> bytes | None:
        return self.peek(self.memory, path)

    @staticmethod
    def peek(memory: MemoryBackend, path: str) -> bytes | None:
        """The bytes that are stored, without the backend's own code for it."""
        file = memory._files.get(path)
        if file is None:
            return None
        return b64decode(file.content) if file.encoding == "base64" else file.content.encode()


def _file(data: bytes) -> FileDataV2:
    try:
        if b"\0" in data:
            raise ValueError
        return FileDataV2(data.decode(), "utf-8", _PUT_AT, _PUT_AT)
    except ValueError:
        return FileDataV2(b64encode(data).decode(), "base64", _PUT_AT, _PUT_AT)
