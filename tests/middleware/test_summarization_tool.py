"""The tool compact_conversation, and what the state keeps of a summary."""

import re
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepfs import CompositeBackend, MemoryBackend, StateBackend, create_deep_agent
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import PermissionDeniedError
from deepfs.middleware.compaction import as_seen
from deepfs.middleware.summarization import (
    SummarizationMiddleware,
    SummarizationToolMiddleware,
    create_summarization_middleware,
)
from deepfs.policy import ReadOnlyBackend
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import call, calls
from support.conversations import HISTORY, SUMMARY, Talker, event_of, said, shown, summarized_by, talk, text_of, thread

COMPACT = "compact_conversation"


def agent_of(backend: BackendProtocol | None, *turns: Any, trigger: Any = ("messages", 20), **options: Any) -> Any:
    """A deep agent with the tool, which keeps two messages."""
    model = Talker(script=[*turns, *(AIMessage(f"answer {number}") for number in range(50))])
    summarize = options.pop("summarize", None)
    options = {"keep": ("messages", 2), **options}
    summaries = SummarizationMiddleware(model, backend=backend, trigger=trigger, **options)
    if summarize:
        summarized_by(summaries, summarize)
    middleware = [summaries, SummarizationToolMiddleware(summaries)]
    return model, create_deep_agent(model, backend=backend, middleware=middleware, checkpointer=InMemorySaver())


def talked(count: int) -> list[AIMessage]:
    return [AIMessage(f"reply {number}") for number in range(count)]


# --- the tool --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [MemoryBackend, StateBackend, lambda: CompositeBackend(StateBackend(), {})])
def test_the_model_compacts_its_conversation(invoke: Invoke, storage: Any) -> None:
    model, agent = agent_of(storage(), *talked(6), calls(call(COMPACT)), calls(call("read_file", file_path=HISTORY)))
    state = talk(invoke, agent, thread())
    done, page = results(state)
    assert "Compacted: a summary stands for 12 more messages" in done.text
    assert done.status == "success"
    assert model.summaries == 1
    summary, question, *_ = shown(model)
    assert SUMMARY in summary.text
    assert HISTORY in summary.text
    assert question.id == "q6"
    assert page.text.count("<message ") == 12
    assert [message.id for message in state["messages"] if message.type == "human"] == [f"q{n}" for n in range(7)]
    assert event_of(agent)["cutoff_index"] == 12


def test_parallel_calls_are_harmless(invoke: Invoke) -> None:
    files = MemoryBackend()
    turn = calls(call(COMPACT), call("write_file", file_path="/a", content="x"), call(COMPACT), call("ls", path="/"))
    model, agent = agent_of(files, *talked(6), turn)
    state = talk(invoke, agent, thread())
    first, wrote, second, listed = results(state)
    assert "Compacted" in first.text
    assert wrote.status == listed.status == "success"
    assert "Another call of this turn" in second.text
    assert model.summaries == 1
    assert text_of(files).count("<message ") == 12
    asked = [made["id"] for message in shown(model) for made in getattr(message, "tool_calls", ())]
    assert [message.tool_call_id for message in shown(model) if message.type == "tool"] == asked


FAILURES: list[Any] = [
    ReadOnlyBackend,
    lambda files: FaultyBackend(files, {"write": RuntimeError("a bug")}),
    lambda files: FaultyBackend(files, {"download_files": PermissionDeniedError("/x")}),
]


def test_without_its_file_nothing_is_compacted(invoke: Invoke) -> None:
    for fail in FAILURES:
        model, agent = agent_of(fail(MemoryBackend()), *talked(6), calls(call(COMPACT)))
        state = talk(invoke, agent, thread())
        (result,) = results(state)
        assert result.status == "error"
        assert "Not compacted" in result.text
        assert "No message was removed" in result.text
        assert event_of(agent) is None
        assert shown(model)[0].id == "q0"
        assert state["messages"][-1].text == "answer 0", "the run went on"


def test_a_failing_summary_changes_nothing(invoke: Invoke) -> None:
    def fail(_: Any) -> str:
        raise ConnectionError("no model")

    files = MemoryBackend()
    model, agent = agent_of(files, *talked(6), calls(call(COMPACT)), calls(call(COMPACT)), summarize=fail)
    state = talk(invoke, agent, thread())
    assert [result.status for result in results(state)] == ["error", "error"]
    assert "no model" in results(state)[0].text
    assert event_of(agent) is None
    assert shown(model)[0].id == "q0"
    ids = re.findall(r'id="(q\d)"', text_of(files))
    assert sorted(ids) == sorted(set(ids)), "each message is stored once, however often it is tried"


# --- arguments of the middleware -------------------------------------------------------------------------------------


def test_wrong_arguments_are_type_errors() -> None:
    model = Talker(script=[])
    summaries: Any = SummarizationMiddleware(model)
    wrong: list[tuple[Any, str]] = [
        (lambda: SummarizationMiddleware(model, history_path_prefix="/x"), "artifacts_root"),
        (lambda: SummarizationToolMiddleware(summaries, system_prompt=1), "system_prompt"),  # type: ignore[arg-type]
        (lambda: SummarizationToolMiddleware(model), "SummarizationMiddleware"),  # type: ignore[arg-type]
        (lambda: create_summarization_middleware("openai:gpt", MemoryBackend()), "BaseChatModel"),  # type: ignore[arg-type]
    ]
    for make, told in wrong:
        with pytest.raises(TypeError, match=told):
            make()


@pytest.mark.parametrize("place", ["/blobs/", "/conversation_history/media/"])
def test_summaries_are_made_of_references_to_media(invoke: Invoke, place: str) -> None:
    given: list[Any] = []
    files = MemoryBackend()

    def summarize(messages: list[Any]) -> str:
        given.extend(messages)
        return "By hand."

    image = {"type": "image", "base64": "iVBORw0KGgo" * 20 + "aaaa", "mime_type": "image/png"}
    model, agent = agent_of(files, trigger=("messages", 5), summarize=summarize)
    if place != "/blobs/":  # Without the middleware that stores media as blobs.
        summaries = SummarizationMiddleware(model, backend=files, trigger=("messages", 5), keep=("messages", 2))
        middleware = [summarized_by(summaries, summarize)]
        agent = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    invoke(agent, {"messages": [HumanMessage([{"type": "text", "text": "look"}, image])]}, thread())
    talk(invoke, agent, thread(), 1, 2)
    path = given[0].content[1]["url"]
    assert path.startswith(place)
    assert files.download_files([path])[0].content
    assert path in text_of(files)
    assert "By hand." in shown(model)[0].text
    assert model.summaries == 0


def test_a_summarizer_of_another_kind_is_an_error(invoke: Invoke) -> None:
    def converse() -> None:
        _, agent = agent_of(MemoryBackend(), trigger=("messages", 3), summarizer=lambda _: 7)
        talk(invoke, agent, thread(), 0, 3)

    with pytest.raises(TypeError, match="summarizer"):  # Older versions of LangChain have no summarizers.
        converse()


# --- the state -------------------------------------------------------------------------------------------------------


def event(cutoff: int, **more: Any) -> dict[str, Any]:
    return {"cutoff_index": cutoff, "summary_message": HumanMessage("summary", id="s"), "file_path": None, **more}


TALK = [HumanMessage(f"{number}", id=f"{number}") for number in range(5)]


def test_a_summary_stands_for_its_messages_also_when_others_go() -> None:
    ids, new = {"last_id": "2", "kept_id": "3"}, HumanMessage("new", id="n")
    cases: list[tuple[list[Any], Any, str]] = [
        (TALK, None, "0 1 2 3 4"),
        (TALK, event(3), "s 3 4"),
        (TALK, event(5), "s"),
        (TALK[:2], event(3), "0 1"),
        (TALK, {"cutoff_index": 3}, "0 1 2 3 4"),
        (TALK, {**event(3), "cutoff_index": "3"}, "0 1 2 3 4"),
        (TALK, event(3, **ids), "s 3 4"),
        (TALK[1:], event(3, **ids), "s 3 4"),
        (TALK[3:], event(3, **ids), "s 3 4"),
        ([new, *TALK], event(3, **ids), "s 3 4"),
        ([new], event(3, **ids), "n"),
        ([], event(3, **ids), ""),
    ]
    for messages, given, expected in cases:
        assert [message.id for message in as_seen(messages, messages, given)] == expected.split()


def test_a_cleared_conversation_starts_anew(invoke: Invoke) -> None:
    model, agent = agent_of(MemoryBackend(), trigger=("messages", 6))
    talk(invoke, agent, thread(), 0, 4)
    assert SUMMARY in shown(model)[0].text
    agent.update_state(thread(), {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]})
    invoke(agent, said(9), thread())
    assert [message.id for message in shown(model)] == ["q9"]


def test_messages_from_before_a_summary_lose_what_was_bound_to_it() -> None:
    thinking = [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "so"}]
    usage: Any = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}

    def answer(name: str, content: Any = thinking, **metadata: Any) -> AIMessage:
        return AIMessage(content, id=name, usage_metadata=usage, response_metadata=metadata)

    kept = [
        answer("claude", model_provider="anthropic"),
        answer("gemini", model_provider="google_genai"),
        answer("nova", model_provider="bedrock_converse", model_name="amazon.nova"),
        answer("empty", thinking[:1]),
    ]
    messages = [HumanMessage("0", id="0"), *kept, answer("new")]
    _, *after, new = as_seen(messages, messages, event(1, created_at_index=5))
    assert [message.content for message in after] == [thinking[1:], thinking, thinking, "[No answer]"]
    assert all(message.usage_metadata is None for message in after if isinstance(message, AIMessage))
    assert new is messages[-1]
    assert messages[1].content == thinking, "the state is not changed"
