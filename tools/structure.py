"""Prints the size of a package, and through how much code one operation goes.

    python tools/structure.py                          the package deepfs of this checkout
    python tools/structure.py deepfs DIR/deepfs        folders of packages side by side
    python tools/structure.py --walks deepfs           what operations of an installed package go through

The figures are for people: no check fails for one of them. `--walks` knows deepfs and deepagents. It counts functions
that an operation calls, in any thread, and their modules.
"""

import ast
import io
import sys
import threading
import tokenize
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

import anyio

ROOT: Final = Path(__file__).resolve().parents[1]


def measure(folder: Path) -> dict[str, str]:
    """The size of the package in `folder`: of all modules, with their comments and docstrings if not said otherwise."""
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    code, imports, names = 0, 0, list[str]()
    for text in texts:
        nodes = list(ast.walk(ast.parse(text)))
        lines = tokens(text) - lines_of(node for node in nodes if is_docstring(node))
        code += len(lines)
        imports += len(lines & lines_of(node for node in nodes if is_import(node)))
        names += [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    private = [name for name in names if name.startswith("_") and not name.endswith("__")]
    return {
        "modules": f"{len(texts):,}",
        "lines": f"{sum(text.count(chr(10)) for text in texts):,}",
        "lines of code": f"{code:,}",
        "functions": f"{len(names):,}",
        "private ones": f"{len(private) / len(names):.0%}",
        "imports and __all__, part of the code": f"{imports / code:.1%}",
    }


def tokens(text: str) -> set[int]:
    """The lines that are not blank, nor comments alone."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return {n for each in found if each.type not in ignored for n in range(each.start[0], each.end[0] + 1)}


def is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_import(node: Any) -> bool:
    is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return is_list or isinstance(node, ast.Import | ast.ImportFrom)


def lines_of(nodes: Iterable[Any]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


class Walk:
    """Notes the functions of a package that are called."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.called: set[tuple[str, CodeType]] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.partition(".")[0] == self._package and not frame.f_code.co_name.startswith("<"):
            self.called.add((module, frame.f_code))

    async def count(self, operation: Callable[[], Awaitable[object]], prepare: Callable[[], Awaitable[object]]) -> str:
        """The modules and functions of one operation; the fewest of five, since threads may make more calls."""
        found = []
        for _ in range(6):  # The first one starts threads and loads modules.
            await prepare()
            self.called.clear()
            await operation()
            found.append((len({module for module, _ in self.called}), len(self.called)))
        return "{} / {}".format(*min(found[1:], key=lambda each: each[1]))


async def walk(package: str, directory: Path) -> dict[str, str]:
    from langgraph.store.memory import InMemoryStore

    walk = Walk(package)
    threading.setprofile(walk.note)
    backends = import_module(f"{package}.backends")
    (directory / "notes.py").write_text("one\ntwo\n")
    disk = backends.FilesystemBackend(str(directory), virtual_mode=True)
    kept, *mounts = (
        backends.StoreBackend(store=InMemoryStore(), namespace=lambda _, n=n: ("files", str(n))) for n in range(5)
    )
    for each in [kept, *mounts]:
        await each.awrite("/notes.py", "one\ntwo\n")
    tree = backends.CompositeBackend(default=mounts[0], routes={f"/{n}/": mounts[n] for n in range(1, 4)})
    edit, nothing = kept.aedit, anyio.lowlevel.checkpoint
    agent, numbers = make_agent(import_module(f"{package}.middleware").FilesystemMiddleware), range(100)
    asks = (agent.ainvoke({"messages": [("user", f"/{number}.txt")]}) for number in numbers)
    steps: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]] = {
        "an edit in a StoreBackend": (lambda: edit("/notes.py", "ne", "3"), lambda: edit("/notes.py", "3", "ne")),
        "a grep over four mounts": (lambda: tree.agrep("two"), nothing),
        "a disk grep": (lambda: disk.agrep("two"), nothing),
        "a write_file tool call, with the agent's turn": (asks.__next__, nothing),
    }
    if package == "deepfs":
        write = partial(backends.SqliteBackend(directory / "files.db").awrite, "/notes.py", overwrite=True)
        steps["a write in a SqliteBackend"] = (lambda: write("two\n"), lambda: write("one\n"))
    sys.setprofile(walk.note)
    counted = {name: await walk.count(*each) for name, each in steps.items()}
    sys.setprofile(None)
    return counted


def make_agent(middleware: Callable[..., Any]) -> Any:
    """An agent whose model writes the file that the user names, and then ends."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

        def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            call = {"name": "write_file", "args": {"file_path": messages[-1].content, "content": "one\n"}, "id": "1"}
            answer = AIMessage("", tool_calls=[call] if isinstance(messages[-1], HumanMessage) else [])
            return ChatResult(generations=[ChatGeneration(message=answer)])

    return create_agent(Model(messages=iter(())), middleware=[middleware()])


def table(columns: dict[str, dict[str, str]]) -> str:
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = [["", *columns], *([row, *(column.get(row, "") for column in columns.values())] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main(arguments: list[str]) -> None:
    if "--help" in arguments:
        print(__doc__)
        return
    packages, columns = [each for each in arguments if each != "--walks"] or ["deepfs"], {}
    for package in packages:
        with TemporaryDirectory() as directory:
            walks = "--walks" in arguments
            columns[package] = anyio.run(walk, package, Path(directory)) if walks else measure(ROOT / package)
    print(table(columns))


if __name__ == "__main__":
    main(sys.argv[1:])
