"""The file tools as middleware: its prompt, its rules, and the error without LangChain."""

import subprocess
import sys

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, SystemMessage

from deepfs import FilesystemPermission, MemoryBackend
from deepfs.middleware.filesystem import FilesystemMiddleware
from deepfs.middleware.prompts import PROMPTS
from support.agents import Invoke
from support.chat import ScriptedModel


def test_the_file_prompt_follows_the_prompt_of_the_agent(invoke: Invoke) -> None:
    for prompt in (None, "Be brief.", SystemMessage([{"type": "text", "text": "Be brief."}])):
        model = ScriptedModel(script=[AIMessage("done")])
        agent = create_agent(model, middleware=[FilesystemMiddleware()], system_prompt=prompt)
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
