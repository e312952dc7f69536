"""The middleware that leaves out of a request what the provider of the model would refuse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from deepfs.middleware._base import ModelRequest, RequestMiddleware
from deepfs.middleware._messages import (
    IMAGES,
    blocks_of,
    correct_type,
    document_text,
    family,
    form_of,
    has_content,
    has_url,
    inline_size,
    is_blank,
    label,
    media_type,
    standard,
    text_block,
)
from deepfs.text.visible import one_line

__all__ = ["UnsupportedContentMiddleware", "acceptable", "without_new_media"]

MessageT = TypeVar("MessageT", AIMessage, HumanMessage, ToolMessage)


class UnsupportedContentMiddleware(RequestMiddleware):
    """Replaces media that a model does not take by notes, in each request; the state keeps the media.

    What a model takes follows from its `profile` and its provider. FilesystemMiddleware does the same for the model
    that it is given; add this one last where later middleware may choose another model.
    """

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request without the media that the model does not take.

        Args:
            request: The request.
        """
        return request.override(messages=acceptable(request.messages, request.model))


# --- refused requests ------------------------------------------------------------------------------------------------


def without_new_media(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages with notes instead of the media that no model has answered yet; equal if there are none."""
    answered = max((place for place, each in enumerate(messages) if isinstance(each, AIMessage)), default=-1)
    return [*messages[: answered + 1], *map(_without_media, messages[answered + 1 :])]


def _without_media(message: AnyMessage) -> AnyMessage:
    if not isinstance(message, HumanMessage | ToolMessage) or not _has_media(message):
        return message
    note = "is left out: the model refused it. It may be damaged, too large, or of a type that it does not take"
    content = [
        block if family(block) is None else text_block(f"[{label(block)} {note}{_other_way(block, message)}]")
        for block in blocks_of(message)
    ]
    return message.model_copy(update={"content": content})


def _other_way(block: Any, message: AnyMessage) -> str:
    """How the model gets the text of a document that it does not take."""
    is_read = isinstance(message, ToolMessage) and message.name == "read_file"
    return ". read_file with limit=1000 shows its text" if is_read and media_type(block) == "application/pdf" else ""


# --- limits ----------------------------------------------------------------------------------------------------------

_FAMILIES: Final = frozenset({"image", "audio", "video", "file"})
_PROFILE_KEYS: Final = {
    "image": "image_inputs",
    "audio": "audio_inputs",
    "video": "video_inputs",
    "file": "pdf_inputs",
}
_NOT_TAKEN: Final = "this model does not take it"
_RESULT_KEYS: Final = ("image_tool_message", "pdf_tool_message")


class _Limits(NamedTuple):
    """The media that a model accepts in its conversation."""

    families: frozenset[str] = _FAMILIES
    types: frozenset[str] | None = None
    """The accepted media types; None for all."""
    documents: bool = False
    """Whether files of any type are accepted besides."""
    image_chars: int | None = None
    """The longest image, in characters of base64; None for any."""
    in_results: bool = True
    """Whether tool results may hold media; if not, a message after the results shows the media."""
    file_urls: bool = True
    """Whether files may be named by their URL."""
    text_documents: bool = False
    """Whether documents may be texts, not in base64."""
    provider: str | None = None
    """The provider, as answers name it; None for one that deepfs does not know, whose blocks keep their form."""

    def adapt(self, block: Mapping[str, Any]) -> Mapping[str, Any]:
        """The block in a form that LangChain's class for the provider takes, as far as there is one."""
        return correct_type(standard(block) if self._is_foreign(block) else block)

    def _is_foreign(self, block: Mapping[str, Any]) -> bool:
        # OpenAI has two APIs with forms of their own; LangChain's form suits both.
        own = {"", self.provider} - {"openai"}
        return self.provider is not None and form_of(block) not in own

    def fault(self, block: Mapping[str, Any]) -> str | None:
        """Why the model does not accept a block of media; None if it does."""
        kind, name, size = media_type(block), family(block), inline_size(block)
        if self.provider is not None and not has_content(block):
            return "it is empty or damaged"
        if not self.families or self._is_foreign(block):
            return _NOT_TAKEN
        if name == "file" and size is None:
            # The provider fetches it, or has it.
            return _NOT_TAKEN if has_url(block) and not self.file_urls else None
        is_right = self.types is None or kind in self.types or (self.documents and name == "file")
        if name not in self.families or (size is not None and not is_right):
            return _NOT_TAKEN
        if name == "image" and self.image_chars is not None and (size or 0) > self.image_chars:
            return f"this model takes images of up to {self.image_chars * 3 // 4:,} bytes; make a smaller copy"
        return None


_IMAGES_AND_PDF: Final = IMAGES | {"application/pdf"}
# Anthropic measures images as they are sent, in base64.
_ANTHROPIC: Final = _Limits(
    frozenset({"image", "file"}),
    _IMAGES_AND_PDF,
    image_chars=5 * 1024 * 1024,
    text_documents=True,
    provider="anthropic",
)
_OPENAI: Final = _Limits(
    frozenset({"image", "file"}), _IMAGES_AND_PDF, in_results=False, file_urls=False, provider="openai"
)
_OPENAI_AUDIO: Final = frozenset({"audio/mp3", "audio/wav"})
_GOOGLE: Final = frozenset(
    {
        *(_IMAGES_AND_PDF - {"image/gif"}),
        *("image/heic", "image/heif"),
        *(f"audio/{name}" for name in ("aac", "aiff", "flac", "mp3", "mpeg", "ogg", "wav")),
        *(
            f"video/{name}"
            for name in ("3gpp", "avi", "mov", "mp4", "mpeg", "mpg", "quicktime", "webm", "wmv", "x-flv")
        ),
    }
)
# By `_llm_type`, LangChain's name of the provider's interface. In OpenAI's chat API, tool results hold only text.
_LIMITS: Final[Mapping[str, _Limits]] = {
    "anthropic-chat": _ANTHROPIC,
    "openai-chat": _OPENAI,
    "azure-openai-chat": _OPENAI,
    "chat-google-generative-ai": _Limits(types=_GOOGLE, provider="google_genai"),
}


class _Accepted(NamedTuple):
    """What a model accepts in the results of tools, in the messages of people, and in answers of other models."""

    results: _Limits
    people: _Limits
    answers: _Limits


def _accepted_limits(model: object) -> _Accepted:
    profile = getattr(model, "profile", None) or {}
    limits = _LIMITS.get(str(getattr(model, "_llm_type", "")), _Limits())
    refused = {name for name, key in _PROFILE_KEYS.items() if profile.get(key) is False}
    in_results = limits.in_results and all(profile.get(key) is not False for key in _RESULT_KEYS)
    results = limits._replace(families=limits.families - refused, in_results=in_results)
    texts_only = results._replace(families=frozenset(), text_documents=False)
    answers = texts_only if limits in (_ANTHROPIC, _OPENAI) else results
    if limits is not _OPENAI:
        return _Accepted(results, results, answers)
    # Of tools, deepfs shows no audio to OpenAI's models; people may send what their model is made for.
    takes_documents = getattr(model, "use_responses_api", None) is True
    results = results._replace(file_urls=takes_documents)
    people = results._replace(
        families=(results.families | {"audio"}) - refused,
        types=_IMAGES_AND_PDF | _OPENAI_AUDIO,
        documents=takes_documents,
    )
    return _Accepted(results, people, answers)


# --- messages --------------------------------------------------------------------------------------------------------


def acceptable(messages: Sequence[AnyMessage], model: object) -> list[AnyMessage]:
    """The messages without anything that the provider of `model` refuses: empty messages, and some media.

    One refused block breaks the conversation for good, since it is sent again with every request.
    """
    return list(_acceptable(_in_order(messages), _accepted_limits(model)))


def _in_order(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Put results of tools before other messages that came between them: they must follow their calls."""
    ordered: list[AnyMessage] = []
    later: list[AnyMessage] = []
    for message in messages:
        if isinstance(message, AIMessage):
            ordered += [*later, message]
            later = []
        elif isinstance(message, ToolMessage):
            ordered.append(message)
        else:
            last = ordered[-1] if ordered else None
            has_calls = isinstance(last, ToolMessage) or bool(isinstance(last, AIMessage) and last.tool_calls)
            (later if has_calls else ordered).append(message)
    return ordered + later


def _acceptable(messages: Sequence[AnyMessage], accepted: _Accepted) -> Iterator[AnyMessage]:
    behind: list[Any] = []
    names: dict[str | None, str] = {}
    for place, message in enumerate(messages):
        if behind and not isinstance(message, ToolMessage):
            yield HumanMessage(behind)
            behind = []
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                names[call["id"]] = call["name"]
        elif isinstance(message, ToolMessage):
            # The name is that of the call; they differ if a person chose another tool.
            name = names.get(message.tool_call_id, message.name)
            message = message if name == message.name else message.model_copy(update={"name": name})
        if isinstance(message.content, str) and not is_blank(message.content):
            yield message
        elif isinstance(message, AIMessage):
            is_filled = not message.tool_calls and place < len(messages) - 1
            answer = _drop_blanks(message)
            own = message.response_metadata.get("model_provider")
            if accepted.answers.provider not in (None, own):  # Few providers take media in answers.
                answer = _without_refused(answer, accepted.answers)
            yield _fill(answer, "[No answer]") if is_filled else answer
        elif isinstance(message, ToolMessage):
            yield _fill(_suit(_drop_blanks(message), accepted.results, behind), "[No output]")
        elif isinstance(message, HumanMessage):
            yield _fill(_without_refused(_drop_blanks(message), accepted.people), "[An empty message]")
        else:
            yield message
    if behind:
        yield HumanMessage(behind)


def _drop_blanks(message: Any) -> Any:
    """Drop the blank text blocks of the message; its content is `""` if nothing is left."""
    content = message.content
    seen: Any = "" if is_blank(content) else content
    if isinstance(content, list):
        seen = [block for block in content if not is_blank([block])] or ""
    return message if not content or seen == content else message.model_copy(update={"content": seen})


def _fill(message: Any, text: str) -> Any:
    return message.model_copy(update={"content": text}) if is_blank(message.content) else message


def _suit(message: ToolMessage, limits: _Limits, behind: list[Any]) -> ToolMessage:
    """Replace media that the model refuses by notes; if results may not hold media, move the others to `behind`."""
    message = _without_refused(message, limits)
    is_failure = message.status == "error"  # Failed results hold only text.
    if (limits.in_results and not is_failure) or not _has_media(message):
        return message
    whose = text_block(f"[The result of {one_line(message.name or 'a tool')}, call {message.tool_call_id}:]")
    behind += [each for block in message.content if family(block) for each in (whose, block)]
    content = [text_block(f"[{label(each)} is shown below]") if family(each) else each for each in blocks_of(message)]
    return message.model_copy(update={"content": content})


def _without_refused(message: MessageT, limits: _Limits) -> MessageT:
    """Replace media that the model refuses by notes, and give the others a form that LangChain's class takes."""
    content = [_take(block, limits, message) for block in blocks_of(message)]
    if all(new is old for new, old in zip(content, blocks_of(message), strict=True)):
        return message
    return message.model_copy(update={"content": content})


def _take(block: Any, limits: _Limits, message: AnyMessage) -> Any:
    if isinstance(block, str):
        return text_block(block)  # OpenAI's class does not take a bare one.
    text = document_text(block)
    if text is not None and limits.provider is not None and not limits.text_documents:
        return text_block(text)
    if text is not None and block.get("source_type") == "text":  # LangChain itself does not read this form any more.
        return {"type": "text-plain", "text": text, "mime_type": "text/plain"}
    if family(block) is None:
        return block
    typed = limits.adapt(block)
    fault = limits.fault(typed)
    if fault is None:
        return typed
    other_way = _other_way(typed, message) if fault is _NOT_TAKEN else ""
    return text_block(f"[{label(typed)} is left out: {fault}{other_way}]")


def _has_media(message: AnyMessage) -> bool:
    return any(map(family, blocks_of(message)))
