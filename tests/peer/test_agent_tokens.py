"""Tokens of an agent's first request, counted by one tokenizer for both libraries, with the same features."""

from importlib import import_module
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.utils import count_tokens_approximately
from pydantic import PrivateAttr

from support.chat import ScriptedModel

GO = {"messages": [("user", "Hello")]}
SKILL = "---\nname: {0}\ndescription: Works with {0} files, and says what is in them.\n---\nRead the file first.\n"
MEMORY = "# Notes\n\nThe user writes Python, and likes short answers.\n"


class CountingModel(ScriptedModel):
    """Records the tools that it is offered."""

    _bound: Any = PrivateAttr(default_factory=list)

    def bind_tools(self, tools: Any, **options: Any) -> "CountingModel":
        self._bound[:] = tools
        return self

    @property
    def names(self) -> set[str]:
        return {tool.name for tool in self._bound}

    @property
    def tokens(self) -> int:
        return self.count(self._bound)

    @property
    def tokens_of_same(self) -> int:
        """Those without the tools that deepagents does not offer."""
        return self.count([tool for tool in self._bound if tool.name not in ("write_todos", "move")])

    def count(self, tools: list[Any]) -> int:
        return count_tokens_approximately([each for each in self.asked[0] if each.type == "system"], tools=tools)


def files() -> dict[str, Any]:
    texts = {f"/skills/{name}/SKILL.md": SKILL.format(name) for name in ("pdf", "csv", "image")}
    texts["/AGENTS.md"] = MEMORY
    return {path: {"content": text, "encoding": "utf-8"} for path, text in texts.items()}


def compaction(library: str, model: Any) -> Any:
    return import_module(f"{library}.middleware.summarization").create_summarization_tool_middleware(
        model, import_module(f"{library}.backends").StateBackend()
    )


FEATURES: dict[str, Any] = {
    "skills": {"skills": ["/skills/"]},
    "memory": {"memory": ["/AGENTS.md"]},
    "subagents": {"subagents": [{"name": "reader", "description": "Reads files.", "system_prompt": "You read."}]},
    "async subagents": {"subagents": [{"name": "far", "description": "Searches.", "graph_id": "g", "url": "http://x"}]},
    "compaction": {"middleware": [compaction]},
}
TOLD = {
    "skills": "Works with csv files",
    "memory": "likes short answers",
    "subagents": "Reads files.",
    "async subagents": "Searches.",
    "compaction": "",
}
TOOLS = {"async subagents": {"start_async_task", "check_async_task"}, "compaction": {"compact_conversation"}}


def first_request(library: str, *features: str) -> CountingModel:
    """The first request of an agent with these features."""
    model = CountingModel(script=[AIMessage("Hello.")])
    options: dict[str, Any] = {}
    for feature in features:
        for name, given in FEATURES[feature].items():
            made = [each(library, model) if name == "middleware" else each for each in given]
            options[name] = [*options.get(name, []), *made]
    import_module(library).create_deep_agent(model, **options).invoke({**GO, "files": files()})
    return model


def told(model: CountingModel) -> str:
    system = "".join(each.text for each in model.asked[0] if each.type == "system")
    return system + "".join(tool.description for tool in model._bound)


@pytest.mark.parametrize("features", [[], [*FEATURES]], ids=["none", "all"])
def test_prompts_and_schemas_take_fewer_tokens_than_those_of_deepagents(features: list[str]) -> None:
    ours, theirs = (first_request(library, *features) for library in ("deepfs", "deepagents"))
    for model in (ours, theirs):
        assert all(TOLD[feature] in told(model) for feature in features)
        assert {name for feature in features for name in TOOLS.get(feature, ())} <= model.names
    of_all, of_same = (0.4, 0.35) if features else (0.55, 0.45)
    assert ours.tokens <= of_all * theirs.tokens, f"{ours.tokens} of {theirs.tokens}"
    assert ours.tokens_of_same <= of_same * theirs.tokens, f"{ours.tokens_of_same} of {theirs.tokens}"
