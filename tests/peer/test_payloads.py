"""An agent's requests to Anthropic, OpenAI and Google, as LangChain's classes build them, obey the providers' rules."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from itertools import count
from typing import Annotated, Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, ToolException, tool
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import PrivateAttr

from deepfs import FilesystemMiddleware, MemoryBackend, SubAgent, create_deep_agent
from deepfs.middleware import offloading as blobs
from deepfs.middleware.unsupported_content import acceptable
from support.agents import Sandbox, results
from support.chat import call, calls
from support.payload_rules import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

GO = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "1"}}


class Scripted(BaseChatModel):
    """Answers from a script instead of calling the provider, and records each request as the provider would get it."""

    _script: Any = PrivateAttr(default_factory=list)
    _taken: Any = PrivateAttr(default_factory=count)
    _requests: Any = PrivateAttr(default_factory=list)

    def play(self, *turns: AIMessage) -> Any:
        self._script.extend([*turns, *(AIMessage("done") for _ in range(60))])
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        self._requests.append(self.request(messages, **options))  # type: ignore[attr-defined]
        answer = self._script[next(self._taken)]
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy(deep=True))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        return self._generate(messages, **options)

    @property
    def faults(self) -> list[str]:
        """Violations of the provider's rules in any of the requests."""
        assert self._requests
        return [fault for request in self._requests for fault in self.judged(request)]  # type: ignore[attr-defined]

    @property
    def last(self) -> str:
        """The last request as text."""
        return str(self._requests[-1])


class Anthropic(Scripted, ChatAnthropic):
    def request(self, messages: Any, **options: Any) -> Any:
        return self._get_request_payload(messages, **options)

    def judged(self, request: Any) -> Iterator[str]:
        return anthropic_faults(request)


class OpenAIChat(Scripted, ChatOpenAI):
    def request(self, messages: Any, **options: Any) -> Any:
        return self._get_request_payload(messages, **options)

    def judged(self, request: Any) -> Iterator[str]:
        return openai_chat_faults(request)


class OpenAIResponses(OpenAIChat):
    def judged(self, request: Any) -> Iterator[str]:
        return openai_responses_faults(request)


class Google(Scripted, ChatGoogleGenerativeAI):
    def request(self, messages: Any, **options: Any) -> Any:
        return self._prepare_request(messages, **options)

    def judged(self, request: Any) -> Iterator[str]:
        return google_faults(request)


MODELS: dict[str, Callable[[], Any]] = {
    "anthropic": lambda: Anthropic(model="claude-sonnet-5-5", api_key="none"),
    "anthropic without profile": lambda: Anthropic(model="claude-of-mine", api_key="none"),
    "openai": lambda: OpenAIChat(model="gpt-5", api_key="none"),
    "openai without profile": lambda: OpenAIChat(model="gpt-of-mine", api_key="none"),
    "openai without images": lambda: OpenAIChat(model="gpt-3.5-turbo", api_key="none"),
    "openai responses": lambda: OpenAIResponses(model="gpt-5", api_key="none", use_responses_api=True),
    "google": lambda: Google(model="gemini-2.5-pro", google_api_key="none"),
    "google 3": lambda: Google(model="gemini-3-pro-preview", google_api_key="none"),
}


def with_each_model(check: Callable[[Any], None]) -> Callable[[], None]:
    """A test that makes requests with each model, all of which obey the rules of the provider."""

    def test() -> None:
        for name, make in MODELS.items():
            model = make()
            try:
                check(model)
                assert model.faults == []
            except AssertionError as error:
                error.add_note(f"The model: {name}")
                raise

    return test


def run(model: Any, *turns: AIMessage, **options: Any) -> dict[str, Any]:
    agent = create_deep_agent(model.play(*turns), checkpointer=InMemorySaver(), **options)
    state: dict[str, Any] = agent.invoke(GO, THREAD)
    return state


# --- system messages -------------------------------------------------------------------------------------------------

PROMPTS = [
    None,
    "",
    " \n",
    "Be brief.",
    SystemMessage(""),
    SystemMessage([]),
    SystemMessage([{"type": "text", "text": ""}, {"type": "text", "text": "Be brief."}]),
]


@with_each_model
def test_system_messages_are_valid(model: Any) -> None:
    files = MemoryBackend()
    files.write("/empty", "")
    bare = FilesystemMiddleware(files, system_prompt="")
    more: list[dict[str, Any]] = [{"memory": ["/empty", "/none"]}, {"middleware": [bare]}]
    model.play()
    agents = [
        create_deep_agent(model, backend=files, system_prompt=prompt, **each) for prompt in PROMPTS for each in more
    ]

    async def run_all() -> None:
        # In one event loop, since each sync run would start threads of its own, a hundred in this test.
        for agent in agents:
            await agent.ainvoke(GO)

    asyncio.run(run_all())


# --- results of tools ------------------------------------------------------------------------------------------------

CONTENTS = {
    "/empty": b"",
    "/blank": b"\n\n",
    "/a.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "/a.gif": b"GIF89a" + bytes(range(256)),
    "/a.jpg": b"\xff\xd8\xff" + bytes(range(256)),
    "/a.mp3": b"ID3\xff" + bytes(range(256)),
    "/a.mp4": b"\0\0\0\x18ftypmp42" + bytes(range(256)),
    "/a.pdf": b"%PDF-1.7\xff" + bytes(range(256)),
    "/a.bin": b"\0" + bytes(range(256)),
    "/a.webp": b"RIFF\x04\1\0\0WEBPVP8 " + bytes(range(256)),
    "/a.bmp": b"BM\xff" + bytes(range(256)),
    "/a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "/latin.txt": "caf\xe9\n".encode("latin-1") * 100,
    "/huge.txt": b"word " * 40_000,
    "/wrong.png": bytes(range(256)),
}


def filled() -> Any:
    files = Sandbox()
    files.upload_files(list(CONTENTS.items()))
    return files


@with_each_model
def test_results_of_every_tool_are_valid(model: Any) -> None:
    made = [
        call("ls", path="/nothing"),
        call("glob", pattern="*.none"),
        call("grep", pattern="none"),
        call("grep", pattern="none", output_mode="count"),
        call("write_file", file_path="/new", content=""),
        call("edit_file", file_path="/none", old_string="a", new_string="b"),
        call("delete", file_path="/empty"),
        call("move", source="/blank", destination="/b"),
        call("execute", command=" \n"),
        call("execute", command=""),
        call("write_todos", todos=[]),
        call("ls", path=5),
    ]
    state = run(
        model, calls(*made), calls(call("write_todos", todos=[]), call("write_todos", todos=[])), backend=filled()
    )
    assert len(results(state)) == len(made) + 2


@with_each_model
def test_files_of_all_kinds_are_valid_in_later_requests(model: Any) -> None:
    reads = calls(*(call("read_file", file_path=path) for path in CONTENTS), call("ls"))
    agent = create_deep_agent(model.play(reads), backend=filled(), checkpointer=InMemorySaver())
    agent.invoke(GO, THREAD)
    agent.invoke(GO, THREAD)


@with_each_model
def test_an_image_is_shown_to_models_that_accept_images(model: Any) -> None:
    run(model, calls(call("read_file", file_path="/a.png")), backend=filled())
    images = (model.profile or {}).get("image_inputs", True)
    shows = "iVBORw0KGgo" in model.last or "inline_data" in model.last
    assert shows is images, model.last[-2_000:]
    assert ("is left out" in model.last) is not images


@with_each_model
def test_results_of_foreign_tools_are_valid(model: Any) -> None:
    answers: list[Any] = ["", " ", [], [""], [{"type": "text", "text": ""}], "word " * 40_000]
    answers.append([{"type": "text", "text": " "}, {"type": "image", "base64": "AAAA" * 100, "mime_type": "image/png"}])
    answers.append([{"type": "text", "text": " "}, {"type": "text", "text": "x"}])
    answers.append([{"type": "image", "base64": "AAAA" * 100, "mime_type": "image/tiff"}])

    @tool
    def other(number: int) -> Any:
        """Something else."""
        return answers[number]

    run(
        model, calls(*(call("other", number=number) for number in range(len(answers)))), tools=[other], backend=filled()
    )


PNG = base64.b64encode(CONTENTS["/a.png"]).decode()
PDF = base64.b64encode(CONTENTS["/a.pdf"]).decode()
MEDIA: list[dict[str, Any]] = [
    *({"type": "image", "base64": PNG, "mime_type": f"image/{kind}"} for kind in ("png", "jpeg", "gif", "webp")),
    *({"type": "image", "base64": "PHN2Zz" * 60, "mime_type": f"image/{kind}"} for kind in ("bmp", "svg+xml")),
    {"type": "image", "base64": base64.b64encode(CONTENTS["/a.bmp"]).decode(), "mime_type": "image/png"},
    *({"type": "audio", "base64": PNG, "mime_type": f"audio/{kind}"} for kind in ("mp3", "wav", "x-amr")),
    {"type": "video", "base64": PNG, "mime_type": "video/mp4"},
    *(
        {"type": "file", "base64": PNG, "mime_type": f"application/{kind}", "extras": {"filename": "a"}}
        for kind in ("pdf", "zip", "octet-stream")
    ),
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PNG}"}},
    {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
    {"type": "image", "mime_type": "image/png", "deepagents_blob": "0" * 64},
    {"type": "image", "mime_type": "image/png", "deepagents_blob": "../AGENTS.md"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "a.pdf"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a text"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": " "}},
    {"type": "text-plain", "text": "a text", "mime_type": "text/plain"},
    {"type": "file", "source_type": "text", "text": "a text", "mime_type": "text/plain"},
    {"type": "media", "mime_type": "image/png", "data": PNG},
    {"type": "media", "mime_type": "application/pdf", "file_uri": "https://example.org/files/1"},
    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
    {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
    {"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
    {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"},
    {"type": "image", "url": f"data:image/png;base64,{PNG}"},
    {"type": "image", "base64": PNG.rstrip("="), "mime_type": "IMAGE/PNG"},
    {"type": "image", "base64": "%%%%", "mime_type": "image/png"},
    {"type": "image", "base64": "", "mime_type": "image/png"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
]


@tool(response_format="content_and_artifact")
def with_artifact() -> Any:
    """Something with more beside it."""
    return MEDIA[:1], {"whole": b"more"}


@tool
def medium(number: int, tool_call_id: Annotated[str, InjectedToolCallId], how: str = "plain") -> Any:
    """A medium."""
    blocks = [{"type": "text", "text": ""}, MEDIA[number]]
    if how == "command":
        return Command(update={"messages": [ToolMessage(blocks, tool_call_id=tool_call_id)]})
    if how == "failed":
        return ToolMessage(blocks, tool_call_id=tool_call_id, status="error", artifact={"a": 1})
    return blocks


@tool
def failing() -> str:
    """Fails without a word."""
    raise ToolException


failing.handle_tool_error = True


@with_each_model
def test_media_from_foreign_tools_are_valid(model: Any) -> None:
    made = [call("medium", number=number) for number in range(len(MEDIA))]
    made += [call("medium", number=number, how=how) for number in (0, 7, 10, 11) for how in ("command", "failed")]
    state = run(
        model,
        calls(*made, call("with_artifact"), call("failing")),
        tools=[medium, with_artifact, failing],
        backend=filled(),
    )
    assert PNG not in str(state["messages"])
    assert results(state)[-2].artifact == {"whole": b"more"}


@with_each_model
def test_media_from_people_are_valid(model: Any) -> None:
    files = filled()
    agent = create_deep_agent(model.play(), backend=files, checkpointer=InMemorySaver())
    said = [HumanMessage([{"type": "text", "text": "look"}, block]) for block in MEDIA]
    agent.invoke({"messages": said}, THREAD)
    images = (model.profile or {}).get("image_inputs", True)
    assert ("iVBORw0KGgo" in model.last or "inline_data" in model.last) is images
    files.delete("/blobs")
    blobs._CACHE.clear()
    agent.invoke(GO, THREAD)
    assert ("its file was deleted" in model.last) is images


@with_each_model
def test_texts_without_a_block_are_valid(model: Any) -> None:
    agent = create_deep_agent(model.play(), backend=filled(), checkpointer=InMemorySaver())
    agent.invoke({"messages": [HumanMessage(["look", MEDIA[0], " "])]}, THREAD)
    assert "look" in model.last


@with_each_model
def test_media_in_answers_of_other_models_are_valid(model: Any) -> None:
    agent = create_deep_agent(model.play(), backend=filled(), checkpointer=InMemorySaver())
    answers = (MEDIA[:1], *([{"type": "text", "text": "see"}, block] for block in MEDIA))
    talk = [message for blocks in answers for message in (HumanMessage("go"), AIMessage(blocks))]
    agent.invoke({"messages": [*talk, HumanMessage("on")]}, THREAD)


def test_media_in_answers_of_the_same_provider_stay() -> None:
    for name, provider in (("openai responses", "openai"), ("google", "google_genai")):
        answer = AIMessage(MEDIA[:1], response_metadata={"model_provider": provider})
        sent = acceptable([HumanMessage("go"), answer, HumanMessage("on")], MODELS[name]())
        assert sent[1] is answer


def test_documents_that_are_texts_are_sent() -> None:
    plain = {"type": "text-plain", "text": "a text", "mime_type": "text/plain"}
    former = {"type": "file", "source_type": "text", "text": "a text", "mime_type": "text/plain"}
    for document in (former, plain):
        for name in ("anthropic", "openai", "google"):
            (sent,) = acceptable([HumanMessage([document])], MODELS[name]())
            assert sent.content == [plain if name == "anthropic" else {"type": "text", "text": "a text"}]


def test_urls_keep_what_the_model_fetches() -> None:
    url = "https://example.org/a"
    image = {"type": "image", "url": url}
    forms: list[Any] = [
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    for name in ("anthropic", "openai", "google"):
        (sent,) = acceptable([HumanMessage([image, *forms])], MODELS[name]())
        own = forms[2] if name == "anthropic" else image
        assert sent.content == [image, image, image, own]
    known = {"type": "input_image", "file_id": "file-1"}
    (sent,) = acceptable([HumanMessage([known])], MODELS["openai responses"]())
    assert sent.content == [known]
    file = {"type": "file", "url": url, "mime_type": "application/pdf"}
    for name, is_sent in (("anthropic", True), ("openai", False), ("openai responses", True)):
        (sent,) = acceptable([HumanMessage([file])], MODELS[name]())
        assert (sent.content == [file]) is is_sent


# --- subagents, people, repairs, summaries ---------------------------------------------------------------------------


@with_each_model
def test_requests_of_subagents_are_valid(model: Any) -> None:
    silent = SubAgent(name="silent", description="Says nothing.", system_prompt="")
    state = run(
        model,
        calls(call("task", description="say nothing", subagent_type="silent")),
        calls(call("read_file", file_path="/a.mp3"), call("read_file", file_path="/a.png")),
        AIMessage(""),
        calls(
            call("task", description=" \n", subagent_type="silent"),
            call("task", description="x", subagent_type="none"),
        ),
        subagents=[silent],
        backend=filled(),
    )
    assert [message.status for message in results(state)] == ["success", "error", "error"]


DECISIONS: list[dict[str, Any]] = [
    {"type": "reject"},
    {"type": "reject", "message": ""},
    {"type": "respond", "message": ""},
    {"type": "respond", "message": "It is there."},
    {"type": "edit", "edited_action": {"name": "ls", "args": {"path": "/"}}},
    {"type": "edit", "edited_action": {"name": "read_file", "args": {"file_path": "/a.png"}}},
]


@with_each_model
def test_requests_after_decisions_of_a_person_are_valid(model: Any) -> None:
    turn = calls(call("write_file", file_path="/a", content="x"), call("ls"))
    agent = create_deep_agent(
        model.play(*[turn, AIMessage("done")] * len(DECISIONS)),
        backend=filled(),
        interrupt_on={"write_file": True},
        checkpointer=InMemorySaver(),
    )
    for number, decision in enumerate(DECISIONS):
        thread: Any = {"configurable": {"thread_id": str(number)}}
        agent.invoke(GO, thread)
        state = agent.invoke(Command(resume={"decisions": [decision]}), thread)
        assert state["messages"][-1].text == "done"


@with_each_model
def test_a_conversation_without_tool_results_is_valid(model: Any) -> None:
    wrong = {"type": "invalid_tool_call", "id": "wrong", "name": "ls", "args": '{"path": ', "error": None}
    agent = create_deep_agent(
        model.play(
            AIMessage("", invalid_tool_calls=[wrong]),
            AIMessage("", tool_calls=[call("ls")], invalid_tool_calls=[{**wrong, "id": "wrong too"}]),
            AIMessage("so"),
            AIMessage(""),
            calls(call("write_file", file_path="/a", content="x"), call("ls")),
        ),
        interrupt_on={"write_file": True},
        checkpointer=InMemorySaver(),
        backend=filled(),
    )
    for _ in range(5):
        agent.invoke(GO, THREAD)


BLANK: dict[str, Any] = {"type": "text", "text": " "}


@with_each_model
def test_a_conversation_with_blank_messages_and_blocks_is_valid(model: Any) -> None:
    agent = create_deep_agent(
        model.play(
            AIMessage("\n", tool_calls=[call("ls")]),
            AIMessage([BLANK], tool_calls=[call("ls")]),
            AIMessage([BLANK, {"type": "text", "text": "so"}]),
        ),
        checkpointer=InMemorySaver(),
    )
    for said in ("", [], [BLANK, {"type": "text", "text": "go"}], "go"):
        state = agent.invoke({"messages": [HumanMessage(said)]}, THREAD)
    assert state["messages"][0].content == "", "what is stored stays as it is"


@with_each_model
def test_summarized_conversations_are_valid(model: Any) -> None:
    model.profile = {**(model.profile or {}), "max_input_tokens": 2_000}
    turns = [  # Some of them are taken as summaries.
        turn
        for _ in range(6)
        for turn in (
            AIMessage("Let me see.", tool_calls=[call("read_file", file_path="/a.png")]),
            AIMessage("word " * 400),
        )
    ]
    agent = create_deep_agent(model.play(*turns), backend=filled(), checkpointer=InMemorySaver())
    for number in range(5):
        agent.invoke({"messages": [HumanMessage(f"question {number}")]}, THREAD)
    assert "/conversation_history/1.md" in model.last


def test_the_checks_find_invalid_requests() -> None:
    """Each check finds the fault in an invalid request."""
    pixel = [{"type": "audio", "base64": "AAAA" * 100, "mime_type": "audio/mpeg"}]
    asked = [SystemMessage([{"type": "text", "text": ""}]), HumanMessage("go"), calls(call("ls"))]
    for name in ("anthropic", "openai", "openai responses", "google"):
        made = MODELS[name]()
        assert list(made.judged(made.request(asked))), name
        if name != "anthropic":
            answer = [HumanMessage("go"), calls({**call("ls"), "id": "c"}), _result(pixel)]
            found = list(made.judged(made.request(answer)))
            assert bool(found) is (name != "google"), name


def _result(content: Any) -> Any:
    return ToolMessage(content, tool_call_id="c", name="ls")
