"""Every public name and parameter of deepagents is there under `deepfs`, or docs/migration.md names a replacement."""

import dataclasses
import inspect
import logging
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

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

OTHER_VALUES: Final = {
    ("glob", "path"): "/",
    ("aglob", "path"): "/",
    ("GlobSchema", "path"): "/",
    ("GrepSchema", "path"): "/",
    ("FilesystemMiddleware", "offload_binary_content"): True,
    ("ReadFileSchema", "limit"): 500,
    ("ReadVideoFileSchema", "limit"): 500,
}
"""The defaults that differ on purpose, by function and parameter, beside texts for models."""
TEXTS: Final = frozenset({"system_prompt", "summary_prompt"})

Parameter = inspect.Parameter
PLACED: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
ANY: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Gap(NamedTuple):
    """A name of deepagents in its module, and what is missing here."""

    module: str
    name: str
    missing: str


# --- what deepagents has ---------------------------------------------------------------------------------------------


@cache
def public_modules() -> list[str]:
    found = pkgutil.walk_packages(deepagents.__path__, "deepagents.")
    names = ["deepagents", *(module.name for module in found)]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


LOADED: Final = {name: vars(import_module(name)) for name in public_modules()} | {
    name: vars(module) for name, module in sys.modules.items() if name.partition(".")[0] not in ("deepfs", "tests")
}
"""The names of each module, and of what it imports."""
MADE: Final = {
    "deepagents.graph": ["BASE_AGENT_PROMPT"],
    "deepagents.middleware.filesystem": ["TOO_LARGE_HUMAN_MSG", "TOO_LARGE_TOOL_MSG"],
}
"""The names that a module of deepagents makes by `__getattr__`, so that nothing lists them."""


def public_names(module: ModuleType) -> set[str]:
    """The names that the module lists in `__all__`, defines, or makes when they are asked for; it may share constants.

    A constant does not say where it was defined: all count that nothing outside of the public modules has too.
    """
    own = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    names = {*getattr(module, "__all__", ()), *own, *constants(module), *MADE.get(module.__name__, ())}
    return {name for name in names if not name.startswith("_")}


def constants(module: ModuleType) -> set[str]:
    def is_constant(name: str, value: Any) -> bool:
        if isinstance(value, type | ModuleType) or inspect.isroutine(value):
            return False
        return not {holder for holder, each in LOADED.items() if each.get(name, MADE) is value} - {*public_modules()}

    return {name for name, value in vars(module).items() if is_constant(name, value)}


def is_elsewhere(module: ModuleType, name: str) -> bool:
    """Whether the name is a constant that is here by another path, at which deepagents has it too.

    Not if the module annotates it: then it is defined there.
    """
    if name in vars(module).get("__annotations__", ()):
        return False
    value = vars(module).get(name, MADE)
    sharing = [other for other in public_modules() if LOADED[other].get(name) is value and name in constants(module)]
    return any(hasattr(import_here(other), name) for other in sharing)


def import_here(module: str) -> Any:
    """The module of deepfs at the path that a module of deepagents has; None if there is none."""
    try:
        return import_module(module.replace("deepagents", "deepfs", 1))
    except ModuleNotFoundError:
        return None


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


def gaps_of(module: str) -> Iterator[Gap]:
    there, here = import_module(module), import_here(module)
    for name in sorted(public_names(there)):
        if hasattr(here, name):
            yield from (Gap(module, *each) for each in differences(name, getattr(there, name), getattr(here, name)))
        elif not is_elsewhere(there, name):
            yield Gap(module, name, "the name")


def differences(name: str, there: Any, here: Any) -> Iterator[tuple[str, str]]:
    if callable(there) != callable(here) or inspect.isclass(there) > inspect.isclass(here):
        yield name, f"the kind: {here!r:.80}"
    elif isinstance(there, str | int | float | tuple) and not isinstance(here, type(there)):
        yield name, f"the type: {here!r:.80}"
    elif inspect.isclass(there):
        yield from ((name, each) for each in parameters_missing(there, here))
        yield from class_differences(name, there, here)
    elif inspect.isfunction(there):
        yield from ((name, each) for each in parameters_missing(there, here))


def class_differences(name: str, there: Any, here: Any) -> Iterator[tuple[str, str]]:
    known = {key for base in here.__mro__ for key in getattr(base, "__annotations__", ())}
    for key in sorted(field_names(there)):
        if key not in known and not hasattr(here, key):
            yield f"{name}.{key}", "the field"
    for key, value in public_members(there).items():
        if key in field_names(there) or (key in known and isinstance(value, property)):
            continue
        if not hasattr(here, key):
            yield f"{name}.{key}", "the member"
        elif inspect.isfunction(value) or isinstance(value, staticmethod | classmethod):
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
        elif name in ours and parameter.default is not Parameter.empty and ours[name].default is Parameter.empty:
            yield f"the default of the parameter {given}"
        elif name in ours and not _is_default(getattr(there, "__name__", ""), name, parameter, ours[name]):
            yield f"the value of the default of the parameter {given}: {ours[name].default!r:.80}"


def _is_default(function: str, name: str, there: Parameter, here: Parameter) -> bool:
    """Whether the default is that of deepagents. Only plain values are compared, and no texts for models."""
    plain = (str, int, float, type(None))
    if name in TEXTS or not isinstance(there.default, plain) or not isinstance(here.default, plain):
        return True
    return OTHER_VALUES.get((function, name), there.default) == here.default


def listed() -> list[str]:
    """The names that the page says are missing."""
    text = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)


def test_every_name_is_there_or_listed() -> None:
    gaps = [gap for module in public_modules() for gap in gaps_of(module)]
    missing = sorted(f"{gap.module}.{gap.name}: {gap.missing}" for gap in gaps if gap.name not in listed())
    assert missing == []
    assert set(listed()) == {gap.name for gap in gaps} == {"ContextHubBackend", "LangSmithSandbox", "logger"}


def test_star_imports_have_what_they_have_there() -> None:
    for module in ("", ".backends", ".middleware", ".backends.protocol", ".backends.utils", ".middleware.filesystem"):
        there, here = import_module(f"deepagents{module}"), import_module(f"deepfs{module}")
        names = set(getattr(there, "__all__", None) or public_names(there) & vars(here).keys())
        namespace: dict[str, Any] = {}
        exec(f"from deepfs{module} import *", namespace)
        assert names - namespace.keys() <= {*listed(), "__version__"}, module


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
