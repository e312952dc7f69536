"""A conversation as a model sees it: a summary in the place of older messages, and what is too long for a model."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import filterfalse
from json import dumps
from typing import Annotated, Any, Final, NotRequired

from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.types import Command
from typing_extensions import TypedDict

from deepfs._langgraph.channel import FilesystemState
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware._base import (
    AgentState,
    ContextSize,
    ExtendedModelResponse,
    ModelRequest,
    PrivateStateAttr,
    artifacts_root,
)
from deepfs.middleware.offloading import CHARS_PER_TOKEN, Evictor
from deepfs.text import paths

SUMMARIZATION_EVENT_KEY: Final = "_summarization_event"
"""The key of the state that holds the last SummarizationEvent."""
SUMMARIZATION_SESSION_ID_KEY: Final = "_summarization_session_id"
"""The key of the state that holds the name of the history file, without `.md`."""


class SummarizationEvent(TypedDict):
    """A summary, and which messages it stands for. The messages themselves stay in the state."""

    cutoff_index: int
    """The number of messages, from the first one, that the summary stands for."""
    summary_message: HumanMessage
    file_path: str | None
    """The last file that holds these messages; None if they could not be stored."""
    created_at_index: NotRequired[int]
    """The number of messages in the state when the summary was made."""
    last_id: NotRequired[str | None]
    """The id of the last message that the summary stands for. By it, the cutoff is found in an edited conversation."""
    kept_id: NotRequired[str | None]
    """The id of the first message after the cutoff."""
    file_paths: NotRequired[list[str]]
    """All files that hold messages of the conversation."""


def _latest(before: Any, after: Any) -> Any:
    """Reduce to the last value, since two calls of a tool in one step may both set it."""
    return after


class SummarizationState(AgentState[Any], FilesystemState):
    """The state of agents whose conversation is summarised."""

    _summarization_event: Annotated[NotRequired[SummarizationEvent | None], PrivateStateAttr, _latest]
    _summarization_session_id: Annotated[NotRequired[str | None], PrivateStateAttr, _latest]


# --- the summary in the place of messages ----------------------------------------------------------------------------


def summarized_count(messages: Sequence[AnyMessage], event: object) -> int | None:
    """The number of first messages of the state that a summary stands for; None if it does not apply to them."""
    if not isinstance(event, Mapping) or not isinstance(event.get("summary_message"), BaseMessage):
        return None
    index = event.get("cutoff_index")
    if not isinstance(index, int) or index < 0:
        return None
    if not event.get("last_id"):
        return index if index <= len(messages) else None
    if 0 < index <= len(messages) and messages[index - 1].id == event["last_id"]:
        return index
    # Messages were removed or added.
    places = {message.id: place for place, message in enumerate(messages)}
    if event["last_id"] in places:
        return places[event["last_id"]] + 1
    return places.get(event.get("kept_id") or "")


def as_seen(shown: Sequence[AnyMessage], messages: Sequence[AnyMessage], event: Any) -> list[AnyMessage]:
    """Put the summary in the place of the messages that it stands for."""
    count = summarized_count(messages, event)
    if count is None:
        return list(shown)
    made = event.get("created_at_index")
    older = made - event["cutoff_index"] if isinstance(made, int) else 0
    known = {message.id for message in messages[count : count + older] if message.id}
    kept = {message.id for message in messages[count:]}
    removed = {message.id for message in messages[:count]}
    start = next((place for place, message in enumerate(shown) if message.id and message.id in kept), None)
    if start is None:
        start = max((place + 1 for place, message in enumerate(shown) if message.id in removed), default=0)
    rest = shown[start:]
    return [event["summary_message"], *(_from_before(each) if each.id in known else each for each in rest)]


_THOUGHTS: Final = frozenset({"redacted_thinking", "reasoning_content", "thinking"})
"""The types of blocks with reasoning in the APIs that serve Claude."""


def _from_before(message: AnyMessage) -> AnyMessage:
    """A message from before a summary, without what held for the whole conversation before it.

    Claude may refuse its own reasoning after another conversation, and the number of tokens would trigger the next
    summary at once.
    """
    if not isinstance(message, AIMessage):
        return message
    content: Any = message.content
    if isinstance(content, list):
        dropped = _dropped_types(message.response_metadata)
        content = [*filterfalse(lambda block: isinstance(block, dict) and block.get("type") in dropped, content)]
        content = content or ("" if message.tool_calls else "[No answer]")  # Providers refuse an empty answer.
    return message.model_copy(update={"content": content, "usage_metadata": None})


def _dropped_types(origin: Mapping[str, Any]) -> frozenset[str]:
    """The types of blocks that only hold for the conversation before them, by what the message says of its model."""
    match origin:
        case {"model_provider": "anthropic"}:
            return _THOUGHTS | {"reasoning"}
        case {"model_provider": "bedrock" | "bedrock_converse", "model_name": str(name)} if _CLAUDE.search(name):
            return _THOUGHTS | {"reasoning"}
        case {"model_provider": str()}:
            return frozenset()
    return _THOUGHTS  # Of an unknown model. Others than Claude have no such blocks in general.


_CLAUDE: Final = re.compile("anthropic|claude", re.IGNORECASE)


# --- a conversation --------------------------------------------------------------------------------------------------


@dataclass
class ConversationView:
    """The messages of the state, as the model sees them, and the update of the state that results from a call."""

    messages: Sequence[AnyMessage]
    event: Any
    name: str | None
    seen: list[AnyMessage]
    update: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None
    """Why a summary could not be made."""

    @classmethod
    def of(cls, state: Mapping[str, Any], shown: Sequence[AnyMessage]) -> "ConversationView":
        """The conversation of a state."""
        messages = state.get("messages", shown)
        event = state.get(SUMMARIZATION_EVENT_KEY)
        return cls(messages, event, state.get(SUMMARIZATION_SESSION_ID_KEY), as_seen(shown, messages, event))

    @property
    def summarized(self) -> int:
        """The number of messages that the present summary stands for."""
        return summarized_count(self.messages, self.event) or 0

    @property
    def files(self) -> list[str]:
        """The files that hold messages of this conversation."""
        if summarized_count(self.messages, self.event) is None:
            return []
        return list(self.event.get("file_paths") or filter(None, [self.event.get("file_path")]))

    def place(self, cut: int) -> int:
        """The place in `messages` of the first message at or after a place in `seen`."""
        places = {message.id: place for place, message in enumerate(self.messages) if message.id}
        later = (places[message.id] for message in self.seen[cut:] if message.id in places)
        return next(later, len(self.messages))

    def before(self, cut: int) -> list[AnyMessage]:
        """The messages to summarise. Those with media are as the state has them, since files are named by these."""
        own: dict[str | None, AnyMessage] = {
            each.id: each
            for each in self.messages
            if each.id is not None and isinstance(each.content, list) and not getattr(each, "tool_calls", None)
        }
        return [own.get(message.id, message) for message in self.seen[:cut]]

    def messages_to_file(self, place: int) -> Sequence[AnyMessage]:
        """The messages that no summary has stored yet."""
        is_filed = bool(self.files and self.event.get("file_path"))
        return self.messages[self.summarized if is_filed else 0 : place]

    def summarize(self, cut: int, summary: str, stored: Sequence[str]) -> None:
        """Put a summary in the place of messages."""
        place, files = self.place(cut), list(dict.fromkeys([*self.files, *stored]))
        what = "The messages themselves are" if stored else "The oldest of the messages are"
        where = f"\n\n[{what} in {' and '.join(files)}: page with read_file, or search with grep.]" if files else ""
        text = f"Summary of the conversation so far:\n\n{summary}{where}"
        message = HumanMessage(text, additional_kwargs={"lc_source": "summarization"})
        self.update[SUMMARIZATION_EVENT_KEY] = SummarizationEvent(
            cutoff_index=place,
            summary_message=message,
            file_path=stored[-1] if stored else None,
            created_at_index=len(self.messages),
            last_id=self.messages[place - 1].id,
            kept_id=self.messages[place].id if place < len(self.messages) else None,
            file_paths=files,
        )
        self.seen = [message, *map(_from_before, self.seen[cut:])]

    def replace(self, clipped: Mapping[str, AnyMessage], stored: Sequence[AnyMessage]) -> None:
        """Show other messages in the place of those with the same ids."""
        self.seen = [clipped.get(message.id or "", message) for message in self.seen]
        if stored:
            self.update["messages"] = [*stored]

    def with_update(self, response: Any) -> Any:
        """The response of the model with the update of the state."""
        return ExtendedModelResponse(response, Command(update=self.update)) if self.update else response


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
    """Shortens long arguments of the old tool calls that write files."""

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

    def apply(self, messages: Sequence[AnyMessage], tokens: int) -> list[AnyMessage]:
        """Shorten the arguments where the conversation is large enough."""
        if not self._is_reached(len(messages), tokens):
            return list(messages)
        first_kept = self._first_kept(messages)
        if first_kept >= _STEP:  # So it stays the same for several turns: each change costs a cached prompt.
            first_kept -= first_kept % _STEP
        return [*map(self._shorten, messages[:first_kept]), *messages[first_kept:]]

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

    def _shorten(self, message: AnyMessage) -> AnyMessage:
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return message
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            arguments = dict(call["args"]) if call["name"] in _WRITING else {}
            for name, value in arguments.items():
                if isinstance(value, str) and len(value) > self._max_length:
                    arguments[name] = f"{value[:_SHOWN_CHARS]}{self._ending}"
            calls.append({**call, "args": arguments} if arguments else call)
        if calls == message.tool_calls:
            return message
        content: Any = message.content
        if isinstance(content, list):
            given = {call["id"]: call["args"] for call in calls}
            content = [_with_arguments(block, given) for block in content]
        return message.model_copy(update={"tool_calls": calls, "content": content})


def _with_arguments(block: Any, arguments: Mapping[str | None, Any]) -> Any:
    """A block, with other arguments if it is one in which some providers repeat a call."""
    identity = (block.get("call_id") or block.get("id")) if isinstance(block, dict) else None
    if identity is None or identity not in arguments:
        return block
    found = {key: arguments[identity] for key in _ARGUMENT_KEYS if isinstance(block.get(key), dict)}
    if isinstance(block.get("arguments"), str):
        found["arguments"] = dumps(arguments[identity], ensure_ascii=False)
    return {**block, **found}


# --- long texts ------------------------------------------------------------------------------------------------------

_CLIPPED_TOKENS: Final = 1_000


async def move_long_texts(
    backend: BackendProtocol, shown: Sequence[AnyMessage], messages: Sequence[AnyMessage]
) -> tuple[dict[str, AnyMessage], list[AnyMessage]]:
    """Store the long texts of tools and people, where a conversation is too long even with a summary.

    Args:
        backend: The backend of the files.
        shown: The messages of a request.
        messages: The messages of the state.

    Returns:
        The messages of the request that have head and tail in the place of their text, by id, and those of the state
        whose texts were stored.
    """
    own: dict[str | None, AnyMessage] = {message.id: message for message in messages if message.id}
    clipped: dict[str, AnyMessage] = {}
    stored: list[AnyMessage] = []
    for message in shown:
        is_text = isinstance(message, (ToolMessage, HumanMessage))
        if message.id in own and is_text and len(message.text) > _CLIPPED_TOKENS * CHARS_PER_TOKEN:
            clipped[message.id or ""], _ = await _clip(backend, message)
            # The message of the state may have media that the request lacks.
            replacement, is_stored = await _clip(backend, own[message.id])
            stored += [replacement] if is_stored else []
    return clipped, stored


async def _clip(backend: BackendProtocol, message: AnyMessage) -> tuple[AnyMessage, bool]:
    is_result = isinstance(message, ToolMessage)
    directory = paths.join(artifacts_root(backend), "large_tool_results" if is_result else "large_messages")
    clipper = _Clipper(backend, _CLIPPED_TOKENS, directory)
    key = message.tool_call_id if isinstance(message, ToolMessage) else message.id or ""
    return await clipper.evict(message, key), clipper.has_stored


class _Clipper(Evictor):
    """An evictor that tells whether it stored the text."""

    has_stored = False

    async def _failure(self, path: str, text: str, reader: BackendProtocol) -> str | None:
        failed = await super()._failure(path, text, reader)
        self.has_stored = failed is None
        return failed


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
    """Whether a model refused a request because it is longer than its context."""
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
    """Whether a counter of tokens has an argument `tools`."""
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
    limits = {name: getattr(request.model, name, None) for name in _OUTPUT_LIMITS}
    limits |= {name: value for name, value in request.model_settings.items() if name in limits}
    most_output = max((value for value in limits.values() if isinstance(value, int)), default=0)
    return limit * _HEADROOM - most_output


def _context_tokens(model: object) -> int | None:
    """The tokens of a model's context; None if it does not report them."""
    limit = (getattr(model, "profile", None) or {}).get("max_input_tokens")
    return limit if isinstance(limit, int) else None
