"""The messages of a conversation as text, with their media in files."""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from json import dumps
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage

from deepfs.text import paths
from deepfs.text.media import OCTET_STREAM, extension

__all__ = ["Transcript"]

_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")
_PAYLOAD_KEYS: Final = frozenset({"base64", "data", "file_data"})
_MIN_PAYLOAD: Final = 64
"""Shorter values of `_PAYLOAD_KEYS` are treated as text."""
_MEDIA_TYPES: Final = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
_SHOWN_AS_TOOL_CALLS: Final = frozenset({"tool_use", "function_call", "tool_call", "input_json_delta"})
_SUMMARISED_AS_BLOCKS: Final = frozenset({"image", "audio", "video"})
"""The blocks with a URL that LangChain shows to a model which summarises."""
_UNSTORABLE: Final = re.compile("[\0\r\ud800-\udfff]")


class Transcript:
    """Renders messages as text; `media` collects the media files that the text names, by path.

    Args:
        directory: The directory of the media files.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.media: dict[str, bytes] = {}

    def rendered(self, messages: Sequence[BaseMessage]) -> str:
        """The messages as XML-like elements, one after another.

        Args:
            messages: The messages.
        """
        return "".join(f"{_storable(self._message(message))}\n" for message in messages)

    def referenced(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """The messages with references to files in the place of their media, for a model that summarises them.

        Args:
            messages: The messages.
        """
        return [self._with_references(message) for message in messages]

    def _with_references(self, message: AnyMessage) -> AnyMessage:
        if isinstance(message.content, str):
            return message
        content = [self._reference(block) for block in message.content]
        return message if content == message.content else message.model_copy(update={"content": content})

    def _reference(self, block: Any) -> Any:
        if not isinstance(block, Mapping):
            return block
        files: list[str] = []
        without_media = self._without_media(block, files)
        if not files:
            return block
        kind = _media_kind(str(block.get("type")))
        if kind in _SUMMARISED_AS_BLOCKS and len(files) == 1:
            return {"type": kind, "url": files[0]}
        shown = f"<{kind} url={quoteattr(files[0])} />" if len(files) == 1 else _json(without_media)
        return {"type": "text", "text": shown}

    def _message(self, message: BaseMessage) -> str:
        parts = list(filter(None, map(self._block, _blocks(message.content))))
        calls = list(_calls(message)) if isinstance(message, AIMessage) else []
        opening = f"<message {_attributes(message)}>"
        if not calls:
            return f"{opening}{chr(10).join(parts)}</message>"
        content = [f"  <content>{chr(10).join(parts)}</content>"] if parts else []
        return "\n".join([opening, *content, *calls, "</message>"])

    def _block(self, block: Any) -> str:
        if isinstance(block, str):
            return escape(block)
        if not isinstance(block, Mapping):
            return escape(str(block))
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            return escape(block["text"])
        return "" if kind in _SHOWN_AS_TOOL_CALLS else self._other_block(block, str(kind))

    def _other_block(self, block: Mapping[str, Any], kind: str) -> str:
        files: list[str] = []
        without_media = self._without_media(block, files)
        if kind in _MEDIA_TYPES and len(files) == 1:
            return f"<{_media_kind(kind)} url={quoteattr(files[0])} />"
        return f"<block type={quoteattr(kind)}>{escape(_json(without_media))}</block>"

    def _without_media(self, value: Any, files: list[str]) -> Any:
        """Replace all media in `value` by paths of files, and append these paths to `files`."""
        if isinstance(value, Mapping):
            return {key: self._entry(value, key, files) for key in value}
        if isinstance(value, (list, tuple)):
            return [self._without_media(each, files) for each in value]
        url = _DATA_URL.match(value) if isinstance(value, str) else None
        return value if url is None else self._extracted(value, value[url.end() :], url[1], files)

    def _entry(self, block: Mapping[str, Any], key: Any, files: list[str]) -> Any:
        value = block[key]
        is_payload = key in _PAYLOAD_KEYS and isinstance(value, str) and len(value) >= _MIN_PAYLOAD
        if is_payload and not value.startswith("data:"):
            return self._extracted(value, value, block.get("mime_type") or block.get("media_type"), files)
        return self._without_media(value, files)

    def _extracted(self, value: str, payload: str, mime_type: Any, files: list[str]) -> str:
        """Add a file with the decoded `payload` and return its path; return `value` if `payload` is not base64."""
        try:
            content = b64decode(payload, validate=True)
        except (Base64Error, ValueError):
            return value
        kind = mime_type if isinstance(mime_type, str) else OCTET_STREAM
        name = f"{sha256(content).hexdigest()[:32]}{extension(kind) or '.bin'}"
        path = paths.join(self._directory, name)
        self.media[path] = content
        files.append(path)
        return path


def _media_kind(block_type: str) -> str:
    return block_type.removesuffix("_url").removeprefix("input_")


def _blocks(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [content]


def _attributes(message: BaseMessage) -> str:
    attributes: dict[str, Any] = {"type": message.type, "id": message.id, "name": message.name}
    if isinstance(message, ToolMessage):
        failed = "error" if message.status == "error" else None
        attributes.update(tool_call_id=message.tool_call_id, status=failed)
    return " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items() if value)


def _calls(message: AIMessage) -> Iterator[str]:
    for call in message.tool_calls:
        yield _call("tool_call", call, _json(call["args"]))
    for wrong in message.invalid_tool_calls:
        yield _call("invalid_tool_call", wrong, str(wrong.get("args") or ""))


def _call(kind: str, call: Mapping[str, Any], arguments: str) -> str:
    identity, name = quoteattr(str(call.get("id") or "")), quoteattr(str(call.get("name") or ""))
    return f"  <{kind} id={identity} name={name}>{escape(arguments)}</{kind}>"


def _json(value: Any) -> str:
    return dumps(value, ensure_ascii=False, default=str)


def _storable(text: str) -> str:
    """Replace characters that no backend stores as text, and CR, which edits may change, by XML references."""
    return _UNSTORABLE.sub(lambda found: f"&#{ord(found[0])};", text)
