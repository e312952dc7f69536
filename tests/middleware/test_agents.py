"""Agents that work with files: a scripted model calls every tool; prompts and permissions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, SystemMessage

from deepfs import FilesystemPermission, MemoryBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from support.agents import Invoke, Sandbox, results
from support.chat import ScriptedModel, call, calls


def agent_of(*turns: Any, middleware: Any = (), **options: Any) -> tuple[ScriptedModel, Any]:
    model = ScriptedModel(script=[*turns, AIMessage("done")])
    return model, create_agent(model, middleware=middleware, **options)


@pytest.mark.parametrize("backend", ["state", "sandbox", "shell", "box"], indirect=True)
def test_a_conversation_uses_every_tool(backend: BackendProtocol, invoke: Invoke, tmp_path: Path) -> None:
    turns = [
        calls(call("write_file", file_path="/a.md", content="one\ntwo\n"), call("ls")),
        calls(call("read_file", file_path="/a.md")),
        calls(
            call("edit_file", file_path="/a.md", old_string="one", new_string="ONE"),
            call("edit_file", file_path="/a.md", old_string="two", new_string="TWO"),
        ),
        calls(call("grep", pattern="TWO", output_mode="content"), call("glob", pattern="*.md")),
        calls(call("move", source="/a.md", destination="/b.md")),
        calls(call("read_file", file_path="/b.md"), call("execute", command="pwd")),
        calls(call("delete", file_path="/b.md")),
        calls(call("read_file", file_path="/b.md")),
    ]
    _, agent = agent_of(*turns, middleware=[FilesystemMiddleware(backend=backend)])
    said = [message.content for message in results(invoke(agent, {"messages": [("user", "go")]}))]
    assert said[2:9] == [
        "1\tone\n2\ttwo",
        "Replaced 1 occurrence in /a.md",
        "Replaced 1 occurrence in /a.md",
        "/a.md:\n  2: TWO",
        "/a.md",
        "Moved /a.md to /b.md",
        "1\tONE\n2\tTWO",
    ]
    printed = {Sandbox: "pwd", LocalShellBackend: f"{tmp_path}", BubblewrapSandbox: "/workspace"}
    refused = "Error: This filesystem does not run commands. Use the file tools."
    assert said[9] == (f"{printed[type(backend)]}\n[Exit code 0]" if type(backend) in printed else refused)
    assert said[10] == "Deleted /b.md"
    assert said[11].startswith("Error: File '/b.md' not found")


def test_the_file_prompt_follows_the_prompt_of_the_agent(invoke: Invoke) -> None:
    for prompt in (None, "Be brief.", SystemMessage([{"type": "text", "text": "Be brief."}])):
        model, agent = agent_of(middleware=[FilesystemMiddleware()], system_prompt=prompt)
        invoke(agent, {"messages": [("user", "go")]})
        text = model.asked[0][0].text
        assert text.endswith(PROMPTS["filesystem"])
        assert text.startswith("Be brief." if prompt else "## Files")


def test_with_permissions_keeps_the_class_and_the_backend() -> None:
    class Own(FilesystemMiddleware):
        pass

    files = MemoryBackend()
    own = Own(files, "Mine.", {"ls": "Look."})
    other = own.with_permissions([FilesystemPermission(["write"], mode="deny")])
    assert isinstance(other, Own)
    assert own.backend is files
    assert other.tools[0].description == "Look."
    assert other.backend.write("/a", "x").code == "permission_denied"
    assert own.backend.write("/a", "x").ok


def test_without_langchain_the_error_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['langchain'] = None\n"
        "import deepfs, deepfs.middleware.tools\n"
        "try: deepfs.create_deep_agent\n"
        "except ModuleNotFoundError as error: assert 'deepfs[agents]' in str(error), error\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
