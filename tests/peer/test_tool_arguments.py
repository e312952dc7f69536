"""What programs and models of deepagents pass to the file tools is accepted here."""

from pathlib import Path
from typing import Any

import pytest
from deepagents import FilesystemPermission as PeerPermission
from deepagents.middleware import filesystem as peer

from benchmarks.scenarios.tool_calls import has_next_step
from benchmarks.tool_calls import CALLS, answers
from deepfs import FilesystemMiddleware, MemoryBackend, PermissionedBackend, create_deep_agent
from deepfs.middleware.arguments import ARGUMENTS
from support.chat import ScriptedModel

SCHEMAS = {tool.name: tool.args_schema for tool in peer.FilesystemMiddleware().tools}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_argument_of_a_tool_of_deepagents_has_the_same_name_here(name: str) -> None:
    theirs, ours = SCHEMAS[name], ARGUMENTS[name]
    assert theirs.model_fields.keys() <= ours.model_fields.keys()
    given = {field: None for field, info in theirs.model_fields.items() if not info.is_required()}
    needed = dict.fromkeys((field for field, info in theirs.model_fields.items() if info.is_required()), "x")
    ours.model_validate({**given, **needed})


def test_every_tool_name_of_deepagents_is_one_here() -> None:
    assert set(peer.FsToolName.__args__) <= set(ARGUMENTS)


def test_rules_of_deepagents_hold_here() -> None:
    rule: Any = PeerPermission(operations=["write"], paths=["/kept/**"], mode="deny")
    backend = MemoryBackend()
    assert PermissionedBackend(backend, [rule]).write("/kept/a", "x").code == "permission_denied"
    for tools in (
        FilesystemMiddleware(backend, permissions=[rule]).tools,
        create_deep_agent(ScriptedModel(script=[]), backend=backend, permissions=[rule])
        .nodes["tools"]
        .bound.tools_by_name.values(),
    ):
        write = next(tool for tool in tools if tool.name == "write_file")
        assert "permission denied" in write.invoke({"file_path": "/kept/a", "content": "x"})
        assert write.invoke({"file_path": f"/{id(tools)}", "content": "x"}) == f"Wrote /{id(tools)}"
    with pytest.raises(TypeError, match="none"):
        PermissionedBackend(backend, [{"operations": ["write"]}])  # type: ignore[list-item]


def test_a_model_is_told_a_next_step_after_every_call(tmp_path: Path) -> None:
    made = [call for call in CALLS if call.tool != "execute"]
    answered = answers(tmp_path, made, many=5)
    assert [each.call.aim for each in answered if not has_next_step(each)] == []
    assert not [each.call.aim for each in answered if each.ours.text.startswith("(raised")]
