"""The memory tool in Anthropic's SDK, and in requests to Claude and GPT."""

from typing import Any

import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

from deepfs import MemoryBackend
from deepfs.middleware import apply_patch_tool, async_memory_tool_of_sdk, memory_tool, memory_tool_of_sdk

CREATE = {"command": "create", "path": "/memories/a", "file_text": "x\n"}
VIEW = {"command": "view", "path": "/memories/a"}
SHOWN = "Here's the content of /memories/a with line numbers:\n     1\tx"


def test_the_tool_of_the_sdk_runs_commands() -> None:
    tool = memory_tool_of_sdk(MemoryBackend())
    assert isinstance(tool, BetaAbstractMemoryTool)
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory"}
    assert "successfully" in str(tool.call(CREATE))
    assert tool.call(VIEW) == SHOWN
    for wrong in ({"command": "view", "path": "/etc"}, {"command": "view"}, {"command": "dance"}):
        with pytest.raises(ToolError, match="Error: "):
            tool.call(wrong)


@pytest.mark.anyio
async def test_the_asynchronous_tool_of_the_sdk_runs_commands() -> None:
    tool = async_memory_tool_of_sdk(MemoryBackend())
    assert isinstance(tool, BetaAsyncAbstractMemoryTool)
    assert "successfully" in str(await tool.call(CREATE))
    assert await tool.call(VIEW) == SHOWN
    with pytest.raises(ToolError, match="not under /memories"):
        await tool.call({"command": "delete", "path": "/etc"})


def test_claude_gets_the_tool_that_it_was_trained_on() -> None:
    bound: Any = ChatAnthropic(model="claude-sonnet-5-5", api_key="x").bind_tools([memory_tool(MemoryBackend())])
    assert bound.kwargs["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    payload = bound.bound._get_request_payload([("user", "x")], **bound.kwargs)
    assert payload["betas"] == ["context-management-2025-06-27"]


def test_other_models_get_plain_schemas() -> None:
    files = MemoryBackend()
    bound: Any = ChatOpenAI(model="gpt-5", api_key="x").bind_tools([memory_tool(files), apply_patch_tool(files)])
    memory, patch = (tool["function"]["parameters"] for tool in bound.kwargs["tools"])
    assert {schema["type"] for schema in memory["properties"].values()} == {"string", "integer", "array"}
    assert not any("default" in schema for schema in memory["properties"].values())
    assert (memory["required"], patch["required"]) == (["command"], ["input"])
