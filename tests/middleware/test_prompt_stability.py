"""What providers cache: each request begins with the same bytes as the one before."""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

from deepfs import FilesystemPermission, MemoryBackend, SubAgent, create_deep_agent
from support.agents import Invoke
from support.chat import ScriptedModel, call, calls
from support.scripts import run_script

THREAD = {"configurable": {"thread_id": "1"}}
SKILL = "---\nname: review\ndescription: Reviews texts.\n---\nRead, then judge.\n"


class Recording(ScriptedModel):
    """Records each request as bytes: the tools, and the messages."""

    requests: list[list[bytes]] = []  # noqa: RUF012
    schemas: bytes = b""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        self.schemas = json.dumps([convert_to_openai_tool(each) for each in tools]).encode()
        return super().bind_tools(tools, **options)

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        sent = [json.dumps(each.model_dump(exclude={"id"})).encode() for each in messages]
        self.requests.append([self.schemas, *sent])
        return super()._generate(messages, *args, **options)


def turns() -> list[AIMessage]:
    def made(number: int, name: str, **arguments: Any) -> dict[str, Any]:
        return {**call(name, **arguments), "id": f"call-{number}"}

    return [
        calls(made(1, "write_todos", todos=[{"content": "write", "status": "in_progress"}])),
        calls(made(2, "write_file", file_path="/a/b.txt", content="x"), made(3, "ls", path="/memory")),
        AIMessage("written"),
        calls(made(4, "read_file", file_path="/a/b.txt"), made(5, "grep", pattern="x"), made(6, "glob", pattern="**")),
        calls(made(7, "write_file", file_path="/secret/c", content="y"), made(8, "nothing")),
        AIMessage("read"),
        calls(made(9, "edit_file", file_path="/a/b.txt", old_string="x", new_string="z")),
        AIMessage("edited"),
    ]


def conversation(run: Callable[..., Any], model: Any = None, **options: Any) -> list[list[bytes]]:
    """Talk to an agent with all features in three turns; return its requests."""
    files = MemoryBackend()
    files.upload_files([("/memory/AGENTS.md", b"Be kind.\n"), ("/skills/review/SKILL.md", SKILL.encode())])
    model = model or Recording(script=turns())
    agent = create_deep_agent(
        model,
        system_prompt="You write.",
        backend=files,
        memory=["/memory/AGENTS.md", "/memory/none.md"],
        permissions=[FilesystemPermission(["write"], ["/secret/**"], "deny")],
        subagents=[SubAgent(name=name, description=f"{name}.") for name in ("reader", "writer")],
        interrupt_on={"delete": True},
        checkpointer=InMemorySaver(),
        **options,
    )
    for text in ("go", "on", "end"):
        run(agent, {"messages": [("user", text)]}, THREAD)
    return getattr(model, "requests", [])


def skills() -> dict[str, Any]:
    return {"skills": ["/skills/"]} if find_spec("deepfs.middleware.skills") else {}


def test_each_request_begins_with_the_one_before(invoke: Invoke) -> None:
    requests = conversation(invoke, **skills())
    assert len(requests) == len(turns())
    for before, after in pairwise(requests):
        assert after[: len(before)] == before


def test_shortened_arguments_change_few_requests(invoke: Invoke) -> None:
    def write(number: int) -> AIMessage:
        return calls(call("write_file", file_path=f"/{number}", content=f"{number} " * 1_500))

    model = Recording(script=[*map(write, range(40)), AIMessage("done")])
    invoke(create_deep_agent(model, backend=MemoryBackend()), {"messages": [("user", "go")]})
    assert b"truncated" in model.requests[-1][3]
    changed = [before for before, after in pairwise(model.requests) if after[: len(before)] != before]
    assert len(changed) < len(model.requests) / 3


def digest() -> str:
    requests = conversation(lambda agent, *given: agent.invoke(*given), **skills())
    return sha256(repr(requests).encode()).hexdigest()


_SCRIPT = """
    import logging, sys
    logging.disable()
    sys.path[:0] = ["tests", "tests/middleware"]
    from test_prompt_stability import digest
    print(digest())
    assert "langchain_anthropic" not in sys.modules
"""


def test_requests_are_the_same_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert run_script(_SCRIPT).strip() == digest()
