"""Programs written for deepagents run with the import changed; lines that need other changes are listed here."""

from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, NamedTuple

import pytest


class Program(NamedTuple):
    """A program, and its lines that must change beyond the import, mapped to their new text."""

    code: str
    changed: dict[str, str]


NOTES: Final = Program(
    """
    from langgraph.store.memory import InMemoryStore
    from deepagents.backends import CompositeBackend, FilesystemBackend, StoreBackend

    store = InMemoryStore()
    backend = CompositeBackend(
        default=FilesystemBackend(root_dir=".", virtual_mode=True),
        routes={"/memories/": StoreBackend(store=store, namespace=lambda rt: ("ada", "memories"))},
    )
    backend.write("/draft.md", "tea\\n")
    backend.write("/draft.md", "tea\\nmilk\\n")
    backend.write("/memories/likes.md", "tea\\n")
    print(backend.edit("/draft.md", "milk", "sugar").occurrences)
    print([(entry["path"], entry.get("is_dir", False)) for entry in backend.ls("/").entries])
    print(backend.read("/draft.md").file_data["content"])
    print(sorted((match["path"], match["line"], match["text"]) for match in backend.grep("tea").matches))
    print([info["path"] for info in backend.glob("*.md").matches])
    print([(response.path, response.error) for response in backend.download_files(["/draft.md", "/none.md"])])
    print(backend.read("/none.md").error is not None)
    print(backend.delete("/draft.md").error)
    print([item.key for item in store.search(("ada", "memories"))])
    """,
    {
        'backend.write("/draft.md", "tea\\nmilk\\n")': 'backend.write("/draft.md", "tea\\nmilk\\n", overwrite=True)',
    },
)

POLICY: Final = Program(
    """
    from deepagents.backends.filesystem import FilesystemBackend
    from deepagents.backends.protocol import BackendProtocol, EditResult, WriteResult

    class GuardedBackend(FilesystemBackend):
        def __init__(self, *, deny_prefixes, **kwargs):
            super().__init__(**kwargs)
            self.deny_prefixes = [p if p.endswith("/") else p + "/" for p in deny_prefixes]

        def write(self, file_path: str, content: str) -> WriteResult:
            if any(file_path.startswith(p) for p in self.deny_prefixes):
                return WriteResult(error=f"Writes are not allowed under {file_path}")
            return super().write(file_path, content)

        def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
            if any(file_path.startswith(p) for p in self.deny_prefixes):
                return EditResult(error=f"Edits are not allowed under {file_path}")
            return super().edit(file_path, old_string, new_string, replace_all)

    import asyncio

    backend = GuardedBackend(root_dir=".", virtual_mode=True, deny_prefixes=["/released"])

    async def main():
        print(isinstance(backend, BackendProtocol))
        print((await backend.awrite("/released/a.txt", "x")).error)
        print((await backend.awrite("/draft/a.txt", "one two")).path)
        print((await backend.aedit(file_path="/draft/a.txt", old_string="one", new_string="1")).occurrences)
        print((await backend.aread("/draft/a.txt")).file_data["content"])

    asyncio.run(main())
    """,
    {},
)

CUSTOM: Final = Program(
    """
    from typing import Annotated
    from langgraph.graph import START, StateGraph
    from deepagents.backends import CompositeBackend, StateBackend
    from deepagents.backends.protocol import (
        BackendProtocol, EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult,
    )
    from deepagents.backends.utils import (
        create_file_data, file_data_to_string, grep_matches_from_files, perform_string_replacement,
        slice_read_response, update_file_data,
    )
    from deepagents.middleware.filesystem import FilesystemState

    class TableBackend(BackendProtocol):
        def __init__(self):
            self.rows = {}

        def ls(self, path):
            return LsResult(entries=[{"path": each, "is_dir": False} for each in sorted(self.rows)])

        def read(self, file_path, offset=0, limit=2000):
            if file_path not in self.rows:
                return ReadResult(error=f"Error: File '{file_path}' not found")
            return slice_read_response(self.rows[file_path], offset, limit)

        def grep(self, pattern, path=None, glob=None):
            return grep_matches_from_files(self.rows, pattern, path, glob)

        def glob(self, pattern, path="/"):
            return GlobResult(matches=[{"path": each} for each in sorted(self.rows)])

        def write(self, file_path, content):
            self.rows[file_path] = create_file_data(content)
            return WriteResult(path=file_path)

        def edit(self, file_path, old_string, new_string, replace_all=False):
            text = file_data_to_string(self.rows[file_path])
            done = perform_string_replacement(text, old_string, new_string, replace_all)
            if isinstance(done, str):
                return EditResult(error=done)
            self.rows[file_path] = update_file_data(self.rows[file_path], done[0])
            return EditResult(path=file_path, occurrences=done[1])

    backend = CompositeBackend(default=StateBackend(), routes={"/table/": TableBackend()})

    def work(state):
        backend.write("/plan.md", "one\\ntwo\\n")
        backend.write("/table/a.txt", "alpha\\nbeta\\n")
        print(backend.edit("/table/a.txt", "beta", "two").occurrences)
        print(backend.read("/table/a.txt", offset=1).file_data["content"])
        print(sorted(match["path"] for match in backend.grep("two").matches))
        print(backend.edit("/table/a.txt", "gamma", "x").error is not None)
        return {}

    graph = StateGraph(FilesystemState).add_node(work).add_edge(START, "work").compile()
    files = graph.invoke({"messages": [], "files": {}})["files"]
    print({path: data["content"] for path, data in files.items()})
    """,
    {},
)

AGENT: Final = Program(
    """
    from langchain_core.messages import ToolMessage
    from langgraph.store.memory import InMemoryStore
    from deepagents import FilesystemPermission, create_deep_agent
    from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
    from support.scripted import ScriptedModel, calls

    store = InMemoryStore()
    backend = CompositeBackend(
        default=StateBackend(),
        routes={
            "/memories/": StoreBackend(namespace=lambda rt: ("ada", "memories")),
            "/docs/": FilesystemBackend(root_dir=".", virtual_mode=True),
        },
        artifacts_root="/",
    )
    notes = [("write_file", {"file_path": "/memories/seen.md", "content": "tea\\n"})]
    work = [
        ("task", {"description": "note what you see", "subagent_type": "noter"}),
        ("write_file", {"file_path": "/draft.md", "content": "one\\ntwo\\n"}),
        ("edit_file", {"file_path": "/draft.md", "old_string": "two", "new_string": "2"}),
        ("write_file", {"file_path": "/docs/a.md", "content": "shown\\n"}),
        ("write_file", {"file_path": "/docs/private/b.md", "content": "refused\\n"}),
        ("read_file", {"file_path": "/docs/private/c.md"}),
        ("read_file", {"file_path": "/memories/seen.md"}),
    ]
    agent = create_deep_agent(
        model=ScriptedModel(messages=iter(calls(*work))),
        system_prompt="You write.",
        backend=backend,
        store=store,
        permissions=[FilesystemPermission(operations=["read", "write"], paths=["/docs/private/**"], mode="deny")],
        subagents=[{
            "name": "noter",
            "description": "Notes things.",
            "system_prompt": "You note.",
            "model": ScriptedModel(messages=iter(calls(*notes, last="noted"))),
            "tools": [],
        }],
    )
    result = agent.invoke({"messages": [{"role": "user", "content": "go"}]})
    answers = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    print([(message.name, "permission denied" in message.text) for message in answers])
    print(answers[0].text, "tea" in answers[-1].text)
    print({path: data["content"] for path, data in result["files"].items()})
    print([item.key for item in store.search(("ada", "memories"))])
    print([info["path"] for info in FilesystemBackend(root_dir=".", virtual_mode=True).glob("**").matches])
    """,
    {},
)

PROGRAMS: Final = {"notes": NOTES, "policy": POLICY, "custom": CUSTOM, "agent": AGENT}


def printed_by(code: str, directory: Path) -> str:
    directory.mkdir()
    with chdir(directory), redirect_stdout(StringIO()) as printed:
        exec(compile(code, "<program>", "exec"), {"__name__": "program"})
    return printed.getvalue()


def for_deepfs(program: Program) -> str:
    code: Any = dedent(program.code).replace("deepagents", "deepfs")
    for before, after in program.changed.items():
        assert before in code
        code = code.replace(before, after)
    return code


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_print_the_same(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    theirs = printed_by(dedent(program.code), tmp_path / "theirs")
    assert printed_by(for_deepfs(program), tmp_path / "ours") == theirs
    assert theirs.count("\n") >= 5
