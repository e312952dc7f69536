"""The cache breakpoints in an agent's requests to Anthropic."""

import json
from itertools import pairwise
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from deepfs import MemoryBackend, create_deep_agent
from middleware.test_prompt_stability import conversation, skills, turns
from support.agents import Invoke, invoke
from support.chat import ScriptedModel, call, calls

__all__ = ["invoke"]

GO = {"messages": [("user", "go")]}


class Model(ChatAnthropic):
    """A model of Anthropic that plays a script, and records the payload of each request."""

    script: list[Any] = []  # noqa: RUF012
    payloads: list[Any] = []  # noqa: RUF012

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        self.payloads.append(json.loads(json.dumps(self._get_request_payload(messages, **options))))
        return ScriptedModel(script=[self.script[len(self.payloads) - 1]])._generate(messages)

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        return self._generate(messages, **options)


@pytest.fixture
def anthropic() -> Model:
    return Model(model="claude-sonnet-5-5", api_key="none", script=turns())


def _without_breakpoints(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_breakpoints(each) for name, each in value.items() if name != "cache_control"}
    return [_without_breakpoints(each) for each in value] if isinstance(value, list) else value


def _breakpoints(value: Any) -> int:
    if isinstance(value, dict):
        return ("cache_control" in value) + sum(map(_breakpoints, value.values()))
    return sum(map(_breakpoints, value)) if isinstance(value, list) else 0


def test_models_of_anthropic_cache_the_prompt(invoke: Invoke, anthropic: Model) -> None:
    conversation(invoke, anthropic, **skills())
    assert len(anthropic.payloads) == len(turns())
    for payload in anthropic.payloads:
        *static, memory = payload["system"]
        assert "cache_control" in static[-1]
        assert "Be kind." in memory["text"]
        assert not any("Be kind." in block["text"] for block in static)
        assert "cache_control" in payload["tools"][-1]
        assert "cache_control" in payload
        assert _breakpoints(payload) <= 4
    for before, after in pairwise(map(_without_breakpoints, anthropic.payloads)):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert (after["system"], after["tools"]) == (before["system"], before["tools"])


@pytest.mark.parametrize(("own", "memory"), [(1, ["/AGENTS.md"]), (3, []), (3, ["/AGENTS.md"]), (4, ["/AGENTS.md"])])
def test_no_request_has_more_breakpoints_than_anthropic_accepts(
    invoke: Invoke, anthropic: Model, own: int, memory: list[str]
) -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    anthropic.script = [AIMessage("done")]
    agent = create_deep_agent(
        anthropic, system_prompt=SystemMessage([block] * own), memory=memory, backend=MemoryBackend()
    )
    invoke(agent, GO)
    (payload,) = anthropic.payloads
    assert _breakpoints(payload) <= 4
    assert _breakpoints(payload["system"]) >= own
    assert ("cache_control" in payload) is (own < 4)


def test_a_breakpoint_of_an_hour_follows_no_shorter_one(invoke: Invoke, anthropic: Model) -> None:
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    anthropic.script = [AIMessage("done"), AIMessage("done")]
    invoke(create_deep_agent(anthropic, system_prompt=SystemMessage([block]), backend=MemoryBackend()), GO)
    invoke(
        create_deep_agent(anthropic, system_prompt="Be brief.", backend=MemoryBackend()),
        {"messages": [HumanMessage([block])]},
    )
    for payload in anthropic.payloads:
        assert _breakpoints(payload) == 2
        assert _breakpoints(payload["tools"]) == 0
    assert _breakpoints(anthropic.payloads[1]["system"]) == 0


def test_subagents_cache_their_prompts(anthropic: Model) -> None:
    anthropic.script = [
        calls(call("task", description="x", subagent_type="general-purpose")),
        AIMessage("a"),
        AIMessage("b"),
    ]
    create_deep_agent(anthropic).invoke({"messages": [("user", "go")]})
    assert ["cache_control" in payload["tools"][-1] for payload in anthropic.payloads] == [True] * 3
