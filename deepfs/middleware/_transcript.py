"""Messages of a conversation as text: the form in which the history that summaries leave behind is kept.

A section has a heading with a time, and an element for each message, as deepagents writes them:
`<message type="human">text</message>`. The element has the id of the message besides, so that one that was written
twice is recognised. Media become files of their own; the text names them.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from json import dumps
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from deepfs.core import paths
from deepfs.core.media import OCTET_STREAM, extension

__all__ = ["Transcript", "section_heading"]

_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")
_PAYLOAD_KEYS: Final = frozenset({"base64", "data", "file_data"})
_MIN_PAYLOAD: Final = 64
"""Shorter values of these keys are text like any other."""
_MEDIA_TYPES: Final = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
_TOLD_BY_TOOL_CALLS: Final = frozenset({"tool_use", "function_call", "tool_call", "input_json_delta"})
_UNSTORABLE: Final = re.compile("[\0\r\ud800-\udfff]")


def section_heading(time: str) -> str:
    """The line with which a section begins."""
    return f"## Summarized at {time}\n\n"


class Transcript:
    """Renders messages; `media` collects the files that the text names, by their path in `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.media: dict[str, bytes] = {}

    def rendered(self, messages: Sequence[BaseMessage]) -> str:
        """The elements of all messages, one after another."""
        return "".join(f"{_storable(self._message(message))}\n" for message in messages)

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
        return "" if kind in _TOLD_BY_TOOL_CALLS else self._other_block(block, str(kind))

    def _other_block(self, block: Mapping[str, Any], kind: str) -> str:
        files: list[str] = []
        told = self._without_media(block, files)
        if kind in _MEDIA_TYPES and len(files) == 1:
            return f"<{kind.removesuffix('_url').removeprefix('input_')} url={quoteattr(files[0])} />"
        return f"<block type={quoteattr(kind)}>{escape(_json(told))}</block>"

    def _without_media(self, value: Any, files: list[str]) -> Any:
        """`value` with the path of a file in place of each medium in it; `files` gets these paths."""
        if isinstance(value, Mapping):
            return {key: self._entry(value, key, files) for key in value}
        if isinstance(value, (list, tuple)):
            return [self._without_media(each, files) for each in value]
        url = _DATA_URL.match(value) if isinstance(value, str) else None
        return value if url is None else self._stored(value, value[url.end() :], url[1], files)

    def _entry(self, block: Mapping[str, Any], key: Any, files: list[str]) -> Any:
        value = block[key]
        is_payload = key in _PAYLOAD_KEYS and isinstance(value, str) and len(value) >= _MIN_PAYLOAD
        if is_payload and not value.startswith("data:"):
            return self._stored(value, value, block.get("mime_type") or block.get("media_type"), files)
        return self._without_media(value, files)

    def _stored(self, value: str, payload: str, mime_type: Any, files: list[str]) -> str:
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


def _blocks(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [content]


def _attributes(message: BaseMessage) -> str:
    told: dict[str, Any] = {"type": message.type, "id": message.id, "name": message.name}
    if isinstance(message, ToolMessage):
        failed = "error" if message.status == "error" else None
        told.update(tool_call_id=message.tool_call_id, status=failed)
    return " ".join(f"{key}={quoteattr(str(value))}" for key, value in told.items() if value)


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
    """The text with references for what no backend stores as text, and for CR, which edits would respell."""
    return _UNSTORABLE.sub(lambda found: f"&#{ord(found[0])};", text)
