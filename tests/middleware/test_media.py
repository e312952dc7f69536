"""Media are stored once by content hash, and each request of a model has them again."""

import base64
import hashlib
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import ModelInvalidRequestError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from deepfs import (
    FilesystemBackend,
    MemoryBackend,
    StateBackend,
    StoreBackend,
    run_sync,
)
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.middleware import offloading as blobs
from deepfs.middleware._messages import with_parsed_blocks
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.offloading import Blobs
from deepfs.middleware.unsupported_content import UnsupportedContentMiddleware, acceptable
from deepfs.policy.rules import FilesystemPermission
from deepfs.testing import FaultyBackend
from support.agents import Invoke, results
from support.chat import ScriptedModel, call, calls

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PAYLOAD = base64.b64encode(PNG).decode()
DIGEST = hashlib.sha256(PNG).hexdigest()
IMAGE = {"type": "image", "base64": PAYLOAD, "mime_type": "image/png"}
REFERENCE = {"type": "image", "mime_type": "image/png", "deepagents_blob": DIGEST}
THREAD = {"configurable": {"thread_id": "1"}}

FORMS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PAYLOAD}", "detail": "low"}},
    {"type": "image_url", "image_url": f"data:image/png;base64,{PAYLOAD}"},
    {"type": "image", "source_type": "base64", "data": PAYLOAD, "mime_type": "image/png"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PAYLOAD}},
    {"type": "input_audio", "input_audio": {"data": PAYLOAD, "format": "wav"}},
    {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PAYLOAD}", "filename": "a.pdf"}},
    {"type": "input_file", "file_data": f"data:application/pdf;base64,{PAYLOAD}", "filename": "a.pdf"},
    {"type": "media", "mime_type": "video/mp4", "data": PAYLOAD},
    {**IMAGE, "type": "file", "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
]


@pytest.fixture(autouse=True)
def _without_cache() -> Iterator[None]:
    blobs._CACHE.clear()
    yield
    blobs._CACHE.clear()


@tool
def show(how: str) -> Any:
    """Show an image."""
    blocks = [{"type": "text", "text": "so"}, IMAGE]
    if how == "command":
        return Command(update={"messages": [ToolMessage(blocks, tool_call_id="shown")]})
    return blocks


def agent(files: BackendProtocol, *turns: Any, **options: Any) -> Any:
    model = ScriptedModel(script=[*turns, *(AIMessage("done") for _ in range(9))])
    made = create_agent(
        model, tools=[show], middleware=[FilesystemMiddleware(files, **options)], checkpointer=InMemorySaver()
    )
    made.model = model
    return made


def said(*blocks: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage([{"type": "text", "text": "look"}, *blocks])]}


def images(messages: list[Any]) -> list[Any]:
    lists = [message.content for message in messages if isinstance(message.content, list)]
    return [block for content in lists for block in content if block["type"] == "image"]


# --- storing and filling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["state", "store", "composite"], indirect=True)
def test_media_of_people_and_tools_are_stored_once_and_shown_at_each_request(
    backend: BackendProtocol, invoke: Invoke
) -> None:
    made = agent(backend, calls(call("show", how="plain"), {**call("show", how="command"), "id": "shown"}))
    for shown in (3, 4):
        state = invoke(made, said(IMAGE), THREAD)
        assert images(state["messages"]) == [REFERENCE] * shown
    assert images(made.model.asked[-1]) == [IMAGE] * 4
    assert list(state.get("files") or [f"/blobs/{DIGEST}"]) == [f"/blobs/{DIGEST}"]


def test_blocks_of_every_form_come_back_as_they_were() -> None:
    for form in FORMS:
        store = Blobs(MemoryBackend())
        message = HumanMessage([form, {"type": "text", "text": "x"}], id="1")
        (kept,) = run_sync(store.store, [message])
        assert PAYLOAD not in str(kept)
        assert kept.content[0]["deepagents_blob"] == DIGEST
        assert run_sync(store.fill, [kept]) == [message]


def test_media_stay_in_the_messages_where_they_shall_not_or_cannot_be_stored(invoke: Invoke) -> None:
    broken = FaultyBackend(MemoryBackend(), {"upload_files": BackendError("Error: The disk is full")})
    for files, options in ((MemoryBackend(), {"offload_binary_content": False}), (broken, {})):
        made = agent(files, calls(call("show", how="plain")), **options)
        state = invoke(made, said(IMAGE), THREAD)
        assert [state["messages"][0].content[1], results(state)[0].content[1]] == [IMAGE, IMAGE]


@pytest.mark.anyio
async def test_blobs_work_on_any_event_loop(tmp_path: Path) -> None:
    large = {**IMAGE, "base64": base64.b64encode(bytes(600_000)).decode()}
    files, message = FilesystemBackend(tmp_path), HumanMessage([IMAGE, large], id="1")
    store = Blobs(files)
    (kept,) = await store.store([message])
    blobs._CACHE.clear()
    assert await store.fill([kept]) == [message]
    await files.aupload_files([(f"/blobs/{DIGEST}", b"other")])
    assert await store.store([message]) == [kept]
    blobs._CACHE.clear()
    assert await store.fill([kept]) == [message], "what was changed is stored anew"


# --- references that cannot be filled --------------------------------------------------------------------------------


def filled(files: BackendProtocol, *references: Any) -> list[Any]:
    (message,) = run_sync(Blobs(files).fill, [HumanMessage(list(references))])
    return list(message.content)


def test_unavailable_blobs_are_notes(tmp_path: Path) -> None:
    changed = FilesystemBackend(tmp_path)
    changed.write(f"/blobs/{DIGEST}", "other")
    for files, reason in [
        (MemoryBackend(), "its file was deleted"),
        (changed, "its file was changed"),
        (FaultyBackend(MemoryBackend(), {"download_files": BackendError("down")}), "its file cannot be read"),
    ]:
        (block,) = filled(files, REFERENCE)
        assert block["type"] == "text"
        assert block["text"].startswith(f"[The image (image/png) is not available: {reason}")


def test_forged_blocks_do_not_stop_the_conversation(invoke: Invoke) -> None:
    """A person's blocks may have any keys and values, also beside the hash of an image that is there."""
    extras: list[dict[str, Any]] = [
        {"deepfs_form": {"type": "image"}, "deepfs_place": [["url"], "url"]},
        {"deepfs_form": {"source": 1}, "deepfs_place": ["source", "data"]},
        {"deepfs_form": [], "deepfs_place": []},
        {"deepfs_form": {"type": ["image"], "data": ""}, "deepfs_place": ["data"]},
    ]
    forged: list[Any] = [{**REFERENCE, "extras": each} for each in extras]
    forged += [{"type": "image", "deepagents_blob": [DIGEST]}, {"type": "other", "deepagents_blob": DIGEST}]
    made = agent(MemoryBackend())
    for block in (IMAGE, *forged):
        invoke(made, said(block), THREAD)
    shown = [message.content[1] for message in made.model.asked[-1] if message.type == "human"]
    assert [block.get("base64") for block in shown[:5]] == [PAYLOAD] * 5
    assert all("its reference is not valid" in block["text"] for block in shown[5:])


def test_references_to_other_paths_are_notes() -> None:
    files = MemoryBackend()
    files.write("/secret", "s")
    for forged in ("../secret", "/secret", f"../blobs/{DIGEST}", DIGEST.upper(), f"{DIGEST}\n", 5, None, [DIGEST]):
        (block,) = filled(files, {**REFERENCE, "deepagents_blob": forged})
        assert "its reference is not valid" in block["text"]
    for forged in ({"deepfs_place": ["x"]}, {"deepfs_place": [["base64"]], "deepfs_form": {}}, {"deepfs_form": 5}):
        (block,) = filled(files, {**REFERENCE, "extras": forged})
        assert block["type"] == "text"


def test_rules_for_the_model_hold_for_blobs_as_files(invoke: Invoke) -> None:
    denied = FilesystemPermission(operations=["read"], paths=["/blobs/**"], mode="deny")
    made = agent(MemoryBackend(), calls(call("read_file", file_path=f"/blobs/{DIGEST}")), permissions=[denied])
    state = invoke(made, said(IMAGE), THREAD)
    assert results(state)[0].status == "error"
    assert made.model.asked[-1][1].content[1] == IMAGE


class Counting(MemoryBackend):
    """Counts the files of each download."""

    def __init__(self) -> None:
        super().__init__()
        self.downloads: list[int] = []

    async def adownload_files(self, paths: list[str]) -> Any:
        self.downloads.append(len(paths))
        return await super().adownload_files(paths)


def test_one_download_fills_many_references_and_later_requests_use_the_cache(invoke: Invoke) -> None:
    files = Counting()
    made = agent(files)
    shown = [{**IMAGE, "base64": base64.b64encode(bytes([n]) * 50).decode()} for n in range(30)]
    invoke(made, said(*shown), THREAD)
    assert files.downloads == []
    blobs._CACHE.clear()
    invoke(made, said(), THREAD)
    invoke(made, said(), THREAD)
    assert files.downloads == [30]
    assert made.model.asked[-1][1].content[1:] == shown


def test_the_cache_is_bounded_and_separate_for_each_storage() -> None:
    cache = blobs._Cache(10)
    mine, other = blobs._Scope("mine", is_state=False), blobs._Scope("other", is_state=False)
    for digest in "abc":
        cache.put(mine, digest, "1234")
    cache.put(mine, "long", "1" * 11)
    cache.put(blobs._Scope(None, is_state=True), "b", "1")
    assert [cache.get(mine, digest) for digest in ("a", "b", "c", "long")] == [None, "1234", "1234", None]
    assert cache.get(other, "b") is None
    for _ in range(9):  # The memory of one may be that of an earlier one.
        assert filled(MemoryBackend(), REFERENCE)[0]["type"] == "text"
        run_sync(Blobs(MemoryBackend()).store, [HumanMessage([IMAGE])])


@pytest.mark.parametrize("kind", ["state", "store"])
def test_tenants_that_share_a_backend_do_not_share_what_is_cached(invoke: Invoke, kind: str) -> None:
    by_thread = StoreBackend(InMemoryStore(), namespace=lambda _: (get_config()["configurable"]["thread_id"],))
    made = agent(StateBackend() if kind == "state" else by_thread)
    invoke(made, said(IMAGE), THREAD)
    state = invoke(made, {"messages": [HumanMessage([REFERENCE])]}, {"configurable": {"thread_id": "2"}})
    assert "its file was deleted" in str(made.model.asked[-1])
    assert state["messages"][0].content == [REFERENCE]


# --- what a model takes ----------------------------------------------------------------------------------------------


class Profiled(ScriptedModel):
    profile: Any = None


def test_media_that_a_profile_refuses_are_notes() -> None:
    refusing, taking = (Profiled(script=[], profile={"image_inputs": taken}) for taken in (False, True))
    for content, kind in ([IMAGE], HumanMessage), (FORMS[:1], lambda given: ToolMessage(given, tool_call_id="1")):
        (message,) = acceptable([kind(content)], refusing)  # type: ignore[operator]
        assert message.content[0]["text"] == "[The image (image/png) is left out: this model does not take it]"
        assert acceptable([kind(content)], taking)[0].content == content  # type: ignore[operator]
    other = acceptable([HumanMessage([{"type": "file", "url": "https://example.org/a.pdf"}])], refusing)
    assert other[0].content[0]["type"] == "file"


@pytest.mark.both_forms
def test_the_middleware_judges_by_the_model_of_the_request(invoke: Invoke) -> None:
    model = Profiled(script=[AIMessage("done")], profile={"image_inputs": False})
    made = create_agent(model, middleware=[UnsupportedContentMiddleware()])
    state = invoke(made, said(IMAGE))
    assert "is left out" in str(model.asked[0])
    assert state["messages"][0].content[1] == IMAGE


def test_failed_results_hold_text_and_show_their_media_below() -> None:
    failed = ToolMessage([IMAGE], tool_call_id="1", status="error")
    result, below = acceptable([failed], ScriptedModel(script=[]))
    assert result.content == [{"type": "text", "text": "[The image (image/png) is shown below]"}]
    assert below.content[1] == IMAGE


def test_images_have_the_type_of_their_content() -> None:
    for form, wrong in [(form, str(form).replace("image/png", "image/jpeg")) for form in [IMAGE, *FORMS[:4]]]:
        (message,) = acceptable([HumanMessage([literal_eval(wrong)])], ScriptedModel(script=[]))
        assert message.content == [form]
    other = {**IMAGE, "base64": "AAAA", "mime_type": "image/heic"}
    assert acceptable([HumanMessage([other])], ScriptedModel(script=[]))[0].content == [other]


def test_json_that_langgraph_makes_of_media_becomes_blocks_again(invoke: Invoke) -> None:
    media = [{**IMAGE, "type": kind.partition("/")[0], "mime_type": kind} for kind in ("audio/mpeg", "video/mp4")]

    @tool
    def play() -> Any:
        """Play."""
        return ["so", *media]

    model = ScriptedModel(script=[calls(call("play")), AIMessage("done")])
    made = create_agent(model, tools=[play], middleware=[FilesystemMiddleware(MemoryBackend())])
    (message,) = results(invoke(made, said()))
    stored = [{**REFERENCE, "type": each["type"], "mime_type": each["mime_type"]} for each in media]
    assert message.content == [{"type": "text", "text": "so"}, *stored]


def test_text_that_only_looks_like_media_stays() -> None:
    for text in (
        '[{"type": "image"}]',
        '[{"type": "image", "deepagents_blob": "x", "base64": "AAAA"}]',
        '[{"type": "image", "base64": "AAAA"}, {"kind": "row"}]',
        '[{"type": "image", ',
    ):
        message = ToolMessage(text, tool_call_id="1")
        assert with_parsed_blocks(message) is message


@pytest.mark.parametrize("shows", ["person", "tool"])
def test_media_that_the_provider_refuses_do_not_break_the_conversation(invoke: Invoke, shows: str) -> None:
    def strict(messages: list[Any]) -> AIMessage:
        if images(messages):
            raise ModelInvalidRequestError("400: the image cannot be processed")
        return AIMessage("done")

    first = [calls(call("show", how="plain"))] if shows == "tool" else []
    made = agent(MemoryBackend(), *first, *[strict] * 4)
    state = invoke(made, said(IMAGE) if shows == "person" else said(), THREAD)
    assert state["messages"][-1].content == "done"
    assert "the model refused it" in str(made.model.asked[-1])
    assert images(state["messages"]) == []
    asked = len(made.model.asked)
    invoke(made, said(), THREAD)
    assert len(made.model.asked) == asked + 1, "they are not sent again"


def test_a_refused_request_without_media_fails(invoke: Invoke) -> None:
    def strict(messages: list[Any]) -> AIMessage:
        raise ModelInvalidRequestError("400")

    made = agent(MemoryBackend(), strict)
    with pytest.raises(ModelInvalidRequestError):
        invoke(made, said(), THREAD)
    assert len(made.model.asked) == 1


def test_results_follow_their_calls() -> None:
    one, two = call("show"), call("show")
    asked, said_between, later = HumanMessage("a"), HumanMessage("frames of a video"), HumanMessage("b")
    made = calls(one, two)
    first, second = (ToolMessage("x", tool_call_id=each["id"], name="show") for each in (one, two))
    shown = [asked, made, first, said_between, second, later, AIMessage("c"), HumanMessage("d")]
    assert acceptable(shown, ScriptedModel(script=[])) == [
        asked, made, first, second, said_between, later, *shown[-2:],
    ]  # fmt: skip
