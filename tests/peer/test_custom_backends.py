"""What a model is shown of a backend of one's own is the same in deepagents and in deepfs: hundreds of made classes."""

import ast
import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage

from deepfs import FilesystemMiddleware
from deepfs.compat.deepagents import from_deepagents
from tests.support.counts import few_or_many, telling
from tests.support.custom_classes import Case, made_case
from tests.support.scripted import ScriptedModel, calls

FAILED = "failed"
Shown = Any
"""What a result says, without the form that each library gives it; `FAILED` for a failure."""


# --- running ---------------------------------------------------------------------------------------------------------


def results(package: str, case: Case, directory: Path) -> list[str | None]:
    """The text of each result; None for a failure."""
    directory.mkdir(parents=True)
    namespace: dict[str, Any] = {}
    exec(case.code.replace("{package}", "deepagents" if package == "adapted" else package), namespace)
    backend = namespace["make"](directory)
    if package == "adapted":
        middleware: Any = FilesystemMiddleware(backend=from_deepagents(backend))
    else:
        middleware = importlib.import_module(package).FilesystemMiddleware(backend=backend)
    if case.in_graph:
        return list(anyio.run(in_graph, middleware, case, namespace["FILES"]))
    tools = {tool.name: tool for tool in middleware.tools}
    return anyio.run(in_turn, tools, case)


async def in_turn(tools: dict[str, Any], case: Case) -> list[str | None]:
    return [await text_of(tools.get(name), arguments, is_async=case.is_async) for name, arguments in case.calls]


async def text_of(tool: Any, arguments: dict[str, Any], *, is_async: bool) -> str | None:
    if tool is None:
        return None
    runtime = ToolRuntime({}, None, {}, lambda _: None, "1", None)
    given = {**arguments, "runtime": runtime} if "runtime" in signature(tool.func).parameters else arguments
    call = {"type": "tool_call", "id": "1", "name": tool.name, "args": given}
    try:
        message = await tool.ainvoke(call) if is_async else await anyio.to_thread.run_sync(tool.invoke, call)
    except Exception:  # It ends the run of an agent.
        return None
    return shown_text(message)


def shown_text(message: ToolMessage) -> str | None:
    return None if message.status == "error" else str(message.content)


async def in_graph(middleware: Any, case: Case, files: dict[str, str]) -> Iterator[str | None]:
    stored = {path: {"content": content, "encoding": "utf-8"} for path, content in files.items()}
    shown: dict[str, str | None] = {}
    agent = create_agent(ScriptedModel(messages=calls(*case.calls)), middleware=[middleware])
    given: Any = {"messages": [("user", "go")], "files": stored}
    try:
        async for step in agent.astream(given, {"recursion_limit": 200}, stream_mode="values"):
            for message in step["messages"]:
                if isinstance(message, ToolMessage):
                    shown[message.tool_call_id] = shown_text(message)
    except Exception:  # A call raised: the run ends there.
        shown[f"call-{len(shown)}"] = None
    return iter(shown.values())


# --- comparing -------------------------------------------------------------------------------------------------------


def told(package: str, name: str, text: str | None) -> Shown:
    """What a result says."""
    if text is None:
        return FAILED
    return (THEIRS if package == "deepagents" else OURS)[name](text)


def their_read(text: str) -> Shown:
    if "SYSTEM REMINDER" in text.upper():
        return []
    return text[text.index("@@\n") + 3 :].split("\n") if "@@\n" in text else text


def our_read(text: str) -> Shown:
    if "SYSTEM REMINDER" in text.upper():  # What a backend of deepagents returns as the content of an empty file.
        return []
    rows = text.split("\n")
    return [row.partition("\t")[2] for row in rows if not row.startswith("[")]


def their_paths(text: str) -> Shown:
    return sorted(path.rstrip("/") for path in ast.literal_eval(text)) if text.startswith("[") else []


def our_paths(text: str) -> Shown:
    head, *rows = [row.partition("\t")[0].rstrip("/") for row in text.split("\n") if not row.startswith("[")] or [""]
    return sorted(f"{head[:-1]}/{name}" for name in rows) if head.endswith(":") else sorted(filter(None, [head, *rows]))


def found(text: str) -> Shown:
    """The rows of a search, in any order of the files."""
    if text.startswith(("No matches found", "No line", "No text")):
        return []
    return sorted(row for row in text.split("\n") if row and not row.startswith("["))


def their_command(text: str) -> Shown:
    code = re.search(r"exit code (\d+)", text)
    return text.split("\n")[0], code and code[1]


def our_command(text: str) -> Shown:
    code = re.search(r"Exit code (\d+)", text)
    return text.split("\n")[0], code and code[1]


THEIRS = {
    "read_file": their_read,
    "ls": their_paths,
    "glob": their_paths,
    "grep": found,
    "edit_file": lambda text: "done",
    "write_file": lambda text: "done",
    "delete": lambda text: "done",
    "execute": their_command,
}
OURS = {**THEIRS, "read_file": our_read, "ls": our_paths, "glob": our_paths, "execute": our_command}


class Difference(NamedTuple):
    kind: str
    call: tuple[str, dict[str, Any]]
    theirs: Shown
    ours: Shown


def reason(case: Case, difference: Difference) -> str | None:
    """Why the results differ, if docs/differences.md says so; otherwise None."""
    _, (name, arguments), theirs, ours = difference
    path = arguments.get("path", "/")
    if name == "ls" and theirs != FAILED and children(theirs, path) == [] and ours == FAILED:
        return "a listing of nothing, or of a file, is an error"
    if name == "ls" and theirs != FAILED and children(theirs, path) == ours:
        return "entries further down are shown as the directory that they are in"
    if name == "ls" and "each[len(root):]" in case.code and theirs != FAILED and ours != FAILED:
        relative = [each.rpartition("/")[2].removeprefix("m" * case.kind.startswith("mounted")) for each in theirs]
        if ours == sorted(f"{path.rstrip('/')}/{each}" for each in relative):
            return "paths relative to the directory are shown whole"
    if (
        name == "read_file"
        and "limit" in arguments
        and FAILED not in (theirs, ours)
        and theirs[: arguments["limit"]] == ours
    ):
        return "a read shows no more lines than were asked for"
    if name == "execute" and arguments.get("timeout") == 0 and theirs == FAILED:
        return "a timeout of 0 is that of the backend"
    if name == "execute" and "**options" in case.code and theirs == FAILED:
        return "an execute with **options takes a timeout"
    return None


def children(found: list[str], path: str) -> list[str]:
    """The direct children of a directory in what was found by prefix."""
    root = f"{path.rstrip('/')}/"
    return sorted({root + each.removeprefix(root).split("/")[0] for each in found if each.startswith(root)})


def differences(case: Case, directory: Path) -> list[Difference]:
    """The calls whose results differ, of the class itself and of an object of deepagents that is adapted."""
    kinds = ["deepagents", "deepfs", *([] if case.in_graph or case.kind == "duck" else ["adapted"])]
    shown = {kind: results(kind, case, directory / kind) for kind in kinds}
    return [
        Difference(kind, call, theirs, ours)
        for kind in kinds[1:]
        for call, their_text, our_text in zip(case.calls, shown["deepagents"], shown[kind], strict=False)
        if (theirs := told("deepagents", call[0], their_text)) != (ours := told("deepfs", call[0], our_text))
    ]


@pytest.mark.parametrize("number", few_or_many(60, 2_000))
def test_a_model_is_shown_the_same_of_a_class_of_ones_own(
    number: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    compared, known = 0, Counter[str]()
    for seed in range(number):
        case = made_case(seed)
        compared += len(case.calls)
        for difference in differences(case, tmp_path / str(seed)):
            why = reason(case, difference)
            assert why is not None, f"seed {seed}: {difference}\n{case.code}"
            known[why] += 1
    tell = telling(record_property)
    tell(f"{number} classes, {compared} calls; {known.total()} answers differ as documented: {dict(known)}")
