"""Direct access to the files of a flat backend."""

from base64 import b64decode, b64encode

from deepfs.backends.memory import MemoryBackend
from deepfs.types import FileDataV2

__all__ = ["RawMemory", "file_of", "raw_bytes"]

_PUT_AT = "2020-01-02T03:04:05.000006+00:00"


class RawMemory:
    """Raw access for the suite; the test class keeps the backend that stores the files in `self.memory`."""

    memory: MemoryBackend

    async def raw_put(self, path: str, data: bytes) -> None:
        self.memory._files[path] = file_of(data)
        self.memory._parents.add(path)

    async def raw_peek(self, path: str) -> bytes | None:
        return self.peek(self.memory, path)

    @staticmethod
    def peek(memory: MemoryBackend, path: str) -> bytes | None:
        return raw_bytes(memory._files.get(path))


def file_of(data: bytes) -> FileDataV2:
    """A file with these bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return FileDataV2(b64encode(data).decode(), "base64", _PUT_AT, _PUT_AT)
    return FileDataV2(text, "utf-8", _PUT_AT, _PUT_AT)


def raw_bytes(file: FileDataV2 | None) -> bytes | None:
    """The content of a file, or None if there is no file."""
    if file is None:
        return None
    return b64decode(file.content) if file.encoding == "base64" else file.content.encode()
