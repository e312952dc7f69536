"""The turns of an agent: what happens in one, as events, and what it asks a person.

The events are the lines of `deepfs agent --json`; their names and fields are documented in docs/agent-command.md.
"""

from collections import Counter
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt
from msgspec import Struct, field

Decision = Mapping[str, Any]
"""The answer to one question, as LangChain's middleware takes it."""

APPROVE: Final[Decision] = {"type": "approve"}


class Event(Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=False):
    """Something that happens; `event` names its kind."""


class Started(Event, frozen=True, kw_only=True, tag="start"):
    """The program has opened a thread."""

    thread: str
    model: str
    tree: str


class Text(Event, frozen=True, kw_only=True, tag="text"):
    """A part of a message, as the model makes it."""

    agent: str | None
    """The name of a subagent; None for the agent itself."""
    text: str


class Message(Event, frozen=True, kw_only=True, tag="message"):
    """An agent has said this, and ends a message."""

    agent: str | None
    text: str


class ToolCall(Event, frozen=True, kw_only=True, tag="tool_call"):
    """An agent wants to call a tool."""

    agent: str | None
    id: str
    name: str
    args: Mapping[str, Any]


class ToolResult(Event, frozen=True, kw_only=True, tag="tool_result"):
    """A call has ended."""

    agent: str | None
    id: str
    name: str
    ok: bool
    text: str


class Answer(Event, frozen=True, kw_only=True, tag="approval"):
    """A question was answered."""

    agent: str | None
    name: str
    args: Mapping[str, Any]
    preview: str
    """What the call would change, mostly as a diff; empty if nothing could be shown."""
    decision: str
    """`approve`, `edit`, `reject` or `respond`."""
    message: str | None = None


class Note(Event, frozen=True, kw_only=True, tag="note"):
    """Something that a person should know about the thread."""

    text: str


class Ended(Event, frozen=True, kw_only=True, tag="end"):
    """The task has ended."""

    status: str
    """`done`, `refused` (a call was not approved), `failed` or `interrupted`."""
    thread: str
    answer: str = ""
    """The last message of the agent."""
    error: str | None = None


class Question(Struct, frozen=True):
    """A call that waits for the answer of a person."""

    agent: str | None
    name: str
    args: Mapping[str, Any]
    preview: str
    allowed: Sequence[str]

    def to_answer(self, decision: Decision) -> Answer:
        """The event of an answer."""
        edited = decision.get("edited_action", {})
        return Answer(
            agent=self.agent,
            name=edited.get("name", self.name),
            args=edited.get("args", self.args),
            preview=self.preview,
            decision=decision["type"],
            message=decision.get("message"),
        )


class Stopped(Struct, frozen=True):
    """Where a turn stopped before its end.

    Attributes:
        questions: By the id of the interrupt, the calls that wait for an answer.
        calls: The calls that have no result yet.
        foreign: The ids of interrupts that are no questions about calls of tools.
    """

    questions: Mapping[str, Sequence[Question]] = field(default_factory=dict)
    calls: Sequence[ToolCall] = ()
    foreign: Sequence[str] = ()


def refusal(question: Question, reason: str) -> Decision:
    """The answer that runs nothing."""
    return {"type": "reject" if "reject" in question.allowed else "respond", "message": reason}


class Conversation:
    """A thread of an agent, `graph`, turn by turn."""

    def __init__(self, graph: Any, thread: str) -> None:
        self._graph = graph
        self._config: Any = {"configurable": {"thread_id": thread}}
        self.answer: str = ""
        self.pending: Stopped | None = None
        self._agents = _Agents()
        self._calls: dict[tuple[str | None, str], str] = {}
        """The names of the calls that have no result yet."""
        self._reported: set[tuple[str | None, str]] = set()
        """The calls whose results were reported."""

    # --- turns ---

    def task(self, text: str) -> AsyncIterator[Event]:
        """Give the agent a task."""
        self._agents = _Agents()
        return self._run({"messages": [HumanMessage(text)]})

    def go_on(self, stopped: Stopped, answers: Mapping[str, Sequence[Decision]]) -> AsyncIterator[Event]:
        """Go on with a turn that stopped. A call that was cut off runs again."""
        given: Any = (
            Command(resume={name: {"decisions": [*each]} for name, each in answers.items()}) if answers else None
        )
        return self._run(given, stopped.calls)

    async def _run(self, given: Any, calls: Sequence[ToolCall] = ()) -> AsyncIterator[Event]:
        """Run until the agent is done or asks; `pending` then has the questions."""
        self.pending, self.answer = None, ""
        for call in self._unknown(calls):
            yield call
        # Each step is stored before the next one begins, so that a process that is killed loses one step at most.
        stream = self._graph.astream(
            given, self._config, stream_mode=["messages", "updates"], subgraphs=True, durability="sync"
        )
        async for namespace, mode, happened in stream:
            for event in self._events(namespace, mode, happened):
                yield event
        self.pending = await self.find_stop()

    async def find_stop(self) -> Stopped | None:
        """Where the last turn of the thread stopped; None if it came to its end, or there is none."""
        state = await self._graph.aget_state(self._config)
        if not state.next:
            return None
        asked = {each.id: each for each in state.interrupts}
        questions = {name: _questions(each, self._agents.asking.get(name)) for name, each in asked.items()}
        messages = state.values.get("messages", [])
        last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
        return Stopped(
            {name: each for name, each in questions.items() if each},
            _calls_of(None, last, {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}),
            [name for name, each in questions.items() if not each],
        )

    async def recent(self) -> tuple[int, str]:
        """How many messages the thread has, and the last task."""
        state = await self._graph.aget_state(self._config)
        messages = state.values.get("messages", [])
        tasks = [each.text for each in messages if isinstance(each, HumanMessage)]
        return len(messages), tasks[-1] if tasks else ""

    # --- events ---

    def _events(self, namespace: Any, mode: Any, happened: Any) -> Iterator[Event]:
        if mode == "messages":
            message, about = happened
            agent = self._agents.name_agent(namespace, about.get("lc_agent_name"))
            if about.get("langgraph_node") == "model" and isinstance(message, AIMessage) and message.text:
                yield Text(agent=agent, text=message.text)
            return
        for node, update in happened.items():
            if node == "__interrupt__":
                self._agents.record_interrupts(self._agents.name_agent(namespace, None), update)
            for message in _messages_of(update):
                agent = self._agents.name_agent(namespace, message.name if isinstance(message, AIMessage) else None)
                if isinstance(message, AIMessage):
                    yield from self._message_events(agent, message, is_new=node == "model")
                elif isinstance(message, ToolMessage) and (node == "tools" or node.endswith(".after_model")):
                    yield from self._result_events(agent, message)

    def _message_events(self, agent: str | None, message: AIMessage, *, is_new: bool) -> Iterator[Event]:
        """What a message says, if it is new, and the calls of it that are unknown: another process may have made it."""
        if is_new and agent is None:
            self.answer = message.text
        if is_new and message.text:
            yield Message(agent=agent, text=message.text)
        yield from self._unknown(_calls_of(agent, message), is_new=is_new)

    def _unknown(self, calls: Sequence[ToolCall], *, is_new: bool = False) -> Iterator[ToolCall]:
        for call in calls:
            key = call.agent, call.id
            if is_new or (key not in self._calls and key not in self._reported):
                self._calls[key] = call.name
                yield call

    def _result_events(self, agent: str | None, message: ToolMessage) -> Iterator[Event]:
        # A turn that goes on repeats the results that it had.
        key = agent, message.tool_call_id
        if key in self._calls or key not in self._reported:
            self._reported.add(key)
            name = self._calls.pop(key, message.name or "")
            text = message.text or ", ".join(f"[{block['type']}]" for block in message.content_blocks)
            yield ToolResult(agent=agent, id=message.tool_call_id, name=name, ok=message.status != "error", text=text)


class _Agents:
    """The subagents of a run by what LangGraph calls them."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        self._times: Counter[str] = Counter()
        self.asking: dict[str, str] = {}
        """By the id of an interrupt, the subagent that asks."""

    def name_agent(self, namespace: tuple[str, ...], name: str | None) -> str | None:
        """A name for the agent of a namespace. Of several subagents with one name, the later ones have a number."""
        if not namespace:
            return None
        if namespace not in self._names and name is not None:
            self._times[name] += 1
            self._names[namespace] = f"{name} {self._times[name]}" if self._times[name] > 1 else name
        return self._names.get(namespace, "subagent")

    def record_interrupts(self, agent: str | None, interrupts: Sequence[Interrupt]) -> None:
        for each in interrupts:
            if agent is not None:
                self.asking.setdefault(each.id, agent)


def _messages_of(update: Any) -> Sequence[Any]:
    given = update.get("messages") if isinstance(update, Mapping) else None
    given = getattr(given, "value", given)  # An Overwrite.
    return given if isinstance(given, list) else [] if given is None else [given]


def _calls_of(agent: str | None, message: AIMessage | None, ended: Container[str | None] = ()) -> list[ToolCall]:
    """The calls of a message, without those that have ended."""
    return [
        ToolCall(agent=agent, id=call["id"] or "", name=call["name"], args=call["args"])
        for call in (message.tool_calls if message else ())
        if call["id"] not in ended
    ]


def _questions(interrupt: Interrupt, agent: str | None) -> list[Question]:
    """The questions of an interrupt; none if it is one of another form."""
    value = interrupt.value
    requests = value.get("action_requests") if isinstance(value, Mapping) else None
    if not requests:
        return []
    allowed = {each["action_name"]: each["allowed_decisions"] for each in value.get("review_configs", ())}
    return [
        Question(agent, each["name"], each["args"], _preview(each), allowed.get(each["name"], ("approve", "reject")))
        for each in requests
    ]


def _preview(request: Mapping[str, Any]) -> str:
    """What a call would change: the description without the call itself, which is shown in another form."""
    text: str = request.get("description") or ""
    call = f"Tool: {request['name']}\nArgs: {request['args']}"
    _, found, after = text.partition(call)
    return after.strip("\n") if found else text
