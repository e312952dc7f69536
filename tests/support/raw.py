"""Looking past a memory backend, at what it holds."""

from base64 import b64decode, b64encode

from deepfs.backends.memory import MemoryBackend
from deepfs.types import FileDataV2

__all__ = ["peek_memory", "put_memory"]

_PUT_AT = "2020-01-02T03:04:05.000006+00:00"


def put_memory(backend: MemoryBackend, path: str, data: bytes) -> None:
    """Store a file without the backend's own code for it."""
    try:
        if b"\0" in data:
            raise ValueError
        file = FileDataV2(data.decode(), "utf-8", _PUT_AT, _PUT_AT)
    except ValueError:
        file = FileDataV2(b64encode(data).decode(), "base64", _PUT_AT, _PUT_AT)
    backend._files[path] = file
    backend._parents.add(path)


def peek_memory(backend: MemoryBackend, path: str) -> bytes | None:
    """The bytes that are stored, without the backend's own code for it."""
    file = backend._files.get(path)
    if file is None:
        return None
    return b64decode(file.content) if file.encoding == "base64" else file.content.encode()
