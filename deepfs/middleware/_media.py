"""Files that are not text, as content blocks of a message, or as a note where a model could not take them."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from deepfs.core.media import OCTET_STREAM, mime_type, sniff
from deepfs.middleware._messages import is_blank
from deepfs.types import FileDataV2

__all__ = ["acceptable", "media_block", "typed_block"]

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


# --- what models take ------------------------------------------------------------------------------------------------

_FAMILIES: Final = frozenset({"image", "audio", "video", "file"})
_PROFILE_KEYS: Final = {
    "image": "image_inputs",
    "audio": "audio_inputs",
    "video": "video_inputs",
    "file": "pdf_inputs",
}


class _Limits(NamedTuple):
    """What a model takes in its conversation."""

    families: frozenset[str] = _FAMILIES
    only_pdf: bool = False
    """Of the family `file`."""
    images: frozenset[str] | None = None
    """The types of images; None for all."""
    in_results: bool = True
    """Media may be in the results of tools; else they are shown in a message behind these."""

    def takes(self, block: Mapping[str, Any]) -> bool:
        """Whether the model takes a block of media."""
        kind = str(block.get("mime_type", ""))
        family, has_data = block["type"], "base64" in block
        is_wrong_file = self.only_pdf and family == "file" and has_data and kind != "application/pdf"
        is_wrong_image = self.images is not None and family == "image" and has_data and kind not in self.images
        return family in self.families and not (is_wrong_file or is_wrong_image)


_IMAGES_AND_PDF: Final = _Limits(frozenset({"image", "file"}), only_pdf=True, images=_IMAGES)
_GOOGLE_IMAGES: Final = (_IMAGES - {"image/gif"}) | {"image/heic", "image/heif"}
# By what LangChain calls the interface of a provider. The API for chats of OpenAI has only text in results of tools.
_LIMITS: Final[Mapping[str, _Limits]] = {
    "anthropic-chat": _IMAGES_AND_PDF,
    "openai-chat": _IMAGES_AND_PDF._replace(in_results=False),
    "azure-openai-chat": _IMAGES_AND_PDF._replace(in_results=False),
    "chat-google-generative-ai": _Limits(only_pdf=True, images=_GOOGLE_IMAGES),
}


def acceptable(messages: Sequence[AnyMessage], model: object) -> list[AnyMessage]:
    """The messages as the provider of `model` takes them: no empty ones, and no media that it refuses.

    One block that is refused spoils the conversation for good, since it is sent again with every message.
    """
    limits = _limits(model)
    return list(_acceptable(messages, limits))


def _limits(model: object) -> _Limits:
    profile = getattr(model, "profile", None) or {}
    limits = _LIMITS.get(str(getattr(model, "_llm_type", "")), _Limits())
    refused = {family for family, key in _PROFILE_KEYS.items() if profile.get(key) is False}
    in_results = limits.in_results and profile.get("image_tool_message") is not False
    return limits._replace(families=limits.families - refused, in_results=in_results)


def _acceptable(messages: Sequence[AnyMessage], limits: _Limits) -> Iterator[AnyMessage]:
    behind: list[Any] = []
    names: dict[str | None, str] = {}
    for place, message in enumerate(messages):
        if behind and not isinstance(message, ToolMessage):
            yield HumanMessage(behind)
            behind = []
        if isinstance(message, AIMessage):
            names.update((call["id"], call["name"]) for call in message.tool_calls)
            is_filled = not message.tool_calls and place < len(messages) - 1
            said = _without_blanks(message)
            yield _filled(said, "[No answer]") if is_filled else said
        elif isinstance(message, ToolMessage):
            named = _named(message, names.get(message.tool_call_id))
            yield _filled(_suited(_without_blanks(named), limits, behind), "[No output]")
        elif isinstance(message, HumanMessage):
            yield _filled(_without_blanks(message), "[An empty message]")
        else:
            yield message
    if behind:
        yield HumanMessage(behind)


def _named(message: ToolMessage, name: str | None) -> ToolMessage:
    """The result under the name of the call that it answers; a person may have had another tool called."""
    return message if name in (None, message.name) else message.model_copy(update={"name": name})


def _without_blanks(message: Any) -> Any:
    """The message without blocks of text that are blank; an empty text where nothing is left."""
    content = message.content
    seen = [] if is_blank(content) else content
    if isinstance(content, list):
        seen = [block for block in content if not is_blank([block])]
    return message if seen == content else message.model_copy(update={"content": seen or ""})


def _filled(message: Any, text: str) -> Any:
    return message.model_copy(update={"content": text}) if is_blank(message.content) else message


def _suited(message: ToolMessage, limits: _Limits, behind: list[Any]) -> ToolMessage:
    """The result with media that the model takes; `behind` gets those that are to be shown behind it."""
    if isinstance(message.content, str) or not any(map(_is_medium, message.content)):
        return message
    blocks: list[Any] = []
    for block in message.content:
        if not _is_medium(block):
            blocks.append(block)
        elif not limits.takes(block):
            blocks.append(_text(f"[{_told(block)} is left out: this model does not take it]"))
        elif limits.in_results:
            blocks.append(block)
        else:
            blocks.append(_text(f"[{_told(block)} is shown below]"))
            behind += [_text(f"[The result of {message.name or 'a tool'}, call {message.tool_call_id}:]"), block]
    return message.model_copy(update={"content": blocks})


def _is_medium(block: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(block, Mapping) and block.get("type") in _FAMILIES


def _told(block: Mapping[str, Any]) -> str:
    name = (block.get("extras") or {}).get("filename") or f"The {block['type']}"
    return f"{name} ({block.get('mime_type', 'of unknown type')})"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
