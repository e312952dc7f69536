"""Prompts, media blocks and tool results, in the form that models accept."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.messages import SystemMessage, ToolMessage

from deepfs.text.media import OCTET_STREAM, is_binary_type, mime_type, other_encoding, sniff
from deepfs.text.visible import one_line, shown_path
from deepfs.types import FileDataV2

if TYPE_CHECKING:
    from langgraph.types import Command

__all__ = [
    "IMAGES",
    "ToolResult",
    "is_blank",
    "mapped",
    "media_block",
    "messages_of",
    "typed_block",
    "with_prompt",
]


ToolResult: TypeAlias = "ToolMessage | Command[Any]"
"""As LangChain declares it; LangGraph also lets tools return a list of them."""


def is_blank(content: object) -> bool:
    """Whether the content of a message is empty or only white space. Providers refuse such messages and blocks."""
    if isinstance(content, str):
        return not content.strip()
    if not isinstance(content, list):
        return False
    return all(is_blank(block if isinstance(block, str) else _text_of(block)) for block in content)


def _text_of(block: Any) -> object:
    is_text = isinstance(block, Mapping) and block.get("type") == "text"
    return block.get("text") or "" if is_text else None


def with_prompt(message: SystemMessage | None, prompt: str) -> SystemMessage | None:
    """Append `prompt` to the system message, and drop its blank blocks; return None if both are blank."""
    system = _without_blanks(message)
    if is_blank(prompt):
        return system
    if system is None:
        return SystemMessage(prompt)
    if isinstance(system.content, str):
        return system.model_copy(update={"content": f"{system.content}\n\n{prompt}"})
    return system.model_copy(update={"content": [*system.content, {"type": "text", "text": f"\n\n{prompt}"}]})


def _without_blanks(message: SystemMessage | None) -> SystemMessage | None:
    if message is None or is_blank(message.content):
        return None
    if isinstance(message.content, str):
        return message
    return message.model_copy(update={"content": [block for block in message.content if not is_blank([block])]})


def messages_of(result: "ToolResult | list[ToolResult]") -> Iterator[ToolMessage]:
    """Yield the messages for the model in the return value of a tool."""
    if isinstance(result, list):
        return (message for each in result for message in messages_of(each))
    found = [result] if isinstance(result, ToolMessage) else _update(result).get("messages", ())
    return (message for message in found if isinstance(message, ToolMessage))


async def mapped(result: Any, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> Any:
    """Apply `change` to each message for the model in the return value of a tool."""
    if isinstance(result, list):
        return [await _mapped(each, change) for each in result]
    return await _mapped(result, change)


async def _mapped(result: ToolResult, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> ToolResult:
    if isinstance(result, ToolMessage):
        return await change(result)
    messages = [
        await change(message) if isinstance(message, ToolMessage) else message
        for message in _update(result).get("messages", ())
    ]
    return replace(result, update={**_update(result), "messages": messages}) if messages else result


def _update(command: "Command[Any]") -> dict[str, Any]:
    return command.update if isinstance(command.update, dict) else {}


IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""The types of images that every model with images accepts."""
_HEAD = 1024
"""Characters of base64 to decode for detecting the media type; a multiple of four."""
_SAMPLE = 65_536
"""Characters of base64 to decode for detecting an encoding; a multiple of four."""


def media_block(path: str, data: FileDataV2, max_bytes: int) -> list[dict[str, Any]] | str:
    """Return the block that shows the file, or a note that says why it is not shown.

    A message that the provider refuses would break the conversation for good, so an image or a PDF is sent only if its
    content has the type that its block names.
    """
    size = len(data.content) * 3 // 4 - data.content[-2:].count("=")
    kind = _kind(path, data)
    if kind is None:
        return f"[{shown_path(path)} {_not_shown(path, data, f'{size:,} bytes')}]"
    if size > max_bytes:
        return (
            f"[{shown_path(path)} ({one_line(kind)}, {size:,} bytes) is too large to be shown; "
            f"the limit is {max_bytes:,} bytes]"
        )
    block = {"type": _tool_block_type(kind), "base64": data.content, "mime_type": kind}
    return [block if kind in IMAGES else {**block, "extras": {"filename": path.rpartition("/")[2]}}]


def _kind(path: str, data: FileDataV2) -> str | None:
    """The media type of the content; None if no model accepts it."""
    try:
        sniffed = sniff(b64decode(data.content[:_HEAD]))
    except Base64Error:
        return None
    if sniffed != OCTET_STREAM:
        return sniffed if _is_shown(sniffed) else None
    declared = data.mime_type or mime_type(path) or OCTET_STREAM
    return declared if declared.startswith(("audio/", "video/")) else None


def _not_shown(path: str, data: FileDataV2, size: str) -> str:
    """What a file is whose content no model accepts."""
    declared = data.mime_type or mime_type(path) or OCTET_STREAM
    start = _decoded(data.content[:_SAMPLE])
    if declared in IMAGES and sniff(start) == OCTET_STREAM:
        return f"does not hold the {declared} that its name says ({size}), and cannot be shown"
    encoding = "" if is_binary_type(declared) else other_encoding(start)
    if encoding:
        return f"is not UTF-8 but likely {encoding} text ({size}), and cannot be shown"
    return f"is a binary file ({one_line(declared)}, {size}) that cannot be shown"


def _decoded(content: str) -> bytes:
    try:
        return b64decode(content)
    except Base64Error:
        return b""


def _is_shown(kind: str) -> bool:
    return kind in IMAGES or kind == "application/pdf" or kind.startswith(("audio/", "video/"))


def _tool_block_type(kind: str) -> str:
    # LangGraph's ToolNode turns blocks of the types `audio` and `video` into JSON text, but keeps file blocks.
    return "image" if kind in IMAGES else "file"


def typed_block(block: Any) -> Any:
    """Turn a file block with audio or video into a block of that type, after the ToolNode has run."""
    if not isinstance(block, dict) or block.get("type") != "file":
        return block
    family = str(block.get("mime_type", "")).partition("/")[0]
    return {**block, "type": family} if family in ("audio", "video") else block
