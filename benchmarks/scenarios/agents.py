"""The fixed cost of an agent: the time to build it, and the tokens of its prompts and tools."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from deepagents import create_deep_agent as create_peer_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from benchmarks.bench import Bench
from benchmarks.harness import Contender
from deepfs import create_deep_agent

TITLE: Final = "create_deep_agent: building it, and what it tells the model"

_BUILT: Final = 10
_OPTIONS: Final[dict[str, Any]] = {
    "system_prompt": "You write reports.",
    "memory": ["/AGENTS.md"],
    "interrupt_on": {"delete": True},
    "subagents": [{"name": "reader", "description": "Reads.", "system_prompt": "You read."}],
}
_CALL: Final = f"{_BUILT}× create_deep_agent(model, system_prompt=…, memory=[…], interrupt_on={{…}}, subagents=[…])"


async def measure(bench: Bench) -> None:
    """Race both `create_deep_agent` with the same options, and count the tokens of a first request."""
    contenders = [
        Contender(name=name, call=_CALL, run=_builder(create), rows=lambda _: ["built"], own=name == "deepfs")
        for name, create in (("deepfs", create_deep_agent), ("deepagents", create_peer_agent))
    ]
    race = await bench.race(f"{_BUILT} agents built", contenders, noun="agents")
    bench.at_least("create_deep_agent: built at least 3× faster", 3, race.ratios("deepagents", "deepfs"))
    ours, theirs = _tokens(create_deep_agent), _tokens(create_peer_agent)
    bench.at_most("Prompts and schemas: at most 60 % of the tokens of deepagents", 0.6, [ours / theirs])
    bench.note(
        f"The first request of an agent holds {ours:,} tokens of prompts and schemas with deepfs, {theirs:,} with "
        "deepagents, as langchain's count_tokens_approximately counts both. Those of deepfs include the tools "
        "`write_todos` and `move`, which deepagents does not offer."
    )


def _builder(create: Callable[..., Any]) -> Callable[[], None]:
    model = _Model(messages=iter(()))

    def run() -> None:
        for _ in range(_BUILT):
            create(model, **_OPTIONS)

    return run


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
