"""Prompts, results of tools and blocks of media, in LangChain's form and in those of providers."""

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from json import loads
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage, ToolMessage

from deepfs.text.media import OCTET_STREAM, is_binary_type, mime_type, other_encoding, sniff
from deepfs.text.visible import display_path, one_line
from deepfs.types import FileDataV2

if TYPE_CHECKING:
    from langgraph.types import Command

ToolResult: TypeAlias = "ToolMessage | Command[Any]"
"""As LangChain declares it; LangGraph also lets tools return a list of them."""


def text_block(text: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": text}


def is_blank(content: object) -> bool:
    """Whether the content of a message is empty or only white space. Providers refuse such messages and blocks."""
    if isinstance(content, str):
        return not content or content.isspace()
    if not isinstance(content, list):
        return False
    texts = (
        block.get("text") or "" if isinstance(block, Mapping) and block.get("type") == "text" else block
        for block in content
    )
    return all(isinstance(text, str) and (not text or text.isspace()) for text in texts)


def with_prompt(message: SystemMessage | None, prompt: str) -> SystemMessage | None:
    """Append `prompt` to the system message, and drop its blank blocks; return None if both are blank."""
    system = None if message is None or is_blank(message.content) else message
    if system is not None and isinstance(system.content, list):
        system = system.model_copy(update={"content": [block for block in system.content if not is_blank([block])]})
    if is_blank(prompt):
        return system
    if system is None:
        return SystemMessage(prompt)
    if isinstance(system.content, str):
        return system.model_copy(update={"content": f"{system.content}\n\n{prompt}"})
    return system.model_copy(update={"content": [*system.content, text_block(f"\n\n{prompt}")]})


def messages_of(result: "ToolResult | list[ToolResult]") -> Iterator[ToolMessage]:
    """Yield the messages for the model in the return value of a tool."""
    if isinstance(result, list):
        return (message for each in result for message in messages_of(each))
    found = [result] if isinstance(result, ToolMessage) else _update(result).get("messages", ())
    return (message for message in found if isinstance(message, ToolMessage))


async def map_messages(result: Any, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> Any:
    """Apply `change` to each message for the model in the return value of a tool."""
    if isinstance(result, list):
        return [await _map_messages(each, change) for each in result]
    return await _map_messages(result, change)


async def _map_messages(result: ToolResult, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> ToolResult:
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
        return f"{display_path(path)} {_not_shown(path, data, f'{size:,} bytes')}"
    if size > max_bytes:
        what = f"{display_path(path)} ({one_line(kind)}, {size:,} bytes)"
        return f"{what} is too large to be shown; the limit is {max_bytes:,} bytes"
    if kind in IMAGES:
        return [{"type": "image", "base64": data.content, "mime_type": kind}]
    # LangGraph's ToolNode turns blocks of the types `audio` and `video` into JSON text, but keeps file blocks.
    extras = {"filename": path.rpartition("/")[2]}
    return [{"type": "file", "base64": data.content, "mime_type": kind, "extras": extras}]


def _kind(path: str, data: FileDataV2) -> str | None:
    """The media type of the content; None if no model accepts it."""
    start = _head(data.content)
    if not start:
        return None
    if (sniffed := sniff(start)) != OCTET_STREAM:
        is_shown = sniffed in IMAGES or sniffed == "application/pdf" or sniffed.startswith(("audio/", "video/"))
        return sniffed if is_shown else None
    declared = data.mime_type or mime_type(path) or OCTET_STREAM
    return declared if declared.startswith(("audio/", "video/")) else None


def _not_shown(path: str, data: FileDataV2, size: str) -> str:
    """What a file is whose content no model accepts."""
    declared = data.mime_type or mime_type(path) or OCTET_STREAM
    start = _head(data.content, _SAMPLE)
    if declared in IMAGES and sniff(start) == OCTET_STREAM:
        return f"does not hold the {declared} that its name says ({size}), and cannot be shown"
    encoding = "" if is_binary_type(declared) else other_encoding(start)
    if encoding:
        return f"is not UTF-8 but likely {encoding} text ({size}), and cannot be shown"
    return f"is a binary file ({one_line(declared)}, {size}) that cannot be shown"


def retype_block(block: Any) -> Any:
    """Turn a file block with audio or video into a block of that type, after the ToolNode has run."""
    if not isinstance(block, dict) or block.get("type") != "file":
        return block
    family = str(block.get("mime_type", "")).partition("/")[0]
    return {**block, "type": family} if family in ("audio", "video") else block


MessageT = TypeVar("MessageT", bound=BaseMessage)

_REFERENCE: Final = "deepagents_blob"
"""The key that holds the hash, instead of `base64`, in blocks of deepagents as well."""
_FORM: Final = "deepfs_form"
_PLACE: Final = "deepfs_place"
"""Keys of `extras`: a block of a provider's form without its payload, and where the payload is in it."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")

_FAMILIES: Final[Mapping[object, str]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "input_audio": "audio",
    "video": "video",
    "file": "file",
    "input_file": "file",
    "document": "file",
    "media": "file",
}
"""The families of the types of blocks, in LangChain's form and in those of providers."""
_JSON_OF_MEDIA: Final = re.compile(rf'"type": "(?:{"|".join(map(str, _FAMILIES))})"')
_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")
_PLACES: Final = (
    ("base64",),
    ("data",),
    ("url",),
    ("image_url",),
    ("image_url", "url"),
    ("input_audio", "data"),
    ("file", "file_data"),
    ("file_data",),
    ("source", "data"),
)
"""Where blocks hold their payload."""


class Inline(NamedTuple):
    """A payload that is in its block."""

    content: bytes
    digest: str
    kind: str
    """The media type."""
    place: tuple[str, ...]
    prefix: str
    """The beginning of a data URL, or nothing."""


def has_media(message: BaseMessage) -> bool:
    """Whether a message holds media inline."""
    return any(_payload(block, place) is not None for block in blocks_of(message) for place in _PLACES)


def has_references(message: BaseMessage) -> bool:
    """Whether a message holds references to blobs."""
    return any(map(is_reference, blocks_of(message)))


def may_be_json(message: BaseMessage) -> bool:
    """Whether the content of a message may be JSON of blocks, which LangGraph makes of results with audio or video."""
    content = message.content
    return isinstance(content, str) and content.startswith("[") and _JSON_OF_MEDIA.search(content) is not None


def with_parsed_blocks(message: MessageT) -> MessageT:
    """The message with blocks instead of their JSON."""
    if not may_be_json(message):
        return message
    try:
        blocks = loads(str(message.content))
    except ValueError:
        return message
    shown = [text_block(block) if isinstance(block, str) else block for block in blocks]
    # A reference in a text may be forged: only blocks that are media themselves are taken.
    is_content = all(
        isinstance(block, dict)
        and not is_reference(block)
        and (family(block) is not None or (block.get("type") == "text" and isinstance(block.get("text"), str)))
        for block in shown
    )
    return message.model_copy(update={"content": shown}) if is_content and any(map(inline, shown)) else message


def is_reference(block: Any) -> bool:
    """Whether a block refers to a blob."""
    return isinstance(block, Mapping) and _REFERENCE in block


def inline(block: Any) -> Inline | None:
    """The payload that is in a block; None if there is none in base64."""
    for place in _PLACES:
        payload = _payload(block, place)
        content = None if payload is None else _decode_payload(payload[1])
        if payload is not None and content:
            return Inline(content, sha256(content).hexdigest(), payload[2], place, payload[0])
    return None


def family(block: Any) -> str | None:
    """`"image"`, `"audio"`, `"video"` or `"file"` for a block of media in any form, otherwise None."""
    if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
        return None
    return _family(media_type(block)) if block["type"] == "media" else _FAMILIES.get(block["type"])


def inline_size(block: Mapping[str, Any]) -> int | None:
    """The length of the payload in a block, in characters of base64; 0 for a reference, None if there is no payload."""
    if is_reference(block):
        return 0
    return next((len(payload[1]) for place in _PLACES if (payload := _payload(block, place))), None)


def media_type(block: Mapping[str, Any]) -> str:
    """The media type of a block of media, as the block names it; `""` if it does not."""
    found = (_payload(block, place) for place in _PLACES)
    return next((payload[2] for payload in found if payload), str(block.get("mime_type") or ""))


def correct_type(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block with the type that its image has: providers refuse images of another type than their block names."""
    for place in _PLACES:
        if (found := _payload(block, place)) is not None:
            prefix, payload, kind = found
            actual = sniff(_head(payload)) if _family(kind) == "image" else kind
            if actual == kind or _family(actual) != "image":
                return block
            if prefix:
                return _with(block, place, f"data:{actual};base64,{payload}")
            return _with(block, ("source", "media_type") if place == ("source", "data") else ("mime_type",), actual)
    return block


def _head(payload: str, chars: int = 1024) -> bytes:
    """The beginning of the content, by so many characters, a multiple of four; nothing if the payload is no base64."""
    try:
        return b64decode(f"{payload[:chars]}==")  # Some leave out the padding.
    except (Base64Error, ValueError):
        return b""


# --- forms -----------------------------------------------------------------------------------------------------------

_LOCATIONS: Final = (
    ("url",),
    ("image_url",),
    ("image_url", "url"),
    ("source", "url"),
    ("source", "file_id"),
    ("file_uri",),
    ("file_id",),
    ("file_url",),
    ("file", "file_id"),
)
"""Where blocks name a file that the provider fetches, or has."""


def has_content(block: Mapping[str, Any]) -> bool:
    """Whether a block of media holds content, or refers to some: providers refuse empty ones."""
    others = (block.get("source_type") == "id", isinstance(block.get("data"), bytes), _at(block, ("source", "content")))
    if is_reference(block) or document_text(block) or any(others):
        return True
    payload = next((found[1] for place in _PLACES if (found := _payload(block, place))), None)
    return any(_location(block, place) for place in _LOCATIONS) if payload is None else bool(_head(payload))


def document_text(block: Any) -> str | None:
    """The text of a document that is not in base64, in LangChain's form or Anthropic's; None for other blocks."""
    if not isinstance(block, Mapping):
        return None
    if block.get("type") == "text-plain" or block.get("source_type") == "text":
        text = block.get("text")
    else:
        text = _at(block, ("source", "data")) if _at(block, ("source", "type")) == "text" else None
    return text if isinstance(text, str) and text.strip() else None


def has_url(block: Mapping[str, Any]) -> bool:
    """Whether a block of media is in LangChain's form and names a URL from which to fetch it."""
    return _location(block, ("url",)) is not None


def _location(block: Mapping[str, Any], place: tuple[str, ...]) -> str | None:
    value = _at(block, place)
    return value if isinstance(value, str) and value.strip() and not value.startswith("data:") else None


def form_of(block: Mapping[str, Any]) -> str:
    """The provider whose form a block of media has: `"anthropic"`, `"google_genai"` or `"openai"`.

    It is `""` for forms that LangChain's classes for all of these providers take, and for files of OpenAI, by id.
    """
    if isinstance(block.get("source"), Mapping):
        return "anthropic"
    if block.get("type") == "media":
        return "google_genai"
    is_input = block.get("type") in ("input_image", "input_file") and standard(block) is not block
    # Data in a `url` is none of them, but one that few of the classes take.
    return "openai" if is_input or isinstance(block.get("image_url"), str) or _payload(block, ("url",)) else ""


def standard(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The block in LangChain's form; the block itself if it has neither content nor a URL."""
    found = next((payload for place in _PLACES if (payload := _payload(block, place))), None)
    url = next((url for place in _LOCATIONS[:4] if (url := _location(block, place))), None)
    if found is not None:
        named = {"base64": found[1], "mime_type": found[2]}
    elif url is not None:
        named = {"url": url}
    else:
        return block
    name = block.get("filename") or block.get("title")
    extras = {"extras": {"filename": name}} if isinstance(name, str) else {}
    return {"type": _family(found[2]) if found else family(block), **named, **extras}


def label(block: Mapping[str, Any]) -> str:
    """A name for a block of media: its file name and media type, as far as known."""
    extras = block.get("extras")
    name = (extras.get("filename") if isinstance(extras, Mapping) else None) or f"The {family(block)}"
    return one_line(f"{name} ({media_type(block) or 'of unknown type'})")


def blocks_of(message: BaseMessage) -> Sequence[Any]:
    """The blocks of a message; none if its content is a text."""
    return message.content if isinstance(message.content, list) else ()


def _payload(block: Any, place: tuple[str, ...]) -> tuple[str, str, str] | None:
    """The prefix, the base64 and the media type of what a block holds at a place; None if it holds no payload there."""
    if not isinstance(block, Mapping) or block.get("type") not in _FAMILIES:
        return None
    holder = block if len(place) == 1 else block.get(place[0])
    value = _at(block, place)
    if not isinstance(holder, Mapping) or not isinstance(value, str) or not value:
        return None
    url = _DATA_URL.match(value)
    if url is not None:
        return url[0], value[url.end() :], url[1] or OCTET_STREAM
    return ("", value, _declared_type(block, holder)) if _is_base64(block, holder, place[-1]) else None


def _at(block: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    """What a block holds at a place; None if it has no such place."""
    holder: Any = block
    for key in place:
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder


def _is_base64(block: Mapping[str, Any], holder: Mapping[str, Any], key: str) -> bool:
    """Whether the value of the key is base64 by the form of the block: the data of some sources is plain text."""
    if key != "data":
        return key in ("base64", "file_data")
    return block["type"] in ("media", "input_audio") or "base64" in (holder.get("type"), holder.get("source_type"))


def _declared_type(block: Mapping[str, Any], holder: Mapping[str, Any]) -> str:
    kind = holder.get("mime_type") or holder.get("media_type") or block.get("mime_type")
    if isinstance(kind, str):
        return kind
    return f"audio/{holder['format']}" if isinstance(holder.get("format"), str) else OCTET_STREAM


def _decode_payload(payload: str) -> bytes | None:
    """The content; None if the payload is no base64, or another one than would be made of the content."""
    try:
        content = b64decode(payload, validate=True)
    except (Base64Error, ValueError):
        return None
    return content if encode(content) == payload else None


def encode(content: bytes) -> str:
    """The content in base64."""
    return b64encode(content).decode("ascii")


def _family(kind: str) -> str:
    start = kind.partition("/")[0]
    return start if start in ("image", "audio", "video") else "file"


# --- references ------------------------------------------------------------------------------------------------------


class Payload(NamedTuple):
    """The content of a blob in base64, or the reason why there is none."""

    text: str | None
    fault: str = ""


def refer(message: MessageT, row: Sequence[Inline | None], known: set[str]) -> MessageT:
    """The message with references in the place of stored payloads."""
    if not any(each is not None and each.digest in known for each in row):
        return message
    content = [
        block if each is None or each.digest not in known else _reference(block, each)
        for block, each in zip(blocks_of(message), row, strict=True)
    ]
    return message.model_copy(update={"content": content})


def _reference(block: Mapping[str, Any], found: Inline) -> dict[str, Any]:
    if found.place == ("base64",):
        return {**{key: value for key, value in block.items() if key != "base64"}, _REFERENCE: found.digest}
    extras = {_FORM: _with(block, found.place, found.prefix), _PLACE: list(found.place)}
    return {"type": _family(found.kind), "mime_type": found.kind, _REFERENCE: found.digest, "extras": extras}


def _with(block: Mapping[str, Any], place: Sequence[str], value: str) -> dict[str, Any]:
    first, *others = place
    return {**block, first: _with(block[first], others, value) if others else value}


def digest_of(block: Any) -> str | None:
    """The hash in a reference; None if it cannot be one."""
    digest = block[_REFERENCE]
    return digest if is_digest(digest) and family(block) is not None else None


def is_digest(name: object) -> bool:
    """Whether a name is that of a blob."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def fill_references(message: MessageT, found: Mapping[str, Payload]) -> MessageT:
    """The message with payloads, or notes, in the place of its references."""
    content = [_fill(block, found) if is_reference(block) else block for block in blocks_of(message)]
    return message.model_copy(update={"content": content})


def _fill(block: Mapping[str, Any], found: Mapping[str, Payload]) -> dict[str, Any]:
    digest = digest_of(block)
    payload = Payload(None, "its reference is not valid") if digest is None else found[digest]
    if payload.text is None:
        note = f"[{label(block)} is not available: {payload.fault}. If it is needed, read or ask for the file again]"
        return text_block(note)
    form = _form(block)
    if form is None:
        return {**{key: value for key, value in block.items() if key != _REFERENCE}, "base64": payload.text}
    original, place, prefix = form
    return _with(original, place, f"{prefix}{payload.text}")


def _form(block: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...], str] | None:
    """The block as it was before it became a reference, where its payload was, and what stands before that."""
    extras = block.get("extras")
    if not isinstance(extras, Mapping) or not isinstance(extras.get(_PLACE), list):
        return None
    original, place = extras.get(_FORM), tuple(extras[_PLACE])
    if not isinstance(original, Mapping) or family(original) is None or place not in _PLACES:
        return None
    prefix = _at(original, place)
    return (original, place, prefix) if isinstance(prefix, str) else None
