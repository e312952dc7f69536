"""Every public name and parameter of deepagents is there under `deepfs`, or docs/migration.md names a replacement."""

import dataclasses
import inspect
import logging
import pkgutil
import re
import sys
import typing
from collections.abc import Callable, Iterator
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

from deepfs import MemoryBackend
from deepfs.compat.deepagents import from_deepagents
from deepfs.middleware import RubricMiddleware
from deepfs.sync import OPERATIONS
from support.scripted import ScriptedModel, calls

# Some names there are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PAGE: Final = Path(__file__).parents[2] / "docs/migration.md"
TITLE: Final = "## Names that are missing"
MOST: Final = 10

SPELLINGS: Final = {"file_path": "path", "old_string": "old", "new_string": "new"}
"""Parameters that every backend also takes by the name of deepagents; see `test_operations_take_both_names`."""

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


def listed() -> dict[str, str]:
    """The names that the page says are missing, each with the replacement."""
    text = PAGE.read_text().partition(TITLE)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \|[^|]*\| (.*) \|$", text, re.MULTILINE)
    return dict(rows)


def test_every_name_is_there_or_listed() -> None:
    gaps = [gap for module in public_modules() for gap in gaps_of(module)]
    missing = sorted(f"{gap.module}.{gap.name}: {gap.missing}" for gap in gaps if gap.name not in listed())
    assert missing == []
    assert sorted(listed()) == sorted({gap.name for gap in gaps}), "the page lists a name that is there"
    assert len(listed()) <= MOST


def test_the_walk_finds_what_is_missing() -> None:
    class There:
        def __init__(self, a: int, b: int = 1) -> None: ...

        def one(self, c: int, d: int) -> None: ...

        def three(self, e: int = 1, *, f: int | None = None) -> None: ...

        def two(self) -> None: ...

    class Here:
        def __init__(self, a: int, b: int) -> None: ...

        def one(self, d: int) -> None: ...

        def three(self, e: int = 2, **options: int) -> None: ...

    There.__module__ = "deepagents.there"
    assert list(differences("X", There, Here)) == [
        ("X", "the default of the parameter b"),
        ("X.one", "the parameter c"),
        ("X.one", "the place 2 of the parameter d"),
        ("X.three", "the value of the default of the parameter e: 2"),
        ("X.three", "the parameter f"),
        ("X.two", "the member"),
    ]
    assert [missing for _, missing in differences("x", 1, "1")] == ["the type: '1'"]
    assert {module for module, names in LOADED.items() if module in public_modules() and "__getattr__" in names} == {
        *MADE
    }
    assert len({(module, name) for module in public_modules() for name in public_names(import_module(module))}) > 200


@pytest.mark.parametrize("module", ["deepagents", "deepagents.backends", "deepagents.middleware"])
def test_a_star_import_has_what_it_has_there(module: str) -> None:
    there, here = set(import_module(module).__all__), set(import_module(module.replace("agents", "fs")).__all__)
    assert there - here <= {*listed(), "__version__"}


@pytest.mark.parametrize(
    "module", ["deepfs.backends.protocol", "deepfs.backends.utils", "deepfs.middleware.filesystem"]
)
def test_a_star_import_has_the_names_of_deepagents(module: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"from {module} import *", namespace)
    there = public_names(import_module(module.replace("deepfs", "deepagents")))
    assert [name for name in there if hasattr(import_module(module), name) and name not in namespace] == []


def test_operations_take_both_names() -> None:
    for given in ({"file_path": "/a"}, {"path": "/a"}):
        backend = MemoryBackend()
        assert backend.write(**given, content="one").ok
        assert backend.edit(**given, old_string="one", new_string="two").ok
        assert backend.edit(**given, old="two", new="three").ok
        assert backend.read(**given).ok
        assert backend.delete(**given).ok


# --- replacements ----------------------------------------------------------------------------------------------------


def _hub() -> None:
    client: Any = SimpleNamespace(
        pull_agent=lambda name: SimpleNamespace(
            files={"AGENTS.md": FileEntry(content="from the hub\n")}, commit_hash="1"
        )
    )
    backend = from_deepagents(ContextHubBackend("-/agent", client=client))
    assert backend.read("/AGENTS.md").file_data.content == "from the hub\n"  # type: ignore[union-attr]
    assert [match.path for match in backend.grep("hub").matches or ()] == ["/AGENTS.md"]


class _Box:
    """A sandbox of LangSmith, and its client."""

    name = "box"

    @property
    def _client(self) -> "_Box":
        return self

    def to_async(self, client: object = None) -> "_Box":
        return self

    async def run(self, command: str, timeout: int) -> Any:
        return SimpleNamespace(stdout=f"ran {command}\n", stderr="", exit_code=0)


def _sandbox() -> None:
    backend: Any = from_deepagents(LangSmithSandbox(_Box()))  # type: ignore[arg-type]
    assert (backend.id, backend.execute("ls").output) == ("box", "ran ls\n")


def _logger(caplog: pytest.LogCaptureFixture) -> None:
    grader = ScriptedModel(messages=iter(calls()))
    agent = create_agent(ScriptedModel(messages=iter(calls())), middleware=[RubricMiddleware(model=grader)])
    with caplog.at_level(logging.ERROR, "deepfs"):
        agent.invoke({"messages": ["go"], "rubric": "be brief"})
    assert {record.name.partition(".")[0] for record in caplog.records} == {"deepfs"}


REPLACEMENTS: Final[dict[str, Callable[..., None]]] = {
    "ContextHubBackend": _hub,
    "LangSmithSandbox": _sandbox,
    "logger": _logger,
}


def test_each_listed_name_has_a_test() -> None:
    assert sorted(listed()) == sorted(REPLACEMENTS)


@pytest.mark.parametrize("name", sorted(REPLACEMENTS))
def test_the_replacement_works(name: str, request: pytest.FixtureRequest) -> None:
    replacement = REPLACEMENTS[name]
    needed = [request.getfixturevalue(each) for each in inspect.signature(replacement).parameters]
    replacement(*needed)
