"""Prints the size of a package, and through how much code one operation goes.

    python tools/structure.py                          the package deepfs of this checkout
    python tools/structure.py deepfs DIR/deepfs        folders of packages side by side
    python tools/structure.py --walks deepfs           what operations of an installed package go through

The figures are for people: no check fails for one of them. `--walks` knows deepfs and deepagents. It counts functions
that an operation calls, in any thread, and their modules.
"""

import argparse
import ast
import io
import sys
import threading
import tokenize
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

import anyio

ROOT: Final = Path(__file__).resolve().parents[1]

# --- size ------------------------------------------------------------------------------------------------------------


def measure(folder: Path) -> dict[str, str]:
    """The size of the package in `folder`: of all modules, with their comments and docstrings if not said otherwise."""
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    functions = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    private = [each for each in functions if each.name.startswith("_") and not each.name.endswith("__")]
    code = [code_lines(text) for text in texts]
    imports = [
        {line for node in imports_of(tree) for line in lines_of(node)} & lines
        for tree, lines in zip(trees, code, strict=True)
    ]
    return {
        "modules": f"{len(texts):,}",
        "lines": f"{sum(text.count(chr(10)) for text in texts):,}",
        "lines of code": f"{sum(map(len, code)):,}",
        "functions": f"{len(functions):,}",
        "private ones": f"{len(private) / len(functions):.0%}",
        "imports and __all__, part of the code": f"{sum(map(len, imports)) / sum(map(len, code)):.1%}",
    }


def code_lines(text: str) -> set[int]:
    """The lines that are not blank, nor comments or docstrings alone."""
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    docs = {line for node in ast.walk(ast.parse(text)) if is_docstring(node) for line in lines_of(node)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {n for each in tokens if each.type not in ignored for n in range(each.start[0], each.end[0] + 1)} - docs


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imports_of(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if isinstance(node, ast.Import | ast.ImportFrom) or (is_list and isinstance(node, ast.stmt)):
            yield node


def lines_of(node: Any) -> range:
    return range(node.lineno, node.end_lineno + 1)


# --- walks -----------------------------------------------------------------------------------------------------------


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
    kept = backends.StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",))
    stores = [
        backends.StoreBackend(store=InMemoryStore(), namespace=lambda _, n=n: ("mount", str(n))) for n in range(4)
    ]
    for each in [kept, *stores]:
        await each.awrite("/notes.py", "one\ntwo\n")
    tree = backends.CompositeBackend(default=stores[0], routes={f"/{n}/": stores[n] for n in range(1, 4)})
    steps: dict[str, tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]] = {
        "an edit in a StoreBackend": (
            lambda: kept.aedit("/notes.py", "one", "three"),
            lambda: kept.aedit("/notes.py", "three", "one"),
        ),
        "a grep over four mounts": (lambda: tree.agrep("two"), anyio.lowlevel.checkpoint),
        "a disk grep": (lambda: disk.agrep("two"), anyio.lowlevel.checkpoint),
    }
    if package == "deepfs":
        sqlite = backends.SqliteBackend(directory / "files.db")
        steps["a write in a SqliteBackend"] = (
            lambda: sqlite.awrite("/notes.py", "two\n", overwrite=True),
            lambda: sqlite.awrite("/notes.py", "one\n", overwrite=True),
        )
    agent, numbers = make_agent(import_module(f"{package}.middleware").FilesystemMiddleware), iter(range(100))
    steps["a write_file tool call, with the agent's turn"] = (
        lambda: agent.ainvoke({"messages": [("user", f"/{next(numbers)}.txt")]}),
        anyio.lowlevel.checkpoint,
    )
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


# --- the table -------------------------------------------------------------------------------------------------------


def table(columns: dict[str, dict[str, str]]) -> str:
    rows = list(dict.fromkeys(row for column in columns.values() for row in column))
    lines = [["", *columns], *([row, *(column.get(row, "") for column in columns.values())] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="The size of a package, and what its operations go through.")
    parser.add_argument("packages", nargs="*", default=["deepfs"], help="folders; with --walks, names of packages")
    parser.add_argument("--walks", action="store_true", help="count what operations go through")
    given = parser.parse_args()
    if not given.walks:
        print(table({package: measure(ROOT / package) for package in given.packages}))
        return
    columns = {}
    for package in given.packages:
        with TemporaryDirectory() as directory:
            columns[package] = anyio.run(walk, package, Path(directory))
    print(table(columns))


if __name__ == "__main__":
    main()
