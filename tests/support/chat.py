"""A chat model that plays a script and records its requests."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

__all__ = ["ScriptedModel", "Turn", "call", "calls"]

Turn = AIMessage | Callable[[list[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """Answers each request with the next turn of its script: a message, or a function of the request's messages."""

    script: list[Any]
    _taken: Any = PrivateAttr(default_factory=count)
    _asked: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _tools: list[str] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[list[BaseMessage]]:
        """The messages of each request."""
        return self._asked

    @property
    def offered(self) -> list[str]:
        """The names of the tools that the last request offered."""
        return self._tools

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "ScriptedModel":
        self._tools[:] = [tool.name for tool in tools]
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self._asked.append(list(messages))
        turn = self.script[next(self._taken)]
        answer = turn(messages) if callable(turn) else turn
        return ChatResult(generations=[ChatGeneration(message=answer)])


_ids = count()


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call with a new id."""
    return {"type": "tool_call", "id": f"call-{next(_ids)}", "name": name, "args": arguments}


def calls(*made: dict[str, Any]) -> AIMessage:
    """A turn that makes these tool calls in parallel."""
    return AIMessage("", tool_calls=list(made))
