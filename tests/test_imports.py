"""Importing a part of deepfs loads no framework and no driver before they are used."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import deepfs
from support.scripts import run_script

# The dependencies of deepfs, and their own dependencies.
LIGHT: Final = {"anyio", "deepfs", "idna", "msgspec", "sniffio", "typing_extensions"}


def loaded_by(statement: str) -> set[str]:
    """The packages outside the standard library that a statement loads in a new interpreter."""
    printed = run_script(f"""
        import json, sys
        before = set(sys.modules)
        {statement}
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(json.dumps(sorted(loaded - sys.stdlib_module_names)))
    """)
    return set(json.loads(printed))


def test_importing_deepfs_loads_nothing_else() -> None:
    assert loaded_by("import deepfs, deepfs.backends") == {"deepfs"}


def test_using_backends_loads_no_framework_and_no_driver(tmp_path: object) -> None:
    used = f"""from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, PermissionedBackend, run_sync
        from deepfs.policy import WrapperBackend
        files = PermissionedBackend(WrapperBackend(MemoryBackend()))
        backend = CompositeBackend(files, {{"/d/": FilesystemBackend({str(tmp_path)!r})}})
        assert backend.write("/d/a.txt", "one").ok and run_sync(backend.agrep, "one").matches"""
    assert loaded_by(used) <= LIGHT


def test_commands_on_files_load_no_framework(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "of.patch").write_text("--- a\n+++ b\n@@ -1 +1 @@\n-1\n+2\n")
    for words in (["ls", "-l"], ["diff", ".", "."], ["patch", "of.patch"], ["cp", "a", "c"]):
        used = f"""import contextlib, io, os
        from deepfs.cli.app import app
        os.chdir({str(tmp_path)!r})
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app({words})"""
        assert not loaded_by(used) & {"langchain_core", "langgraph", "pydantic", "rich"}, words
    assert (tmp_path / "a").read_text() == "2\n"


def test_an_agent_on_disk_loads_what_it_uses_before_its_first_turn(tmp_path: Path) -> None:
    """Not what others use; and a turn, which an import would hold up, only what a thread imports for a search."""
    printed = run_script(f"""
        import json, sys
        from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
        from langchain_core.messages import AIMessage
        from deepfs import FilesystemBackend, create_deep_agent

        class Model(GenericFakeChatModel):
            def bind_tools(self, tools, **options):
                return self

        calls = [
            ("write_file", {{"file_path": "/a", "content": "one"}}),
            ("edit_file", {{"file_path": "/a", "old_string": "one", "new_string": "two"}}),
            ("grep", {{"pattern": "t.o", "regex": True}}),
            ("read_file", {{"file_path": "/a"}}),
        ]
        messages = [AIMessage("", tool_calls=[{{"name": name, "args": args, "id": name}}]) for name, args in calls]
        model = Model(messages=iter([*messages, AIMessage("Done.")]))
        agent = create_deep_agent(model, backend=FilesystemBackend({str(tmp_path)!r}))
        built = {{*sys.modules}}
        *_, read, last = agent.invoke({{"messages": [("user", "Go on.")]}})["messages"]
        assert "two" in read.content, read
        print(json.dumps([sorted(built), sorted({{*sys.modules}} - built)]))
    """)
    built, late = json.loads(printed)
    unused = re.compile(
        r"(sqlite3|mcp|xml\.parsers\.expat)\b|deepfs\.(process|sandboxes|compat|"
        r"search\.literals|text\.(documents|patches|unified)|"
        r"backends\.(state|flat|store|sqlite|local_shell)|policy\.(history|limits|hooks|observing)|"
        r"middleware\.(documents|skills|memory|apply_patch|anthropic_memory|"
        r"patching|async_subagents|background_tasks|rubric))\b"
    )
    assert [name for name in built if unused.match(name)] == []
    assert {name for name in late if name.startswith("deepfs")} <= {"deepfs.search.literals"}


def test_the_mcp_server_loads_no_graph() -> None:
    assert not loaded_by("import deepfs.mcp") & {"langchain", "langgraph"}


def test_a_part_whose_dependency_is_missing_says_so() -> None:
    printed = run_script("""
        import sys
        sys.modules["mcp"] = None
        import deepfs
        try:
            deepfs.mcp
        except ImportError as error:
            print(error)
    """)
    assert printed == "deepfs.mcp needs the MCP SDK: pip install 'deepfs[mcp]'\n"


PACKAGES: Final = [deepfs, deepfs.backends, deepfs.middleware, deepfs.policy, deepfs.sandboxes, deepfs.testing]


def test_a_star_import_has_all_names_and_no_modules() -> None:
    for package in PACKAGES:
        namespace: dict[str, Any] = {}
        exec(f"from {package.__name__} import *", namespace)
        assert set(package.__all__) == namespace.keys() - {"__builtins__"}
        assert [name for name, value in namespace.items() if isinstance(value, ModuleType)] == []


def test_profiles_have_the_paths_of_deepagents_as_attributes() -> None:
    printed = run_script("""
        import deepfs.profiles as profiles
        print(profiles.harness.harness_profiles.HarnessProfile is profiles.HarnessProfile)
        print(profiles.provider.provider_profiles.ProviderProfile is profiles.ProviderProfile)
    """)
    assert printed.split() == ["True", "True"]
