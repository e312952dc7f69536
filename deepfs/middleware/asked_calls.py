"""Which calls a person is asked about: those that rules or `interrupt_on` name, and those with the same effect."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from langgraph.prebuilt.tool_node import ToolCallRequest

from deepfs.errors import InvalidPathError
from deepfs.middleware._base import DecisionType, InterruptOnConfig
from deepfs.policy.rules import FilesystemOperation, FilesystemPermission, decisions_beneath
from deepfs.text.patches import PatchError, added_text, patch_sections

if TYPE_CHECKING:
    from langchain_core.messages import ToolCall

__all__ = [
    "InterruptOn",
    "asks_first",
    "equivalent_calls",
    "has_interrupts",
    "with_rules",
    "with_similar_tools",
]

InterruptOn = Mapping[str, bool | InterruptOnConfig]


class _Use(NamedTuple):
    """How a tool uses the path in one of its arguments."""

    operations: tuple[FilesystemOperation, ...]
    argument: str
    default: str | None = None
    whole_tree: bool = False


# A listing or a search omits paths that the rules hide, so only its start directory needs approval.
_USES: Final[Mapping[str, tuple[_Use, ...]]] = {
    "ls": (_Use(("read",), "path", "/"),),
    "read_file": (_Use(("read",), "file_path"),),
    "write_file": (_Use(("write",), "file_path"),),
    "edit_file": (_Use(("read", "write"), "file_path"),),
    "glob": (_Use(("read",), "path", "/"),),
    "grep": (_Use(("read",), "path", "/"),),
    "delete": (_Use(("write",), "file_path", whole_tree=True),),
    "move": (
        _Use(("read", "write"), "source", whole_tree=True),
        _Use(("write",), "destination", whole_tree=True),
    ),
    "copy": (_Use(("read",), "source", whole_tree=True), _Use(("write",), "destination", whole_tree=True)),
    "execute": (_Use(("execute",), "", "/"),),
}

_DECISIONS: Final[list[DecisionType]] = list(get_args(DecisionType))


# --- rules ---


def asks_first(rules: Sequence[FilesystemPermission], name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a rule requires a person's approval of this tool call."""
    return any(
        _asks(rules, use, operation, given)
        for tool, given in equivalent_calls(name, arguments)
        for use in _USES.get(tool, ())
        for operation in use.operations
    )


def _asks(
    rules: Sequence[FilesystemPermission], use: _Use, operation: FilesystemOperation, arguments: Mapping[str, Any]
) -> bool:
    path = arguments.get(use.argument) or use.default
    if not isinstance(path, str):
        return False
    try:
        first, *beneath = [decision.mode for decision in decisions_beneath(rules, operation, path)]
    except InvalidPathError:
        return False
    # Whether rules deny anything beneath the path is not known yet; the backend checks that.
    return first == "interrupt" or (use.whole_tree and first == "allow" and "interrupt" in beneath)


def has_interrupts(rules: Sequence[FilesystemPermission]) -> bool:
    """Whether a rule asks a person."""
    return any(rule.mode == "interrupt" for rule in rules)


_RULED: Final = (*_USES, "apply_patch", "memory")


def with_rules(rules: Sequence[FilesystemPermission], named: InterruptOn) -> dict[str, bool | InterruptOnConfig]:
    """Return `named` with entries for the tools that the rules may interrupt."""
    ruled = _RULED if has_interrupts(rules) else ()
    return {**named, **{name: _config(rules, named.get(name, False)) for name in ruled}}


def _config(rules: Sequence[FilesystemPermission], given: bool | InterruptOnConfig) -> bool | InterruptOnConfig:
    if given is True:
        return True

    def by_rules(request: ToolCallRequest) -> bool:
        return asks_first(rules, request.tool_call["name"], request.tool_call["args"])

    if given is False:
        return InterruptOnConfig(allowed_decisions=_DECISIONS, when=by_rules)
    own = given.get("when")
    return (
        given
        if own is None
        else InterruptOnConfig(**{**given, "when": lambda request: own(request) or by_rules(request)})
    )


# --- tools with the effect of a tool in interrupt_on ---

_SIMILAR_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "move": ("write_file", "edit_file", "delete"),
    "copy": ("write_file", "edit_file", "delete"),
    "write_file": ("edit_file", "delete"),
    "apply_patch": ("write_file", "edit_file", "delete"),
    "memory": ("write_file", "edit_file", "delete"),
}
"""For a tool, others whose effect on files it can have: an entry of `interrupt_on` for one of them covers the tool.

An `interrupt_on` that was written for deepagents does not expect that the tool has such effects.
"""


def with_similar_tools(interrupt_on: InterruptOn) -> dict[str, bool | InterruptOnConfig]:
    """Return `interrupt_on` with entries for the tools of `_SIMILAR_TOOLS` that follow from the tools that it names.

    Entries that LangChain refuses stay as they are.
    """
    return {**interrupt_on, **{name: _similar_config(name, asked) for name, asked in _asked_similar(interrupt_on)}}


def _asked_similar(interrupt_on: InterruptOn) -> Iterator[tuple[str, InterruptOn]]:
    asking = {name: config for name, config in interrupt_on.items() if config is True or _decisions(config)}
    for name, others in _SIMILAR_TOOLS.items():
        asked = {other: asking[other] for other in others if other in asking}
        if asked and name not in interrupt_on:
            yield name, asked


def _decisions(config: object) -> Sequence[str]:
    return config.get("allowed_decisions") or () if isinstance(config, Mapping) else ()


def _similar_config(name: str, asked: InterruptOn) -> InterruptOnConfig:
    """Return the config for `name`: ask if an entry of `asked` would ask; allow decisions that all entries allow."""
    lists = [_DECISIONS if isinstance(config, bool) else config["allowed_decisions"] for config in asked.values()]
    allowed = [decision for decision in _DECISIONS if all(decision in each for each in lists)]

    def when(request: ToolCallRequest) -> bool:
        return any(_would_ask(tool, config, request) for tool, config in asked.items())

    return InterruptOnConfig(allowed_decisions=allowed or ["approve", "reject"], when=when)


def _would_ask(tool: str, config: bool | InterruptOnConfig, request: ToolCallRequest) -> bool:
    own = None if isinstance(config, bool) else config.get("when")
    for arguments in _done_by(request.tool_call["name"], request.tool_call["args"], tool):
        called: ToolCall = {**request.tool_call, "name": tool, "args": arguments}
        if own is None or _holds(own, request.override(tool_call=called)):
            return True
    return False


def _holds(when: Callable[[ToolCallRequest], bool], request: ToolCallRequest) -> bool:
    try:
        return when(request)
    except Exception:  # `when` was written for another tool. An unneeded question does no harm.
        return True


def _done_by(name: str, arguments: Mapping[str, Any], tool: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of calls of `tool` with the effect of this call of the tool `name`."""
    if name in ("apply_patch", "memory"):
        for equivalent, given in equivalent_calls(name, arguments):
            yield from [given] if equivalent == tool else _done_by(equivalent, given, tool)
        return
    if name in ("read_file", "edit_file", "delete"):
        changed = []
    elif name == "write_file":
        changed = [arguments.get("file_path")] if arguments.get("overwrite") else []
    else:
        changed = [arguments.get("destination")]
    if name == "move" and tool == "delete":
        changed = [arguments.get("source"), *changed]
    texts = {"write_file": {"content": ""}, "edit_file": {"old_string": "", "new_string": ""}}.get(tool, {})
    for path in changed:
        yield {"file_path": path, **texts}


# --- tools that do what the file tools do ---


def equivalent_calls(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of file tools that do what a call of `apply_patch` or `memory` does; for others, the call itself."""
    if name == "apply_patch":
        yield from _patch_calls(arguments)
    elif name == "memory":
        yield from _memory_calls(arguments)
    else:
        yield name, {**arguments}


def _patch_calls(arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        sections = patch_sections(str(arguments.get("input")))
        contents = {each.path: added_text(each.lines, each.path) for each in sections if each.action == "add"}
    except PatchError:  # The tool refuses it.
        return
    for patch in sections:
        if patch.action == "add":
            yield "write_file", {"file_path": patch.path, "content": contents[patch.path]}
        elif patch.action == "delete":
            yield "delete", {"file_path": patch.path}
        else:
            yield "edit_file", {"file_path": patch.path, "old_string": "", "new_string": ""}
        if patch.move_to:
            yield "move", {"source": patch.path, "destination": patch.move_to}


def _memory_calls(arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    path = arguments.get("path")
    match arguments.get("command"):
        case "view":
            yield "read_file", {"file_path": path}
        case "create":
            yield "write_file", {"file_path": path, "content": arguments.get("file_text")}
        case "str_replace" | "insert":
            new = arguments.get("new_str") or arguments.get("insert_text")
            yield "edit_file", {"file_path": path, "old_string": arguments.get("old_str"), "new_string": new or ""}
        case "delete":
            yield "delete", {"file_path": path}
        case "rename":
            yield "move", {"source": arguments.get("old_path"), "destination": arguments.get("new_path")}
