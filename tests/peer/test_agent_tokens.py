"""Tokens of an agent's first request, counted by one tokenizer for both libraries."""

from collections.abc import Callable
from typing import Any

from deepagents import create_deep_agent as create_peer_agent
from langchain_core.messages import AIMessage
from langchain_core.messages.utils import count_tokens_approximately
from pydantic import PrivateAttr

from deepfs import create_deep_agent
from support.chat import ScriptedModel


class CountingModel(ScriptedModel):
    """Records the tools that it is offered."""

    _bound: Any = PrivateAttr(default_factory=list)

    def bind_tools(self, tools: Any, **options: Any) -> "CountingModel":
        self._bound[:] = tools
        return self

    @property
    def tokens(self) -> int:
        return count_tokens_approximately([each for each in self.asked[0] if each.type == "system"], tools=self._bound)


def tokens(create: Callable[..., Any]) -> int:
    model = CountingModel(script=[AIMessage("Hello.")])
    create(model).invoke({"messages": [("user", "Hello")]})
    return model.tokens


def test_prompts_and_schemas_take_at_most_sixty_percent_of_those_of_deepagents() -> None:
    assert tokens(create_deep_agent) <= 0.6 * tokens(create_peer_agent)
