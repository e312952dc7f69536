"""Agents whose conversations are summarised."""

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from deepfs import FilesystemMiddleware
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware.summarization import SummarizationMiddleware
from support.agents import Invoke
from support.chat import ScriptedModel

__all__ = ["HISTORY", "SUMMARY", "Talker", "agent_of", "event_of", "said", "shown", "talk", "text_of", "thread"]

SUMMARY = "What was said, in short."
HISTORY = "/conversation_history/1.md"


class Talker(ScriptedModel):
    """Answers with the next turn of its script; a request to summarise gets a summary and takes no turn."""

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        if "Messages to summarize" not in messages[-1].text:
            return super()._generate(messages, *args, **options)
        answer = ScriptedModel(script=[AIMessage(SUMMARY)])
        self._asked.append(list(messages))
        return answer._generate(messages)

    @property
    def summaries(self) -> int:
        """Number of summaries that it made."""
        return sum("Messages to summarize" in asked[-1].text for asked in self.asked)


def thread(name: Any = "1") -> dict[str, Any]:
    """The config of a thread."""
    return {"configurable": {"thread_id": name}}


def agent_of(backend: BackendProtocol | None, *turns: Any, after: int = 12, **options: Any) -> tuple[Talker, Any]:
    """An agent that summarises after so many messages and keeps two, and its model, which plays the turns first."""
    model = Talker(script=[*turns, *(AIMessage(f"answer {number}") for number in range(100))])
    summaries = SummarizationMiddleware(model, backend=backend, trigger=("messages", after), keep=("messages", 2))
    files = FilesystemMiddleware(backend=backend, permissions=options.pop("permissions", None))
    options.setdefault("checkpointer", InMemorySaver())
    return model, create_agent(model, middleware=[files, summaries], **options)


def said(number: int) -> dict[str, Any]:
    """A question of the user."""
    return {"messages": [HumanMessage(f"question {number} <&>", id=f"q{number}")]}


def talk(invoke: Invoke, agent: Any, config: Any, first: int = 0, last: int = 6) -> Any:
    """Ask the questions one after another; return the last state."""
    for number in range(first, last + 1):
        state = invoke(agent, said(number), config)
    return state


def shown(model: Talker) -> list[Any]:
    """The conversation as the model saw it last."""
    return [message for message in model.asked[-1] if message.type != "system"]


def event_of(agent: Any, name: Any = "1") -> Any:
    """The summarization event in the state of a thread."""
    return agent.get_state(thread(name)).values.get("_summarization_event")


def text_of(found: BackendProtocol, path: str = HISTORY) -> str:
    """The text of a file."""
    data = found.read_raw(path).data
    assert data is not None, f"no {path}"
    return str(data.content)
