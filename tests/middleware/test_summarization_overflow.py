"""Requests that a model refuses as too long, and arguments that are shortened before they get so long."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from deepfs import FilesystemMiddleware, MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.middleware.compaction import is_context_overflow
from deepfs.middleware.summarization import SummarizationMiddleware
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import call, calls
from support.conversations import HISTORY, SUMMARY, Talker, event_of, said, shown, summarized_by, talk, text_of, thread


class RefusedError(Exception):
    """An error of a provider's client."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status_code = status


class Narrow(Talker):
    """Refuses conversations of more characters than its context has."""

    characters: int = 1_000
    max_tokens: int | None = None
    error: Callable[[], Exception] = lambda: ContextOverflowError("too long")
    _refused: Any = PrivateAttr(default=0)

    @property
    def refused(self) -> int:
        """The number of requests that it refused."""
        return int(self._refused)

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        length = sum(len(message.text) for message in messages if message.type != "system")
        if length > self.characters and "Messages to summarize" not in messages[-1].text:
            self._refused += 1
            raise self.error()
        return super()._generate(messages, *args, **options)


def answers(count: int, text: str = "answer " * 20) -> list[AIMessage]:
    """Turns that only say something."""
    return [AIMessage(text) for _ in range(count)]


def agent_of(backend: BackendProtocol, *turns: Any, **options: Any) -> tuple[Narrow, Any]:
    """An agent without a trigger."""
    model = Narrow(script=[*turns, *answers(50)], **options)
    summaries = SummarizationMiddleware(model, backend=backend, keep=("messages", 2))
    files = FilesystemMiddleware(backend)
    return model, create_agent(model, [echo], middleware=[files, summaries], checkpointer=InMemorySaver())


@tool
def echo(text: str, times: int) -> str:
    """Repeat a text."""
    return text * times


# --- a request that is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        lambda: ContextOverflowError("no"),
        lambda: RefusedError("Error code: 400 - {'error': {'code': 'context_length_exceeded'}}", 400),
        lambda: RefusedError("prompt is too long: 210000 tokens > 200000 maximum", 413),
        lambda: RefusedError("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000", 400),
    ],
    ids=["langchain", "openai", "anthropic", "output"],
)
def test_an_overflow_is_answered_by_one_summary_and_one_retry(invoke: Invoke, error: Any) -> None:
    files = MemoryBackend()
    model, agent = agent_of(files, characters=1_200, error=error)
    state = talk(invoke, agent, thread(), 0, 9)
    assert model.refused == 1
    assert model.summaries == 1
    assert SUMMARY in shown(model)[0].text
    assert HISTORY in shown(model)[0].text
    humans = [message.id for message in state["messages"] if message.type == "human"]
    assert humans == [f"q{number}" for number in range(10)]
    seen = {message.id for message in [*shown(model), state["messages"][-1]]}
    assert all((f'id="{message.id}"' in text_of(files)) != (message.id in seen) for message in state["messages"])


def test_other_errors_are_no_overflow(invoke: Invoke) -> None:
    for error in (
        ValueError("prompt is too long"),
        RefusedError("prompt is too long", 500),
        RefusedError("max_tokens: 1", 400),
    ):
        model, agent = agent_of(MemoryBackend(), characters=20, error=lambda error=error: error)
        with pytest.raises(type(error)) as raised:
            talk(invoke, agent, thread(), 0, 2)
        assert raised.value is error
        assert model.summaries == 0


def test_errors_of_providers_are_recognised() -> None:
    class BedrockError(Exception):
        response = {"ResponseMetadata": {"HTTPStatusCode": 400}}  # noqa: RUF012

    assert is_context_overflow(BedrockError("Input is too long for requested model."))
    assert not is_context_overflow(BedrockError("Malformed input"))
    assert not is_context_overflow(RefusedError("rate limit: maximum context length of the day", 429))


def test_a_second_overflow_moves_long_results_to_files(invoke: Invoke) -> None:
    files = MemoryBackend()
    big = calls(call("echo", text="word ", times=2_000))
    model, agent = agent_of(files, *answers(2), big, characters=5_000)
    talk(invoke, agent, thread(), 0, 1)
    state = invoke(agent, said(2), thread())
    assert model.refused == 2, "as it is, and with a summary"
    assert model.summaries == 1
    (result,) = results(state)
    assert len(result.text) < 4_000
    path = next(info.path for info in files.ls("/large_tool_results").entries or ())
    assert path in result.text
    assert text_of(files, path) == "word " * 2_000
    state = invoke(agent, said(3), thread())
    assert model.refused == 2, "the result in the state is short now"


def test_a_long_result_whose_file_cannot_be_written_stays_in_the_state(invoke: Invoke) -> None:
    files = FaultyBackend(MemoryBackend(), {"write": BackendError("Error: disk on fire")})
    model, agent = agent_of(files, calls(call("echo", text="word ", times=2_000)), characters=5_000)
    state = invoke(agent, said(0), thread())
    assert results(state)[0].text == "word " * 2_000
    assert len(shown(model)[-1].text) < 5_000


def test_what_cannot_be_made_shorter_is_a_clear_error(invoke: Invoke) -> None:
    model, agent = agent_of(MemoryBackend(), characters=3)
    with pytest.raises(ContextOverflowError, match="too long for the model and could not be made shorter") as raised:
        invoke(agent, said(0), thread())
    assert isinstance(raised.value.__cause__, ContextOverflowError)
    assert model.refused == 1, "an unchanged request is not sent again"
    assert model.summaries == 0


def test_if_a_forced_summary_fails_the_error_says_so(invoke: Invoke) -> None:
    model, agent = agent_of(MemoryBackend(), *answers(4), characters=700)
    talk(invoke, agent, thread(), 0, 2)

    def fail(*_: Any) -> str:
        raise BackendError("summaries are out")

    broken = summarized_by(SummarizationMiddleware(model, backend=MemoryBackend(), keep=("messages", 2)), fail)
    saver = agent.checkpointer
    with pytest.raises(ContextOverflowError, match="summaries are out"):
        talk(invoke, create_agent(model, middleware=[broken], checkpointer=saver), thread(), 3, 9)
    state = agent.get_state(thread()).values
    assert "_summarization_event" not in state
    assert [message.id for message in state["messages"]][:1] == ["q0"]


@pytest.mark.parametrize("fails", [BackendError("Error: disk on fire"), RuntimeError("a bug")], ids=["error", "raises"])
def test_a_forced_summary_without_a_file_is_stored_later(
    invoke: Invoke, caplog: pytest.LogCaptureFixture, fails: Exception
) -> None:
    files = MemoryBackend()
    failing: dict[str, Exception] = {"write": fails}
    model, agent = agent_of(FaultyBackend(files, failing), characters=1_200)
    with caplog.at_level(logging.WARNING, "deepfs"):
        state = talk(invoke, agent, thread(), 0, 9)
    assert model.summaries == 1
    assert event_of(agent)["file_path"] is None
    assert "conversation_history" not in shown(model)[0].text
    assert "state only" in caplog.text
    assert [message.id for message in state["messages"]][::2] == [f"q{number}" for number in range(10)]
    failing.clear()
    talk(invoke, agent, thread(), 10, 19)
    assert HISTORY in shown(model)[0].text
    left = {message.id for message in shown(model)}
    text = text_of(files)
    assert [text.count(f'id="q{number}"') + (f"q{number}" in left) for number in range(20)] == [1] * 20


def test_the_summary_is_not_made_again_if_the_model_fails_after_it(invoke: Invoke) -> None:
    turns: list[Any] = answers(5)
    failing = True

    def flaky(_: Any) -> AIMessage:
        if failing:
            raise ConnectionError("lost")
        return AIMessage("at last")

    model, agent = agent_of(MemoryBackend(), *turns, flaky, flaky, characters=700)
    talk(invoke, agent, thread(), 0, 4)
    with pytest.raises(ConnectionError):
        invoke(agent, said(5), thread())
    assert model.summaries == 1
    failing = False
    state = invoke(agent, None, thread())
    assert state["messages"][-1].text == "at last"
    assert model.summaries == 1


# --- a request that would be refused ---------------------------------------------------------------------------------


def test_room_for_the_answer_is_reserved(invoke: Invoke) -> None:
    model = Narrow(script=answers(9, "word " * 100), characters=10**6, profile={"max_input_tokens": 1_000})
    summaries = SummarizationMiddleware(model, backend=MemoryBackend(), keep=("messages", 1))
    agent = create_agent(model, middleware=[summaries], checkpointer=InMemorySaver())
    talk(invoke, agent, thread(), 0, 3)
    assert model.summaries == 0
    model.max_tokens = 600
    invoke(agent, said(4), thread())
    assert model.summaries == 1


# --- shortened arguments ---------------------------------------------------------------------------------------------

LONG = "line\n" * 1_000


def written(number: int, content: Any = "") -> AIMessage:
    made = {**call("write_file", file_path=f"/{number}", content=LONG), "id": f"w{number}"}
    return AIMessage(content, tool_calls=[made, {**call("ls", path=LONG), "id": f"l{number}"}])


def args_seen(model: Talker) -> list[dict[str, Any]]:
    return [made["args"] for message in shown(model) for made in getattr(message, "tool_calls", ())]


def test_old_arguments_are_shortened_in_the_request_only(invoke: Invoke) -> None:
    files = MemoryBackend()
    block = {"type": "tool_use", "id": "w0", "name": "write_file", "input": {"file_path": "/0", "content": LONG}}
    model = Talker(script=[written(0, [block]), AIMessage("ok"), written(1), AIMessage("ok"), AIMessage("ok")])
    summaries = SummarizationMiddleware(
        model,
        backend=files,
        truncate_args_settings={
            "trigger": ("messages", 6), "keep": ("messages", 3), "max_length": 100, "truncation_text": "[cut]"
        },
    )  # fmt: skip
    agent = create_agent(model, middleware=[FilesystemMiddleware(files), summaries], checkpointer=InMemorySaver())
    invoke(agent, said(0), thread())
    assert args_seen(model)[0]["content"] == LONG
    state = invoke(agent, said(1), thread())
    first, listed, second, _ = args_seen(model)
    assert first == {"file_path": "/0", "content": f"{LONG[:20]}[cut]"}
    assert listed["path"] == LONG, "only calls that write files"
    assert second["content"] == LONG, "new ones are left alone"
    assert shown(model)[1].content[0]["input"] == first
    assert state["messages"][1].tool_calls[0]["args"]["content"] == LONG
    assert state["messages"][1].content == [block]
    assert files.read("/0").ok


def test_results_of_tools_keep_their_calls_after_a_summary(invoke: Invoke) -> None:
    turns = [calls(call("echo", text="ab", times=10)) for _ in range(5)]
    model, agent = agent_of(MemoryBackend(), *turns, characters=150)
    invoke(agent, said(0), thread())
    asked = {made["id"] for message in shown(model) for made in getattr(message, "tool_calls", ())}
    assert {message.tool_call_id for message in shown(model) if isinstance(message, ToolMessage)} == asked
    assert any(isinstance(message, HumanMessage) for message in shown(model))


@tool
def write_file(file_path: str, content: str) -> str:
    """Write."""
    return "ok"
