"""A chat model that plays a script, to try and test agents without a key.

model = ScriptedModel(script=[Turn("I look.", [Call("ls", {"path": "/"})]), "There is one file."])

The same script as a file of TOML, for `ScriptedModel.from_file`:

[[turn]]
text = "I look."
calls = [{ name = "ls", args = { path = "/" } }]

[[turn]]
text = "There is one file."
"""

import re
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeAlias
from uuid import uuid4

import anyio
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from msgspec import Struct, ValidationError, convert, field, json
from pydantic import Field, PrivateAttr

__all__ = ["Answer", "Call", "ScriptEndedError", "ScriptedModel", "Turn"]


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool.

    Attributes:
        name: The name of the tool.
        args: Its arguments by name.
    """

    name: str
    args: dict[str, Any] = field(default_factory=dict)


class Turn(Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of the model.

    Attributes:
        text: What the model says.
        calls: The tools that it calls, at the same time.
        when: The turn answers only requests whose last message of a person contains this; None for any request. It
            tells agents apart that share the model: a subagent's task is such a message.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    when: str | None = None


Answer: TypeAlias = Turn | str | Callable[[list[BaseMessage]], Turn | str]
"""A turn, its text alone, or a function that returns one of these for the messages of the request."""


class ScriptEndedError(RuntimeError):
    """The model was asked when no turn of its script was left for the request."""


class _Script(Struct, forbid_unknown_fields=True):
    turn: list[Turn]


class ScriptedModel(BaseChatModel):
    """Answers each request with the first turn of its script that fits and was not used yet.

    It streams its text word by word. Copies and bound models share one script; threads may use it at the same time.
    """

    script: Sequence[Any] = Field(repr=False)
    """The turns, each an `Answer`."""
    delay: float = 0.0
    """Seconds between the pieces of a streamed answer."""
    _left: list[Answer] = PrivateAttr()
    _requests: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=Lock)

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, delay: float = 0.0) -> Self:
        """Load a script from a file, as the module's documentation shows one.

        This reads from the disk: on an event loop, call it in a thread.

        Args:
            path: A file of TOML with a table `[[turn]]` for each turn; its keys are the attributes of `Turn`.
            delay: Seconds between the pieces of a streamed answer.

        Returns:
            The model.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is not such a script; the error says where and why.
        """
        try:
            script = convert(tomllib.loads(Path(path).read_text("utf-8")), _Script)
        except (ValidationError, ValueError) as error:
            raise ValueError(f"{path} is not a script for a model: {error}") from error
        return cls(script=script.turn, delay=delay)

    def model_post_init(self, context: Any, /) -> None:
        """Start at the beginning of the script."""
        super().model_post_init(context)
        self._left = list(self.script)

    @property
    def requests(self) -> list[list[BaseMessage]]:
        """The messages of each request so far."""
        return self._requests

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return this model: the script says which tools are called."""
        return self

    def _next_turn(self, messages: list[BaseMessage]) -> Turn:
        with self._lock:
            self._requests.append(list(messages))
            index = next((index for index, each in enumerate(self._left) if _fits(each, messages)), None)
            if index is None:
                raise ScriptEndedError(_end_text(len(self._requests), self._left, messages))
            answer = self._left.pop(index)
        chosen = answer(messages) if callable(answer) else answer
        return Turn(chosen) if isinstance(chosen, str) else chosen

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = self._next_turn(messages)
        calls = [tool_call(name=call.name, args=call.args, id=_call_id()) for call in turn.calls]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(turn.text, tool_calls=calls))])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(self._next_turn(messages)):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            if self.delay:
                time.sleep(self.delay)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(self._next_turn(messages)):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            await anyio.sleep(self.delay)


def _call_id() -> str:
    """Unique among processes too, since a thread of a checkpointer may go on in another one."""
    return f"call_{uuid4().hex}"


def _fits(answer: Answer, messages: list[BaseMessage]) -> bool:
    if not isinstance(answer, Turn) or answer.when is None:
        return True
    said = next((message.text for message in reversed(messages) if isinstance(message, HumanMessage)), "")
    return answer.when in said


def _end_text(number: int, left: Sequence[Answer], messages: list[BaseMessage]) -> str:
    """The text of the error for a request, counted from 1, that no turn answers."""
    shown = f"{messages[-1].type}: {messages[-1].text[:200]!r}" if messages else "none"
    unused = f"; {len(left)} turns for other requests are left" if left else ""
    return f"the script has no turn for request {number} to the model{unused}. The last message is of {shown}"


def _chunks(turn: Turn) -> Iterator[ChatGenerationChunk]:
    """Each word with the space before it, then each call, then the end."""
    message_id = f"run-{uuid4()}"
    for word in re.findall(r"\s*\S+|\s+", turn.text):
        yield ChatGenerationChunk(message=AIMessageChunk(content=word, id=message_id))
    for index, call in enumerate(turn.calls):
        chunk = tool_call_chunk(name=call.name, args=json.encode(call.args).decode(), id=_call_id(), index=index)
        yield ChatGenerationChunk(message=AIMessageChunk(content="", id=message_id, tool_call_chunks=[chunk]))
    yield ChatGenerationChunk(message=AIMessageChunk(content="", id=message_id, chunk_position="last"))
