"""What programs and models of deepagents pass to the file tools is accepted here."""

from typing import Any

import pytest
from deepagents import FilesystemPermission as PeerPermission
from deepagents.middleware import filesystem as peer

from deepfs import FilesystemMiddleware, MemoryBackend, PermissionedBackend, create_deep_agent
from deepfs.middleware.arguments import ARGUMENTS
from support.chat import ScriptedModel


def test_tools_and_their_arguments_have_the_names_of_deepagents() -> None:
    assert set(peer.FsToolName.__args__) <= set(ARGUMENTS)
    for tool in peer.FilesystemMiddleware().tools:
        theirs, ours = tool.args_schema.model_fields, ARGUMENTS[tool.name]
        assert theirs.keys() <= ours.model_fields.keys(), tool.name
        ours.model_validate({field: "x" if info.is_required() else None for field, info in theirs.items()})


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
