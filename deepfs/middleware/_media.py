"""Files that are not text, as content blocks of a message, or as a note where a model could not take them."""

from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

from deepfs.core.media import OCTET_STREAM, mime_type, sniff
from deepfs.types import FileDataV2

__all__ = ["media_block", "typed_block"]

_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_HEAD = 1024
"""Characters of base64 that hold all that tells the type; a multiple of four."""


def media_block(path: str, data: FileDataV2, max_bytes: int) -> list[dict[str, Any]] | str:
    """The block that shows the file, or a note that says why it is not shown.

    A message that the provider refuses would spoil the conversation for good, so an image or a PDF is sent only where
    its content is of the type that its block names.
    """
    size = len(data.content) * 3 // 4
    kind = _kind(path, data)
    if kind is None:
        told = data.mime_type or mime_type(path) or OCTET_STREAM
        return f"[{path} is a binary file ({told}, {size:,} bytes) that cannot be shown]"
    if size > max_bytes:
        return f"[{path} ({kind}, {size:,} bytes) is too large to be shown; the limit is {max_bytes:,} bytes]"
    block = {"type": _tool_block_type(kind), "base64": data.content, "mime_type": kind}
    return [block if kind in _IMAGES else {**block, "extras": {"filename": path.rpartition("/")[2]}}]


def _kind(path: str, data: FileDataV2) -> str | None:
    """The type of content that a model can take; None for any other."""
    try:
        sniffed = sniff(b64decode(data.content[:_HEAD]))
    except Base64Error:
        return None
    if sniffed != OCTET_STREAM:
        return sniffed if _is_shown(sniffed) else None
    told = data.mime_type or mime_type(path) or OCTET_STREAM
    return told if told.startswith(("audio/", "video/")) else None


def _is_shown(kind: str) -> bool:
    return kind in _IMAGES or kind == "application/pdf" or kind.startswith(("audio/", "video/"))


def _tool_block_type(kind: str) -> str:
    # LangGraph's ToolNode spells blocks of the types `audio` and `video` out as JSON text, but lets files pass.
    return "image" if kind in _IMAGES else "file"


def typed_block(block: Any) -> Any:
    """A file block of audio or video as the block of that type, for messages that no ToolNode touches any more."""
    if not isinstance(block, dict) or block.get("type") != "file":
        return block
    family = str(block.get("mime_type", "")).partition("/")[0]
    return {**block, "type": family} if family in ("audio", "video") else block
