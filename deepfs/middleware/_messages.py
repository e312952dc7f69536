"""Prompts, media blocks and tool results, in the form that models accept."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeGuard

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from deepfs.text.media import OCTET_STREAM, mime_type, sniff
from deepfs.text.visible import one_line, shown_path
from deepfs.types import FileDataV2

if TYPE_CHECKING:
    from langgraph.types import Command

__all__ = [
    "ToolResult",
    "acceptable",
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


_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_HEAD = 1024
"""Characters of base64 to decode for detecting the media type; a multiple of four."""


def media_block(path: str, data: FileDataV2, max_bytes: int) -> list[dict[str, Any]] | str:
    """Return the block that shows the file, or a note that says why it is not shown.

    A message that the provider refuses would break the conversation for good, so an image or a PDF is sent only if its
    content has the type that its block names.
    """
    size = len(data.content) * 3 // 4
    kind = _kind(path, data)
    if kind is None:
        declared = one_line(data.mime_type or mime_type(path) or OCTET_STREAM)
        return f"[{shown_path(path)} is a binary file ({declared}, {size:,} bytes) that cannot be shown]"
    if size > max_bytes:
        return (
            f"[{shown_path(path)} ({one_line(kind)}, {size:,} bytes) is too large to be shown; "
            f"the limit is {max_bytes:,} bytes]"
        )
    block = {"type": _tool_block_type(kind), "base64": data.content, "mime_type": kind}
    return [block if kind in _IMAGES else {**block, "extras": {"filename": path.rpartition("/")[2]}}]


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


def _is_shown(kind: str) -> bool:
    return kind in _IMAGES or kind == "application/pdf" or kind.startswith(("audio/", "video/"))


def _tool_block_type(kind: str) -> str:
    # LangGraph's ToolNode turns blocks of the types `audio` and `video` into JSON text, but keeps file blocks.
    return "image" if kind in _IMAGES else "file"


def typed_block(block: Any) -> Any:
    """Turn a file block with audio or video into a block of that type, after the ToolNode has run."""
    if not isinstance(block, dict) or block.get("type") != "file":
        return block
    family = str(block.get("mime_type", "")).partition("/")[0]
    return {**block, "type": family} if family in ("audio", "video") else block


# --- what models accept ----------------------------------------------------------------------------------------------

_FAMILIES: Final = frozenset({"image", "audio", "video", "file"})
_PROFILE_KEYS: Final = {
    "image": "image_inputs",
    "audio": "audio_inputs",
    "video": "video_inputs",
    "file": "pdf_inputs",
}


class _Limits(NamedTuple):
    """The media that a model accepts in its conversation."""

    families: frozenset[str] = _FAMILIES
    only_pdf: bool = False
    """Whether PDF is the only accepted type of the family `file`."""
    images: frozenset[str] | None = None
    """The accepted image types; None for all."""
    in_results: bool = True
    """Whether tool results may hold media; if not, a message after the results shows the media."""

    def takes(self, block: Mapping[str, Any]) -> bool:
        """Whether the model accepts a block of media."""
        kind = str(block.get("mime_type", ""))
        family, has_data = block["type"], "base64" in block
        is_wrong_file = self.only_pdf and family == "file" and has_data and kind != "application/pdf"
        is_wrong_image = self.images is not None and family == "image" and has_data and kind not in self.images
        return family in self.families and not (is_wrong_file or is_wrong_image)


_IMAGES_AND_PDF: Final = _Limits(frozenset({"image", "file"}), only_pdf=True, images=_IMAGES)
_GOOGLE_IMAGES: Final = (_IMAGES - {"image/gif"}) | {"image/heic", "image/heif"}
# By `_llm_type`, LangChain's name of the provider's interface. In OpenAI's chat API, tool results hold only text.
_LIMITS: Final[Mapping[str, _Limits]] = {
    "anthropic-chat": _IMAGES_AND_PDF,
    "openai-chat": _IMAGES_AND_PDF._replace(in_results=False),
    "azure-openai-chat": _IMAGES_AND_PDF._replace(in_results=False),
    "chat-google-generative-ai": _Limits(only_pdf=True, images=_GOOGLE_IMAGES),
}


def acceptable(messages: Sequence[AnyMessage], model: object) -> list[AnyMessage]:
    """Return the messages without anything that the provider of `model` refuses: empty messages, and some media.

    One refused block breaks the conversation for good, since it is sent again with every request.
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
            answer = _filled_or_without_blanks(message)
            yield _filled(answer, "[No answer]") if is_filled else answer
        elif isinstance(message, ToolMessage):
            named = _named(message, names.get(message.tool_call_id))
            yield _filled(_suited(_filled_or_without_blanks(named), limits, behind), "[No output]")
        elif isinstance(message, HumanMessage):
            yield _filled(_filled_or_without_blanks(message), "[An empty message]")
        else:
            yield message
    if behind:
        yield HumanMessage(behind)


def _named(message: ToolMessage, name: str | None) -> ToolMessage:
    """Give the result the name of its call in the AIMessage; they differ if a person chose another tool."""
    return message if name in (None, message.name) else message.model_copy(update={"name": name})


def _filled_or_without_blanks(message: Any) -> Any:
    """Drop the blank text blocks of the message; its content is `""` if nothing is left."""
    content = message.content
    seen = [] if is_blank(content) else content
    if isinstance(content, list):
        seen = [block for block in content if not is_blank([block])]
    return message if seen == content else message.model_copy(update={"content": seen or ""})


def _filled(message: Any, text: str) -> Any:
    return message.model_copy(update={"content": text}) if is_blank(message.content) else message


def _suited(message: ToolMessage, limits: _Limits, behind: list[Any]) -> ToolMessage:
    """Replace media that the model refuses by notes; if results may not hold media, move the others to `behind`."""
    if isinstance(message.content, str) or not any(map(_is_medium, message.content)):
        return message
    blocks: list[Any] = []
    for block in message.content:
        if not _is_medium(block):
            blocks.append(block)
        elif not limits.takes(block):
            blocks.append(_text(f"[{_media_label(block)} is left out: this model does not take it]"))
        elif limits.in_results:
            blocks.append(block)
        else:
            blocks.append(_text(f"[{_media_label(block)} is shown below]"))
            behind += [
                _text(f"[The result of {one_line(message.name or 'a tool')}, call {message.tool_call_id}:]"),
                block,
            ]
    return message.model_copy(update={"content": blocks})


def _is_medium(block: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(block, Mapping) and block.get("type") in _FAMILIES


def _media_label(block: Mapping[str, Any]) -> str:
    name = (block.get("extras") or {}).get("filename") or f"The {block['type']}"
    return one_line(f"{name} ({block.get('mime_type', 'of unknown type')})")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
