"""Memory files in the system message, in the place and form that the caller asks for."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from deepfs import MemoryBackend
from deepfs.middleware.memory import MemoryMiddleware
from support.scripted import ScriptedModel, calls


class Listener(ScriptedModel):
    """Keeps the system messages that it gets."""

    heard: list[Any] = Field(default_factory=list)

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.heard.append(messages[0] if isinstance(messages[0], SystemMessage) else None)
        return super()._generate(messages, *args, **options)


class ChatAnthropic(Listener):
    """Has the name and package by which cache breakpoints are chosen."""


ChatAnthropic.__module__ = "langchain_anthropic.chat_models"
CONFIG: Any = {"configurable": {"thread_id": "1"}}


@pytest.fixture
def heard(invoke: Any) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Runs an agent with a memory file, and returns the system message and the state."""

    def run(text: str, kind: type[Listener] = Listener, **options: Any) -> tuple[Any, dict[str, Any]]:
        backend = MemoryBackend()
        backend.write("/AGENTS.md", text)
        model = kind(messages=iter(calls()), heard=[])
        memory = MemoryMiddleware(backend=backend, sources=["/AGENTS.md", "/none.md"], **options)
        agent = create_agent(model, system_prompt="Be brief.", middleware=[memory], checkpointer=InMemorySaver())
        invoke(agent, {"messages": ["go"]}, CONFIG)
        return model.heard[0].content, dict(agent.get_state(CONFIG).values)

    return run


def test_the_files_take_the_place_in_the_template(heard: Any) -> None:
    system, state = heard("likes tea\n", system_prompt="<m>{agent_memory}</m> {{x}}")
    assert system.startswith("Be brief.\n\n<m><file")
    assert "likes tea" in system
    assert system.endswith("</m> {x}")
    assert "memory_contents" not in state


def test_without_a_template_the_texts_are_in_the_state_only(heard: Any) -> None:
    system, state = heard("likes tea\n", system_prompt=None)
    assert system == "Be brief."
    assert state["memory_contents"] == {"/AGENTS.md": "likes tea\n"}


def test_comments_are_left_out(heard: Any) -> None:
    for text, shown in [
        ("a<!-- note -->b", "ab"),
        ("a<!-- one\ntwo -->b<!---->c", "abc"),
        ("a<!-- no end", "a<!-- no end"),
        ("a-->b", "a-->b"),
        ("<!-->", "<!-->"),
    ]:
        assert f"\n{shown}\n" in heard(text)[0]


def test_a_cache_breakpoint_ends_the_message_for_anthropic_only(heard: Any) -> None:
    system, _ = heard("tea\n", ChatAnthropic, add_cache_control=True)
    assert system[-1]["cache_control"] == {"type": "ephemeral"}
    assert "tea" in system[-1]["text"]
    assert isinstance(heard("tea\n", add_cache_control=True)[0], str)
    alone, _ = heard("tea\n", ChatAnthropic, add_cache_control=True, system_prompt=None)
    assert alone == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]


def test_a_file_that_cannot_be_read_is_an_error_where_the_state_needs_it() -> None:
    memory = MemoryMiddleware(backend=MemoryBackend(), sources=["/../x"], system_prompt=None)
    with pytest.raises(ValueError, match="invalid_path"):
        memory.before_agent({}, None, None)
    assert memory.before_agent({"memory_contents": {}}, None) is None, "it is not read again"


def test_wrong_templates() -> None:
    for given in ("no place", "{agent_memory} {other}", 3):
        with pytest.raises((ValueError, TypeError)):
            MemoryMiddleware(sources=[], system_prompt=given)  # type: ignore[arg-type]
