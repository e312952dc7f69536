"""Names that lead nowhere are told at once: tools to ask about, directories of skills, files of the memory."""

import logging
from typing import Any

import pytest

from deepfs import MemoryBackend, create_deep_agent
from deepfs.testing import ScriptedModel


def search_web(query: str) -> str:
    """Search."""
    return query


def create(**options: Any) -> Any:
    return create_deep_agent(ScriptedModel(script=["done", "done"]), backend=MemoryBackend(), **options)


@pytest.mark.parametrize("name", ["write_file", "execute", "task", "apply_patch", "search_web", "of_a_subagent"])
def test_tools_of_the_agent_and_of_its_subagents_can_be_asked_about(name: str) -> None:
    other = {"name": "of_a_subagent", "description": "Of a provider.", "type": "custom"}
    spec = {"name": "helper", "description": "Helps.", "system_prompt": "Help.", "tools": [other]}
    create(tools=[search_web], subagents=[spec], interrupt_on={name: True})


def test_a_tool_that_does_not_exist_is_told() -> None:
    with pytest.warns(UserWarning, match=r"no tool of the agent is named 'write'.*'write_file'") as told:
        create(interrupt_on={"write": True, "edit_file": True, "rm": False})
    assert [warning.filename for warning in told] == [__file__]


def test_sources_that_do_not_exist_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = create(skills=["/skills"], memory=["/AGENTS.md"])
    with caplog.at_level(logging.WARNING, "deepfs"):
        for _ in range(2):
            agent.invoke({"messages": [("user", "go on")]})
    assert sorted(record.getMessage() for record in caplog.records) == [
        "there is no directory of skills at /skills",
        "there is no memory file at /AGENTS.md yet",
    ]
