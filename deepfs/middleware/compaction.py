"""The messages of a conversation as a model sees them: a summary in the place of the older ones."""

import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import filterfalse
from typing import Annotated, Any, Final, NamedTuple, NotRequired, TypeAlias, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.types import Command
from typing_extensions import TypedDict

from deepfs._langgraph.channel import FilesystemState
from deepfs.middleware._base import AgentState, ExtendedModelResponse, PrivateStateAttr

__all__ = [
    "SUMMARIZATION_EVENT_KEY",
    "SUMMARIZATION_SESSION_ID_KEY",
    "Conversation",
    "Step",
    "Steps",
    "SummarizationEvent",
    "SummarizationState",
    "arun_steps",
    "as_seen",
    "run_steps",
    "summarized_count",
]

T = TypeVar("T")

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
    """The number of first messages of the state that a summary stands for; None if it does not apply to them.

    Args:
        messages: The messages of the state.
        event: The value of the state at SUMMARIZATION_EVENT_KEY, of this library or of deepagents.
    """
    if not isinstance(event, Mapping) or not isinstance(event.get("summary_message"), BaseMessage):
        return None
    index = event.get("cutoff_index")
    if not isinstance(index, int) or index < 0:
        return None
    if not event.get("last_id"):
        return index if index <= len(messages) else None
    if 0 < index <= len(messages) and messages[index - 1].id == event["last_id"]:
        return index
    return _moved(messages, event)


def _moved(messages: Sequence[AnyMessage], event: Mapping[str, Any]) -> int | None:
    """The cutoff in a conversation from which messages were removed, or to which some were added."""
    places = {message.id: place for place, message in enumerate(messages)}
    if event["last_id"] in places:
        return places[event["last_id"]] + 1
    return places.get(event.get("kept_id") or "")


def as_seen(shown: Sequence[AnyMessage], messages: Sequence[AnyMessage], event: Any) -> list[AnyMessage]:
    """Put the summary in the place of the messages that it stands for.

    Args:
        shown: The messages of a request, which other middleware may have changed.
        messages: The messages of the state.
        event: The value of the state at SUMMARIZATION_EVENT_KEY.
    """
    count = summarized_count(messages, event)
    if count is None:
        return list(shown)
    made = event.get("created_at_index")
    older = made - event["cutoff_index"] if isinstance(made, int) else 0
    known = {message.id for message in messages[count : count + older] if message.id}
    rest = shown[_start(shown, messages, count) :]
    return [event["summary_message"], *(_from_before(each) if each.id in known else each for each in rest)]


def _start(shown: Sequence[AnyMessage], messages: Sequence[AnyMessage], count: int) -> int:
    """The place in `shown` of the first message that the summary does not stand for."""
    kept = {message.id for message in messages[count:]}
    removed = {message.id for message in messages[:count]}
    first = next((place for place, message in enumerate(shown) if message.id and message.id in kept), None)
    if first is not None:
        return first
    return max((place + 1 for place, message in enumerate(shown) if message.id in removed), default=0)


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
class Conversation:
    """The messages of the state, as the model sees them, and the update of the state that results from a call."""

    messages: Sequence[AnyMessage]
    event: Any
    name: str | None
    seen: list[AnyMessage]
    update: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None
    """Why a summary could not be made."""

    @classmethod
    def of(cls, state: Mapping[str, Any], shown: Sequence[AnyMessage]) -> "Conversation":
        """The conversation of a state.

        Args:
            state: The state of the agent.
            shown: Its messages as a request shows them.
        """
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
        """The place in `messages` of the first message at or after a place in `seen`.

        Args:
            cut: The place in `seen`.
        """
        places = {message.id: place for place, message in enumerate(self.messages) if message.id}
        later = (places[message.id] for message in self.seen[cut:] if message.id in places)
        return next(later, len(self.messages))

    def before(self, cut: int) -> list[AnyMessage]:
        """The messages to summarise. Those with media are as the state has them, since files are named by these.

        Args:
            cut: Where they end in `seen`.
        """
        own = {message.id: message for message in self.messages if _may_have_media(message)}
        return [own.get(message.id, message) for message in self.seen[:cut]]

    def unfiled(self, place: int) -> Sequence[AnyMessage]:
        """The messages that no summary has stored yet.

        Args:
            place: Where they end in `messages`.
        """
        is_filed = bool(self.files and self.event.get("file_path"))
        return self.messages[self.summarized if is_filed else 0 : place]

    def summarize(self, cut: int, summary: str, stored: Sequence[str]) -> None:
        """Put a summary in the place of messages.

        Args:
            cut: Where they end in `seen`.
            summary: The text.
            stored: The files that hold them; none if they are in the state only.
        """
        place, files = self.place(cut), list(dict.fromkeys([*self.files, *stored]))
        message = _summary_message(summary, files, is_whole=bool(stored))
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
        """Show other messages in the place of those with the same ids.

        Args:
            clipped: The other messages by id.
            stored: Those that also replace the messages of the state.
        """
        self.seen = [clipped.get(message.id or "", message) for message in self.seen]
        if stored:
            self.update["messages"] = [*stored]

    def answered(self, response: Any) -> Any:
        """The response of the model with the update of the state.

        Args:
            response: The response.
        """
        return ExtendedModelResponse(response, Command(update=self.update)) if self.update else response


def _may_have_media(message: AnyMessage) -> bool:
    return message.id is not None and isinstance(message.content, list) and not getattr(message, "tool_calls", None)


def _summary_message(summary: str, files: Sequence[str], *, is_whole: bool) -> HumanMessage:
    what = "The messages themselves are" if is_whole else "The oldest of the messages are"
    where = f"\n\n[{what} in {' and '.join(files)}: page with read_file, or search with grep.]" if files else ""
    text = f"Summary of the conversation so far:\n\n{summary}{where}"
    return HumanMessage(text, additional_kwargs={"lc_source": "summarization"})


# --- steps -----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A call that may wait, in its sync form and its async one."""

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Step, Any, T]
"""Code for both forms of an agent: it yields each step, and gets its result or its error."""


def run_steps(steps: Steps[T]) -> T:
    """Run the code with the sync form of each step, and return its result."""
    advance: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            step = advance()
            try:
                advance = partial(steps.send, step.call())
            except Exception as error:
                advance = partial(steps.throw, error)
    except StopIteration as ended:
        result: T = ended.value
        return result


async def arun_steps(steps: Steps[T]) -> T:
    """As `run_steps`, with the async form of each step."""
    advance: Callable[[], Step] = partial(next, steps)
    try:
        while True:
            step = advance()
            try:
                advance = partial(steps.send, await step.acall())
            except Exception as error:
                advance = partial(steps.throw, error)
    except StopIteration as ended:
        result: T = ended.value
        return result
