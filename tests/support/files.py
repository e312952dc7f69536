"""Files as a state or a store holds them, made and read without deepfs."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["content_of", "everything_in", "stored"]

_STAMP = "2020-01-02T03:04:05.000006+00:00"


def stored(data: bytes) -> dict[str, Any]:
    """`data` as deepagents stores it."""
    try:
        if b"\0" in data:
            raise ValueError
        content, encoding = data.decode(), "utf-8"
    except ValueError:
        content, encoding = b64encode(data).decode(), "base64"
    return {"content": content, "encoding": encoding, "created_at": _STAMP, "modified_at": _STAMP}


def content_of(value: Mapping[str, Any] | None) -> bytes | None:
    """The content of a stored file, or None if there is no file."""
    if value is None:
        return None
    return b64decode(value["content"]) if value["encoding"] == "base64" else value["content"].encode()


def everything_in(result: Any) -> str:
    """The whole of a result as text; a repr shows only the start of what is long."""
    if isinstance(result, Struct):
        return ", ".join(f"{name}={everything_in(getattr(result, name))}" for name in result.__struct_fields__)
    if isinstance(result, list | tuple):
        return ", ".join(map(everything_in, result))
    return repr(result)
