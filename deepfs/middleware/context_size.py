"""The size of conversations: what is too long, and how it is made shorter without a summary."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from json import dumps
from typing import Any, Final

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from typing_extensions import TypedDict

from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware._base import ContextSize, ModelRequest, artifacts_root
from deepfs.middleware.eviction import CHARS_PER_TOKEN, Evictor
from deepfs.text import paths

__all__ = [
    "ArgumentLimit",
    "LongTexts",
    "SummarizationDefaults",
    "TruncateArgsSettings",
    "compute_summarization_defaults",
    "input_budget",
    "is_context_overflow",
    "takes_tools",
]


class TruncateArgsSettings(TypedDict, total=False):
    """When and how old arguments of tool calls that write files are shortened for the model."""

    trigger: ContextSize | None
    """The size of the conversation from which on they are shortened; None never shortens them."""
    keep: ContextSize
    """The newest part of the conversation, which is left alone."""
    max_length: int
    """The characters of an argument above which it is shortened."""
    truncation_text: str
    """What follows the first 20 characters of a shortened argument."""


class SummarizationDefaults(TypedDict):
    """The settings that `create_summarization_middleware` uses."""

    trigger: ContextSize
    keep: ContextSize
    truncate_args_settings: TruncateArgsSettings


_KNOWN_CONTEXT: Final = SummarizationDefaults(
    trigger=("fraction", 0.85),
    keep=("fraction", 0.10),
    truncate_args_settings=TruncateArgsSettings(trigger=("fraction", 0.85), keep=("fraction", 0.10)),
)
_UNKNOWN_CONTEXT: Final = SummarizationDefaults(
    trigger=("tokens", 170_000),
    keep=("messages", 6),
    truncate_args_settings=TruncateArgsSettings(trigger=("messages", 20), keep=("messages", 20)),
)


def compute_summarization_defaults(model: BaseChatModel) -> SummarizationDefaults:
    """The settings for a model: by the size of its context if it reports one, otherwise for a context of 200,000.

    Args:
        model: The chat model.
    """
    return deepcopy(_UNKNOWN_CONTEXT if _context_tokens(model) is None else _KNOWN_CONTEXT)


# --- arguments of old calls ------------------------------------------------------------------------------------------

_WRITING: Final = frozenset({"write_file", "edit_file", "apply_patch"})
_SHOWN_CHARS: Final = 20
_KEPT_MESSAGES: Final = 20
_STEP: Final = 10
_ARGUMENT_KEYS: Final = ("input", "args")


class ArgumentLimit:
    """Shortens long arguments of the old tool calls that write files.

    Args:
        settings: When and how; None never shortens.
        count: Counts the tokens of messages.
        context: Returns the tokens of the model's context, or None if they are not known.
    """

    def __init__(
        self,
        settings: TruncateArgsSettings | None,
        count: Callable[[Sequence[AnyMessage]], int],
        context: Callable[[], int | None],
    ) -> None:
        given = settings or {}
        self._trigger = given.get("trigger")
        self._keep: ContextSize = given.get("keep", ("messages", _KEPT_MESSAGES))
        self._max_length = given.get("max_length", 2_000)
        self._ending = given.get("truncation_text", "...(argument truncated)")
        self._count = count
        self._context = context

    def applied(self, messages: Sequence[AnyMessage], tokens: int) -> list[AnyMessage]:
        """Shorten the arguments where the conversation is large enough.

        Args:
            messages: The messages, which stay as they are.
            tokens: Their size, with that of tools and system message.
        """
        if not self._is_reached(len(messages), tokens):
            return list(messages)
        first_kept = _in_steps(self._first_kept(messages))
        return [*map(self._shortened, messages[:first_kept]), *messages[first_kept:]]

    def _is_reached(self, count: int, tokens: int) -> bool:
        if self._trigger is None:
            return False
        kind, value = self._trigger
        if kind == "messages":
            return count >= value
        limit = self._tokens(kind, value)
        return limit is not None and tokens >= limit

    def _tokens(self, kind: str, value: float) -> int | None:
        context = self._context()
        if kind != "fraction":
            return max(1, int(value))
        return None if context is None else max(1, int(context * value))

    def _first_kept(self, messages: Sequence[AnyMessage]) -> int:
        kind, value = self._keep
        budget = None if kind == "messages" else self._tokens(kind, value)
        if budget is None:
            return max(0, len(messages) - (int(value) if kind == "messages" else _KEPT_MESSAGES))
        for place in reversed(range(len(messages))):
            budget -= self._count([messages[place]])
            if budget < 0:
                return place + 1
        return 0

    def _shortened(self, message: AnyMessage) -> AnyMessage:
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return message
        calls = [self._shortened_call(call) for call in message.tool_calls]
        if calls == message.tool_calls:
            return message
        content = _with_arguments(message.content, {call["id"]: call["args"] for call in calls})
        return message.model_copy(update={"tool_calls": calls, "content": content})

    def _shortened_call(self, call: ToolCall) -> ToolCall:
        if call["name"] not in _WRITING:
            return call
        return {**call, "args": {name: self._shortened_value(value) for name, value in call["args"].items()}}

    def _shortened_value(self, value: Any) -> Any:
        is_long = isinstance(value, str) and len(value) > self._max_length
        return f"{value[:_SHOWN_CHARS]}{self._ending}" if is_long else value


def _in_steps(place: int) -> int:
    """The place, or one a little before it that stays the same for several turns: each change costs a cached prompt."""
    return place if place < _STEP else place - place % _STEP


def _with_arguments(content: Any, arguments: Mapping[str | None, Any]) -> Any:
    """The content with other arguments in the blocks in which some providers repeat the calls."""
    if not isinstance(content, list):
        return content
    return [_block_with_arguments(block, arguments) for block in content]


def _block_with_arguments(block: Any, arguments: Mapping[str | None, Any]) -> Any:
    if not isinstance(block, dict):
        return block
    identity = block.get("call_id") or block.get("id")
    if identity not in arguments:
        return block
    found = {key: arguments[identity] for key in _ARGUMENT_KEYS if isinstance(block.get(key), dict)}
    if isinstance(block.get("arguments"), str):
        found["arguments"] = dumps(arguments[identity], ensure_ascii=False)
    return {**block, **found}


# --- long texts ------------------------------------------------------------------------------------------------------

_CLIPPED_TOKENS: Final = 1_000


class LongTexts:
    """Moves the long texts of tools and people to files, where a conversation is too long even with a summary.

    Args:
        backend: The backend of the files.
    """

    def __init__(self, backend: BackendProtocol) -> None:
        self._backend = backend
        self._root = artifacts_root(backend)

    async def moved(
        self, shown: Sequence[AnyMessage], messages: Sequence[AnyMessage]
    ) -> tuple[dict[str, AnyMessage], list[AnyMessage]]:
        """Store the texts, and replace them by their head and tail.

        Args:
            shown: The messages of a request.
            messages: The messages of the state.

        Returns:
            The changed messages of the request by id, and those of the state whose texts were stored.
        """
        own = {message.id: message for message in messages if message.id}
        clipped: dict[str, AnyMessage] = {}
        stored: list[AnyMessage] = []
        for message in shown:
            if message.id and message.id in own and _is_long(message):
                clipped[message.id], _ = await self._moved(message)
                # The message of the state may have media that the request lacks.
                replacement, is_stored = await self._moved(own[message.id])
                stored += [replacement] if is_stored else []
        return clipped, stored

    async def _moved(self, message: AnyMessage) -> tuple[AnyMessage, bool]:
        is_result = isinstance(message, ToolMessage)
        directory = paths.join(self._root, "large_tool_results" if is_result else "large_messages")
        clipper = _Clipper(self._backend, _CLIPPED_TOKENS, directory)
        key = message.tool_call_id if isinstance(message, ToolMessage) else message.id or ""
        return await clipper.evicted(message, key), clipper.has_stored


class _Clipper(Evictor):
    """An evictor that tells whether it stored the text."""

    has_stored = False

    async def _failure(self, path: str, text: str, reader: BackendProtocol) -> str | None:
        failed = await super()._failure(path, text, reader)
        self.has_stored = failed is None
        return failed


def _is_long(message: AnyMessage) -> bool:
    is_text = isinstance(message, (ToolMessage, HumanMessage))
    return is_text and len(message.text) > _CLIPPED_TOKENS * CHARS_PER_TOKEN


# --- the size of requests --------------------------------------------------------------------------------------------

_BAD_REQUESTS: Final = frozenset({400, 413, 422})
_OVERFLOWS: Final = (
    "available context size",
    "context limit exceeded",
    "context window exceeded",
    "context_length_exceeded",
    "contextwindowexceedederror",
    "exceed context limit",
    "exceeds the context window",
    "exceeds the maximum number of tokens allowed",
    "input is too long for requested model",
    "input tokens exceed the configured limit",
    "maximum context length",
    "prompt is too long",
)
"""What providers say of a request that is too long, in lower case."""


def is_context_overflow(error: BaseException) -> bool:
    """Whether a model refused a request because it is longer than its context.

    Args:
        error: The error of LangChain, or of the client of a provider.
    """
    if isinstance(error, ContextOverflowError):
        return True
    if _BAD_REQUESTS.isdisjoint(code for code in _status_codes(error) if isinstance(code, int)):
        return False
    said = str(error).lower()
    return any(words in said for words in _OVERFLOWS)


def _status_codes(error: BaseException) -> Iterator[object]:
    """The HTTP status, where the clients of the providers have it."""
    yield getattr(error, "status_code", None)
    yield getattr(error, "code", None)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # That of botocore.
        yield response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        yield getattr(response, "status_code", None)


def takes_tools(counter: Callable[..., int]) -> bool:
    """Whether a counter of tokens has an argument `tools`.

    Args:
        counter: The counter.
    """
    try:
        parameters = inspect.signature(counter).parameters.values()
    except (TypeError, ValueError):
        return False
    named = (each for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY)
    return any(each.kind is inspect.Parameter.VAR_KEYWORD or each.name == "tools" for each in named)


_HEADROOM: Final = 0.95
_OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def input_budget(request: ModelRequest[Any]) -> float:
    """The most tokens of a request, beside what the model may answer; infinity if the model does not report them."""
    limit = _context_tokens(request.model)
    if limit is None:
        return float("inf")
    return limit * _HEADROOM - _most_output(request)


def _most_output(request: ModelRequest[Any]) -> int:
    """The most tokens that the model may answer; 0 if neither the request nor the model limits them."""
    limits = {name: getattr(request.model, name, None) for name in _OUTPUT_LIMITS}
    limits |= {name: value for name, value in request.model_settings.items() if name in limits}
    return max((value for value in limits.values() if isinstance(value, int)), default=0)


def _context_tokens(model: object) -> int | None:
    """The tokens of a model's context; None if it does not report them."""
    limit = (getattr(model, "profile", None) or {}).get("max_input_tokens")
    return limit if isinstance(limit, int) else None
