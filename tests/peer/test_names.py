"""Every public name and parameter of deepagents is there under `deepfs`, or docs/migration.md names a replacement."""

import dataclasses
import inspect
import logging
import pkgutil
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import deepagents
import pytest
from deepagents.backends import ContextHubBackend, LangSmithSandbox
from langchain.agents import create_agent
from langsmith.schemas import FileEntry

from deepfs.compat.deepagents import from_deepagents
from deepfs.middleware import RubricMiddleware
from deepfs.sync import OPERATIONS
from support.scripted import ScriptedModel, calls

# Some names there are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PAGE: Final = Path(__file__).parents[2] / "docs/migration.md"
TITLE: Final = "## Names that are missing"

SPELLINGS: Final = {"file_path": "path", "old_string": "old", "new_string": "new"}
"""Parameters that every backend also takes by the name of deepagents."""

Parameter = inspect.Parameter
PLACED: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
ANY: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def public_modules() -> list[str]:
    names = ["deepagents", *(module.name for module in pkgutil.walk_packages(deepagents.__path__, "deepagents."))]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def public_names(module: ModuleType) -> set[str]:
    """The names that a module lists in `__all__`, or defines."""
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    constants = {name for name in vars(module).get("__annotations__", ()) if hasattr(module, name)}
    return {name for name in {*getattr(module, "__all__", ()), *own, *constants} if not name.startswith("_")}


def public_members(cls: type) -> dict[str, Any]:
    """The members that classes of deepagents define."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "deepagents"]
    found = {name: value for base in reversed(own) for name, value in vars(base).items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def field_names(cls: Any) -> set[str]:
    """The keys of a TypedDict, or the fields of a dataclass or a model."""
    if typing.is_typeddict(cls):
        return set(typing.get_type_hints(cls))
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return fields | set(getattr(cls, "model_fields", ()))


# --- what is missing here --------------------------------------------------------------------------------------------


def gaps_of(module: str) -> Iterator[tuple[str, str]]:
    """Each name of a module of deepagents that is missing or differs here, and how."""
    there = import_module(module)
    try:
        here: Any = import_module(module.replace("deepagents", "deepfs", 1))
    except ModuleNotFoundError:
        here = None
    for name in sorted(public_names(there)):
        if not hasattr(here, name):
            yield name, f"{module} has the name"
            continue
        theirs, ours = getattr(there, name), getattr(here, name)
        if callable(theirs) != callable(ours) or inspect.isclass(theirs) > inspect.isclass(ours):
            yield name, f"the kind: {ours!r:.80}"
        elif inspect.isclass(theirs):
            yield from ((name, each) for each in parameters_missing(theirs, ours))
            yield from class_gaps(name, theirs, ours)
        elif inspect.isfunction(theirs):
            yield from ((name, each) for each in parameters_missing(theirs, ours))


def class_gaps(name: str, there: Any, here: Any) -> Iterator[tuple[str, str]]:
    known = {key for base in here.__mro__ for key in getattr(base, "__annotations__", ())}
    members = public_members(there)
    for key in sorted({*field_names(there), *members}):
        if key not in known and not hasattr(here, key):
            yield f"{name}.{key}", "the member"
        elif inspect.isfunction(members.get(key)) and hasattr(here, key):
            missing = parameters_missing(getattr(there, key), getattr(here, key), key.removeprefix("a") in OPERATIONS)
            yield from ((f"{name}.{key}", each) for each in missing)


def parameters_missing(there: Any, here: Any, is_operation: bool = False) -> Iterator[str]:
    try:
        theirs, ours = inspect.signature(there).parameters, inspect.signature(here).parameters
    except ValueError:  # TypedDicts have none: their keys count.
        return
    kinds = {parameter.kind for parameter in ours.values()}
    placed = [name for name, parameter in ours.items() if parameter.kind in PLACED]
    for place, (given, parameter) in enumerate(theirs.items()):
        if given.startswith("_") or parameter.kind in ANY:
            continue
        name = SPELLINGS.get(given, given) if is_operation and given not in ours else given
        if name not in ours:
            yield f"the parameter {given}"
        elif parameter.kind in PLACED and Parameter.VAR_POSITIONAL not in kinds and [name] != placed[place:][:1]:
            yield f"the place {place} of the parameter {given}"
        elif parameter.default is not Parameter.empty and ours[name].default is Parameter.empty:
            yield f"the default of the parameter {given}"


def listed() -> list[str]:
    """The names that the page says are missing."""
    text = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)


def test_every_name_is_there_or_listed() -> None:
    gaps = [gap for module in public_modules() for gap in gaps_of(module)]
    assert [gap for gap in gaps if gap[0] not in listed()] == []
    assert set(listed()) == {"ContextHubBackend", "LangSmithSandbox", "logger"}


def test_a_hub_of_deepagents_can_be_mounted() -> None:
    """In place of `ContextHubBackend`."""
    pulled = SimpleNamespace(files={"AGENTS.md": FileEntry(content="from the hub\n")}, commit_hash="1")
    client: Any = SimpleNamespace(pull_agent=lambda name: pulled)
    backend = from_deepagents(ContextHubBackend("-/agent", client=client))
    assert backend.read("/AGENTS.md").file_data.content == "from the hub\n"  # type: ignore[union-attr]
    assert [match.path for match in backend.grep("hub").matches or ()] == ["/AGENTS.md"]


class Box:
    """A sandbox of LangSmith, and its client."""

    name = "box"

    @property
    def _client(self) -> "Box":
        return self

    def to_async(self, client: object = None) -> "Box":
        return self

    async def run(self, command: str, timeout: int) -> Any:
        return SimpleNamespace(stdout=f"ran {command}\n", stderr="", exit_code=0)


def test_a_sandbox_of_deepagents_runs_commands() -> None:
    """In place of `LangSmithSandbox`."""
    backend: Any = from_deepagents(LangSmithSandbox(Box()))  # type: ignore[arg-type]
    assert (backend.id, backend.execute("ls").output) == ("box", "ran ls\n")


def test_errors_of_rubrics_are_logged_beneath_the_name_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    """In place of `logger`."""
    grader = ScriptedModel(messages=iter(calls()))
    agent = create_agent(ScriptedModel(messages=iter(calls())), middleware=[RubricMiddleware(model=grader)])
    with caplog.at_level(logging.ERROR, "deepfs"):
        agent.invoke({"messages": ["go"], "rubric": "be brief"})
    assert {record.name.partition(".")[0] for record in caplog.records} == {"deepfs"}
