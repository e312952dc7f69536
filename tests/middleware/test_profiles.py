"""Profiles: their registry, and what they change in an agent."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import TodoListMiddleware
from langchain.agents.middleware.types import AgentMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from pydantic import Field

import deepfs.profiles.registry as registry
from deepfs import (
    GeneralPurposeSubagentProfile,
    HarnessProfile,
    HarnessProfileConfig,
    MemoryBackend,
    ProviderProfile,
    SubAgent,
    create_deep_agent,
    register_harness_profile,
    register_provider_profile,
)
from deepfs.middleware.memory import MemoryMiddleware
from deepfs.middleware.subagents import SubAgentMiddleware
from deepfs.profiles.registry import harness_profile_of
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

GO = {"messages": [("user", "go")]}


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with the profiles that deepfs has itself."""
    registry.load_plugins()
    own = {key: registry._PROVIDERS._profiles[key] for key in ("openai", "openrouter")}
    monkeypatch.setattr(registry._HARNESS, "_profiles", {})
    monkeypatch.setattr(registry._PROVIDERS, "_profiles", own)


class Model(ScriptedModel):
    """A scripted model that records the tools it is offered, and reports a provider."""

    model: str = "one"
    provider: str = "acme"
    tools: list[Any] = []  # noqa: RUF012
    offers: list[Any] = Field(default_factory=list)

    def _get_ls_params(self, **options: Any) -> Any:
        return {"ls_provider": self.provider}

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        self.tools = list(tools)
        self.offers.append(str(tools))
        return super().bind_tools([each for each in tools if not isinstance(each, dict)], **options)

    def description(self, name: str) -> str:
        """What the last request said about a tool."""
        named = {each["name"] if isinstance(each, dict) else each.name: each for each in self.tools}
        found = named[name]
        return str(found["description"] if isinstance(found, dict) else found.description)


def agent_of(*turns: Any, model: str = "one", **options: Any) -> tuple[Model, Any]:
    chat_model = Model(script=[*turns, AIMessage("done")], model=model)
    return chat_model, create_deep_agent(chat_model, backend=options.pop("backend", None) or MemoryBackend(), **options)


def task(to: str) -> AIMessage:
    return calls(call("task", description="x", subagent_type=to))


def test_keys_of_another_form_are_refused() -> None:
    for key in ("", " acme", "acme ", ":", "acme:", ":one", "acme :one", "acme: one"):
        with pytest.raises(ValueError, match="'provider' or 'provider:model'"):
            register_harness_profile(key, HarnessProfile())
        with pytest.raises(ValueError, match="'provider' or 'provider:model'"):
            register_provider_profile(key, ProviderProfile())


# --- the registry ----------------------------------------------------------------------------------------------------


def test_a_model_inherits_from_its_provider() -> None:
    class First(AgentMiddleware[Any, Any, Any]):
        pass

    class Second(AgentMiddleware[Any, Any, Any]):
        pass

    given = [First(), Second(), First()]
    register_harness_profile(
        "acme",
        HarnessProfile(
            base_system_prompt="Base.",
            system_prompt_suffix="All.",
            tool_description_overrides={"ls": "L", "grep": "G"},
            excluded_tools=frozenset({"glob"}),
            excluded_middleware=frozenset({"MemoryMiddleware"}),
            extra_middleware=given[:2],
            general_purpose_subagent=GeneralPurposeSubagentProfile(enabled=False, description="D"),
        ),
    )
    register_harness_profile(
        "acme:one", HarnessProfileConfig(system_prompt_suffix="", excluded_tools=frozenset({"ls"}))
    )
    register_harness_profile(
        "acme:one",
        HarnessProfile(
            tool_description_overrides={"ls": "Mine"},
            excluded_middleware=frozenset({TodoListMiddleware}),
            extra_middleware=lambda: given[2:],
            general_purpose_subagent=GeneralPurposeSubagentProfile(enabled=True),
        ),
    )
    found = harness_profile_of(Model(script=[]))
    assert (found.base_system_prompt, found.system_prompt_suffix) == ("Base.", "")
    assert found.tool_description_overrides == {"ls": "Mine", "grep": "G"}
    assert found.excluded_tools == {"glob", "ls"}
    assert found.excluded_middleware == {"MemoryMiddleware", TodoListMiddleware}
    assert found.materialize_extra_middleware() == [given[2], given[1]]
    assert found.general_purpose_subagent == GeneralPurposeSubagentProfile(enabled=True, description="D")
    assert harness_profile_of(Model(script=[], model="two")).system_prompt_suffix == "All."
    assert harness_profile_of(Model(script=[], provider="other")) == HarnessProfile()


def test_a_model_object_is_found_by_what_it_reports() -> None:
    register_harness_profile("acme", HarnessProfile(system_prompt_suffix="all"))
    register_harness_profile("acme:one", HarnessProfile(system_prompt_suffix="1"))
    register_harness_profile("ollama:glm:cloud", HarnessProfile(system_prompt_suffix="Cloud."))
    for provider, name, suffix in [
        ("acme", "one", "1"),
        ("acme", "two", "all"),
        ("", "acme:one", "1"),
        ("", "acme:two", "all"),
        ("", "acme", None),
        ("ollama", "glm:cloud", "Cloud."),  # Only the first colon counts.
    ]:
        assert harness_profile_of(Model(script=[], provider=provider, model=name)).system_prompt_suffix == suffix
    assert harness_profile_of(None, "ollama:glm:cloud").system_prompt_suffix == "Cloud."


def test_entry_points_register_profiles_and_broken_ones_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "acme_plugin.py").write_text(
        "from deepfs import HarnessProfile, register_harness_profile\n"
        "def good(): register_harness_profile('acme', HarnessProfile(system_prompt_suffix='plugin'))\n"
        "def bad(): raise RuntimeError('broken')\n"
    )
    info = tmp_path / "acme_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: acme-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[deepfs.harness_profiles]\nbad = acme_plugin:bad\ngood = acme_plugin:good\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setattr(registry, "_loaded", [])
    assert harness_profile_of(Model(script=[])).system_prompt_suffix == "plugin"
    assert "entry point bad of deepfs.harness_profiles failed" in caplog.text


# --- the declarative form --------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "base_system_prompt": "Base.",
    "system_prompt_suffix": "Suffix.",
    "tool_description_overrides": {"ls": "L"},
    "excluded_tools": ["execute", "grep"],
    "excluded_middleware": ["SummarizationMiddleware"],
    "general_purpose_subagent": {"enabled": False, "description": "D", "system_prompt": "P"},
}


def test_a_config_survives_json() -> None:
    for data in ({}, SETTINGS, {"general_purpose_subagent": {}}):
        config = HarnessProfileConfig.from_dict(json.loads(json.dumps(data)))
        assert config.to_dict() == data
        assert HarnessProfileConfig.from_harness_profile(config.to_harness_profile()) == config


def test_a_config_of_another_form_is_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompt": "x"}, "prompt"),
        ({"system_prompt_suffix": 5}, "system_prompt_suffix"),
        ({"tool_description_overrides": ["ls"]}, "tool_description_overrides"),
        ({"tool_description_overrides": {"ls": 5}}, "tool_description_overrides"),
        ({"excluded_tools": "ls"}, "excluded_tools"),
        ({"excluded_middleware": [5]}, "excluded_middleware"),
        ({"general_purpose_subagent": True}, "general_purpose_subagent"),
        ({"general_purpose_subagent": {"enabled": "yes"}}, "enabled"),
        ({"general_purpose_subagent": {"prompt": "x"}}, "prompt"),
    ]
    for data, told in wrong:
        with pytest.raises(TypeError, match=told):
            HarnessProfileConfig.from_dict(data)


def test_middleware_that_cannot_be_excluded() -> None:
    for entry in ("", " ", "module:Class", "_Private", "FilesystemMiddleware", SubAgentMiddleware):
        with pytest.raises(ValueError, match="excluded_middleware"):
            HarnessProfile(excluded_middleware=frozenset({entry}))


def test_what_a_file_cannot_hold_is_not_exported() -> None:
    class Named(AgentMiddleware[Any, Any, Any]):
        serialized_name = "Public"

    exported = HarnessProfileConfig.from_harness_profile(HarnessProfile(excluded_middleware=frozenset({Named})))
    assert exported.to_dict() == {"excluded_middleware": ["Public"]}
    for profile in (
        HarnessProfile(extra_middleware=[Named()]),
        HarnessProfile(extra_middleware=lambda: ()),
        HarnessProfile(excluded_middleware=frozenset({TodoListMiddleware})),
    ):
        with pytest.raises(ValueError, match="middleware"):
            HarnessProfileConfig.from_harness_profile(profile)


# --- providers -------------------------------------------------------------------------------------------------------


def test_a_model_is_constructed_as_its_provider_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def init(name: str, **options: Any) -> Model:
        made.append((name, options))
        return Model(script=[])

    monkeypatch.setattr("deepfs.middleware._base.init_chat_model", init)
    register_provider_profile("acme", ProviderProfile({"temperature": 0.7, "timeout": 30}, pre_init=made.append))
    register_provider_profile(
        "acme:one", ProviderProfile({"temperature": 0}, made.append, lambda: {"timeout": 5, "region": "eu"})
    )
    create_deep_agent("acme:one", subagents=[SubAgent(name="s", description="S.", model="acme:two")])
    create_deep_agent("openai:gpt-5")
    assert made == [
        "acme:one",
        "acme:one",
        ("acme:one", {"temperature": 0, "timeout": 5, "region": "eu"}),
        "acme:two",
        ("acme:two", {"temperature": 0.7, "timeout": 30}),
        ("openai:gpt-5", {"use_responses_api": True}),
    ]


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_the_prompt_is_that_of_the_user_then_the_base_then_the_suffix(invoke: Invoke) -> None:
    register_harness_profile("acme", HarnessProfile(base_system_prompt="Base.", system_prompt_suffix="Suffix."))
    model, agent = agent_of(
        task("reader"),
        AIMessage("read"),
        system_prompt="User.",
        subagents=[SubAgent(name="reader", description="Reads.", system_prompt="You read.")],
    )
    invoke(agent, GO)
    supervisor, reader, _ = (asked[0].text for asked in model.asked)
    assert supervisor.startswith("User.\n\nBase.\n\nSuffix.")
    assert reader.startswith("Base.\n\nSuffix.")
    assert "You read." not in reader


# --- tools -----------------------------------------------------------------------------------------------------------


@tool
def ping() -> str:
    """Ping."""
    return "pong"


def test_descriptions_of_tools_are_replaced() -> None:
    named = {name: f"{name}: new" for name in ("ls", "ping", "provided", "write_todos")}
    register_harness_profile(
        "acme", HarnessProfile(tool_description_overrides={**named, "task": "Delegate to:\n{available_agents}"})
    )
    provided = {"name": "provided", "description": "old", "type": "web_search"}
    model, agent = agent_of(tools=[ping, provided])
    agent.invoke(GO)
    assert {name: model.description(name) for name in named} == named
    assert model.description("task").startswith("Delegate to:\n- general-purpose")
    assert (ping.description, provided["description"]) == ("Ping.", "old")


@pytest.mark.both_forms
def test_excluded_tools_are_neither_offered_nor_called(invoke: Invoke) -> None:
    register_harness_profile("acme", HarnessProfile(excluded_tools=frozenset({"write_file", "ping"})))
    files = MemoryBackend()
    model, agent = agent_of(
        calls(call("write_file", file_path="/a", content="x"), call("ping"), call("ls", path="/")),
        tools=[ping],
        backend=files,
    )
    state = invoke(agent, GO)
    assert [message.status for message in results(state)] == ["error", "error", "success"]
    assert "no tool 'write_file' here" in results(state)[0].content
    assert not {"write_file", "ping"} & set(model.offered)
    assert "ls" in model.offered
    assert not files.ls("/").entries


def test_a_subagent_follows_the_profile_of_its_own_model() -> None:
    register_harness_profile("acme:one", HarnessProfile(tool_description_overrides={"ls": "One."}))
    register_harness_profile(
        "acme:two",
        HarnessProfile(
            tool_description_overrides={"grep": "Two.", "ping": "Two."},
            excluded_tools=frozenset({"glob"}),
            excluded_middleware=frozenset({"SummarizationMiddleware", "TodoListMiddleware"}),
            system_prompt_suffix="Second.",
        ),
    )
    other = Model(script=[AIMessage("read")], model="two")
    worker = SubAgent(name="reader", description="Reads.", system_prompt="You read.", model=other)
    model, agent = agent_of(task("reader"), tools=[ping], subagents=[worker])
    agent.invoke(GO)
    assert other.asked[0][0].text.startswith("You read.\n\nSecond.")
    assert (other.description("grep"), other.description("ping")) == ("Two.", "Two.")
    assert other.description("ls") != "One." == model.description("ls")
    assert not {"glob", "write_todos"} & set(other.offered)
    assert {"glob", "write_todos"} <= set(model.offered)
    assert model.description("ping") == "Ping."


# --- middleware ------------------------------------------------------------------------------------------------------


def test_excluded_middleware_is_left_out_of_the_agent_and_its_subagents() -> None:
    for name, entry in (("name", "TodoListMiddleware"), ("class", TodoListMiddleware)):
        register_harness_profile(f"acme:{name}", HarnessProfile(excluded_middleware=frozenset({entry})))
        model, agent = agent_of(task("general-purpose"), AIMessage("worked"), model=name)
        agent.invoke(GO)
        assert {"write_todos", "read_file"} & set(model.offered) == {"read_file"}
        assert ["write_todos" in names for names in model.offers] == [False] * 3


def test_an_exclusion_that_matches_nothing_is_refused() -> None:
    for number, entry in enumerate(("MemoryMiddleware", MemoryMiddleware, "Unknown")):
        register_harness_profile(f"acme:{number}", HarnessProfile(excluded_middleware=frozenset({entry})))
        with pytest.raises(ValueError, match=r"excluded_middleware of the profile: the agent has no \w+"):
            agent_of(model=str(number))


# --- the general-purpose subagent ------------------------------------------------------------------------------------


def test_without_any_subagent_there_is_no_task() -> None:
    off = GeneralPurposeSubagentProfile(enabled=False)
    register_harness_profile("acme", HarnessProfile(general_purpose_subagent=off))
    model, agent = agent_of()
    agent.invoke(GO)
    assert "task" not in model.offered
    model, agent = agent_of(subagents=[SubAgent(name="reader", description="Reads.")])
    agent.invoke(GO)
    assert "- reader" in model.description("task")
    assert "general-purpose" not in model.description("task")
