"""A chat model that returns prepared messages."""

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

__all__ = ["ScriptedModel", "calls"]


class ScriptedModel(GenericFakeChatModel):
    """Returns its messages one after another, whatever it is asked."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "ScriptedModel":
        return self


def calls(*steps: tuple[str, dict[str, Any]], last: str = "done") -> Iterable[AIMessage]:
    """A message that calls a tool for each step, and a last one."""
    for number, (tool, arguments) in enumerate(steps):
        yield AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{number}"}])
    yield AIMessage(last)
