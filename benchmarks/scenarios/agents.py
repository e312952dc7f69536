"""The fixed cost of an agent: the time to build it, and the tokens of its prompts and tools."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from deepagents import FilesystemPermission as PeerPermission
from deepagents import create_deep_agent as create_peer_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Race
from deepfs import FilesystemPermission, create_deep_agent

TITLE: Final = "create_deep_agent: building it, and what it tells the model"

_BUILT: Final = 10
_OPTIONS: Final[dict[str, Any]] = {
    "system_prompt": "You write reports.",
    "memory": ["/AGENTS.md"],
    "interrupt_on": {"delete": True},
    "subagents": [{"name": "reader", "description": "Reads.", "system_prompt": "You read."}],
}
_CALL: Final = f"{_BUILT}× create_deep_agent(model, system_prompt=…, memory=[…], interrupt_on={{…}}, subagents=[…])"
_BARE_CALL: Final = f"{_BUILT}× create_deep_agent(model)"
_FULL_CALL: Final = f"{_BUILT}× create_deep_agent(model, …, skills=[…], permissions=[…])"
_SHARED_TOOLS: Final = frozenset({"ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep", "task"})


async def measure(bench: Bench) -> None:
    """Race both `create_deep_agent` with the same options, and count the tokens of a first request."""
    race = await _race(bench, f"{_BUILT} agents built", _CALL, _OPTIONS)
    bench.at_least("create_deep_agent: built at least 3× faster", 3, race.ratios("deepagents", "deepfs"))
    race = await _race(bench, f"{_BUILT} agents without options", _BARE_CALL, {})
    bench.at_least("create_deep_agent without options: at least 3× faster", 3, race.ratios("deepagents", "deepfs"))
    race = await _race(
        bench, f"{_BUILT} agents with skills and rules", _FULL_CALL, {**_OPTIONS, "skills": ["/skills/"]}
    )
    bench.at_least("create_deep_agent with all options: at least 3× faster", 3, race.ratios("deepagents", "deepfs"))
    ours, theirs = _tokens(create_deep_agent), _tokens(create_peer_agent)
    bench.at_most("Prompts and schemas: at most 60 % of the tokens of deepagents", 0.6, [ours / theirs])
    bench.note(
        f"The first request of an agent holds {ours:,} tokens of prompts and schemas with deepfs, {theirs:,} with "
        "deepagents, as langchain's count_tokens_approximately counts both. Those of deepfs include the tools "
        "`write_todos` and `move`, which deepagents does not offer."
    )


async def _race(bench: Bench, work: str, call: str, options: dict[str, Any]) -> Race:
    """Race both libraries; the agents must have the same tools of the two, subagents, approvals, memory and skills."""
    rules = {"deepfs": FilesystemPermission, "deepagents": PeerPermission}
    contenders = [
        Contender(
            name=name,
            call=call,
            run=_builder(create, {**options, **_rules(rules[name], "skills" in options)}),
            rows=_features,
            own=name == "deepfs",
        )
        for name, create in (("deepfs", create_deep_agent), ("deepagents", create_peer_agent))
    ]
    return await bench.race(work, contenders, noun="agents")


def _rules(rule: Any, are_given: bool) -> dict[str, Any]:
    return {"permissions": [rule(operations=["write"], paths=["/private/**"], mode="deny")]} if are_given else {}


def _builder(create: Callable[..., Any], options: dict[str, Any]) -> Callable[[], Any]:
    model = _Model(messages=iter(()))

    def run() -> Any:
        return [create(model, **options) for _ in range(_BUILT)][-1]

    return run


def _features(agent: Any) -> list[str]:
    """What an agent of either library has."""
    tools = agent.nodes["tools"].bound.tools_by_name
    named = [name for name in ("general-purpose", "reader") if name in tools["task"].description]
    asks = ["approvals"] if any("after_model" in node and "TodoList" not in node for node in agent.nodes) else []
    skills = [node for node in agent.nodes if node == "SkillsMiddleware.before_agent"]
    return [*sorted(_SHARED_TOOLS & tools.keys()), *named, *asks, *skills]


class _Model(GenericFakeChatModel):
    """A fake model that remembers the messages and tools of its last request."""

    _tools: Any = PrivateAttr(default_factory=list)
    _asked: Any = PrivateAttr(default_factory=list)

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "_Model":
        self._tools[:] = tools
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self._asked[:] = messages
        return super()._generate(messages, *args, **options)

    @property
    def tokens(self) -> int:
        """The tokens of the prompts and schemas in the last request."""
        prompts = [message for message in self._asked if not isinstance(message, HumanMessage)]
        return count_tokens_approximately(prompts, tools=self._tools)


def _tokens(create: Callable[..., Any]) -> int:
    model = _Model(messages=iter([AIMessage("Hello.")]))
    create(model).invoke({"messages": [HumanMessage("Hello")]})
    return model.tokens
