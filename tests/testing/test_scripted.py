"""The model with a script: alone, and as the model of an agent."""

import operator
from functools import reduce
from pathlib import Path

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage

from deepfs import MemoryBackend, create_deep_agent
from deepfs.testing import Call, ScriptedModel, ScriptEndedError, Turn

# LangChain's models run on asyncio only.
pytestmark = pytest.mark.anyio

SCRIPT = """
[[turn]]
text = "I write  it down."

[[turn.calls]]
name = "write_file"
args = { file_path = "/ada.md", content = "Ada\\nprefers tea." }

[[turn.calls]]
name = "ls"

[[turn]]
text = "Done."
"""


async def test_it_answers_with_its_turns_and_says_when_they_end() -> None:
    model = ScriptedModel(script=["one", lambda messages: f"heard {messages[-1].text}"])
    assert (await model.ainvoke("a")).text == "one"
    assert model.bind_tools([]).invoke("b").text == "heard b"
    with pytest.raises(
        ScriptEndedError, match=r"no turn for request 3 to the model\. The last message is of human: 'c'"
    ):
        await model.ainvoke("c")
    assert [request[-1].text for request in model.requests] == ["a", "b", "c"]


async def test_a_turn_may_be_for_certain_requests_only() -> None:
    model = ScriptedModel(script=[Turn("of two", when="two"), Turn("of one", when="one"), "of any"])
    asked = ["task one", "task three", "task two"]
    assert [model.invoke([HumanMessage(task), AIMessage("two")]).text for task in asked] == [
        "of one",
        "of any",
        "of two",
    ]


async def test_it_streams_its_text_in_pieces_and_its_calls() -> None:
    turn = Turn("I write  it down.", [Call("write_file", {"file_path": "/a", "content": "é"}), Call("ls")])
    model = ScriptedModel(script=[turn, turn])
    streamed = [[chunk async for chunk in model.astream("a")], list(model.stream("b"))]
    for pieces in streamed:
        assert [piece.text for piece in pieces if piece.text] == ["I", " write", "  it", " down."]
        whole = reduce(operator.add, pieces)
        assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
            (each.name, each.args) for each in turn.calls
        ]
    ids = [call["id"] for pieces in streamed for call in reduce(operator.add, pieces).tool_calls]
    assert len({*ids}) == 4


async def test_a_script_in_a_file_drives_an_agent(tmp_path: Path) -> None:
    script = anyio.Path(tmp_path, "script.toml")
    await script.write_text(SCRIPT)
    files = MemoryBackend()
    model = await anyio.to_thread.run_sync(ScriptedModel.from_file, script)
    agent = create_deep_agent(model, backend=files)
    final = await agent.ainvoke({"messages": [HumanMessage("go")]})
    assert final["messages"][-1].text == "Done."
    assert (await files.adownload_files(["/ada.md"]))[0].content == b"Ada\nprefers tea."


def test_a_bad_file_is_named_with_the_place(tmp_path: Path) -> None:
    for script, reason in {
        "[[turn]\n": "line 1",
        "[[turn]]\nsay = 'hi'": "unknown field `say`",
        "[[turn]]\ntext = 1": r"\$.turn\[0\].text",
    }.items():
        (tmp_path / "bad.toml").write_text(script)
        with pytest.raises(ValueError, match=f"bad.toml is not a script for a model: .*{reason}"):
            ScriptedModel.from_file(tmp_path / "bad.toml")
