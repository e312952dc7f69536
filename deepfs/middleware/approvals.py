"""Rules of the mode `"interrupt"`, which ask a person before a tool is run."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.prebuilt.tool_node import ToolCallRequest

from deepfs.errors import InvalidPathError
from deepfs.middleware._langchain import AgentMiddleware, HumanInTheLoopMiddleware, InterruptOnConfig
from deepfs.middleware._messages import ToolResult
from deepfs.policy.permissions import approved
from deepfs.policy.rules import FilesystemOperation, FilesystemPermission, checked_rules, decisions_beneath

__all__ = ["ApprovalMiddleware", "asks_first"]

InterruptOn = Mapping[str, bool | InterruptOnConfig]


class _Use(NamedTuple):
    """What a call does with the path in one of its arguments."""

    operations: tuple[FilesystemOperation, ...]
    argument: str
    default: str | None = None
    whole_tree: bool = False


# A listing or a search leaves out what it may not show, so only where it begins is asked about.
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
    "execute": (_Use(("execute",), "", "/"),),
}


def asks_first(rules: Sequence[FilesystemPermission], name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a rule wants a person to approve this call of a tool."""
    return any(_asks(rules, use, operation, arguments) for use in _USES.get(name, ()) for operation in use.operations)


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
    # What may be denied beneath it is not known before: the backend sees to that.
    return first == "interrupt" or (use.whole_tree and first == "allow" and "interrupt" in beneath)


class ApprovalMiddleware(HumanInTheLoopMiddleware[Any, Any, Any]):
    """Asks a person before the calls that `interrupt_on` names, and those that a rule of mode `"interrupt"` matches.

    What was approved then passes those rules; what is denied stays denied.
    """

    def __init__(self, rules: Sequence[FilesystemPermission] = (), interrupt_on: InterruptOn | None = None) -> None:
        self._rules = checked_rules(rules)
        super().__init__(interrupt_on=_merged(self._rules, interrupt_on or {}))

    @staticmethod
    def where_needed(
        rules: Sequence[FilesystemPermission], interrupt_on: InterruptOn | None
    ) -> "list[AgentMiddleware[Any, Any, Any]]":
        """The middleware in a list, which is empty where nothing asks."""
        return [ApprovalMiddleware(rules, interrupt_on)] if interrupt_on or _interrupts(rules) else []

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        """Let a call that was approved pass."""
        return super().wrap_tool_call(request, self._passing(handler))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """As `wrap_tool_call`."""

        async def passing(asked: ToolCallRequest) -> ToolResult:
            if not self._asks(asked):
                return await handler(asked)
            with approved():
                return await handler(asked)

        return await super().awrap_tool_call(request, passing)

    def _passing(self, handler: Callable[[ToolCallRequest], ToolResult]) -> Callable[[ToolCallRequest], ToolResult]:
        def passing(asked: ToolCallRequest) -> ToolResult:
            if not self._asks(asked):
                return handler(asked)
            with approved():
                return handler(asked)

        return passing

    def _asks(self, request: ToolCallRequest) -> bool:
        return asks_first(self._rules, request.tool_call["name"], request.tool_call["args"])


def _interrupts(rules: Sequence[FilesystemPermission]) -> bool:
    return any(rule.mode == "interrupt" for rule in rules)


def _merged(rules: Sequence[FilesystemPermission], interrupt_on: InterruptOn) -> dict[str, bool | InterruptOnConfig]:
    """`interrupt_on`, with the tools that rules may want approved."""
    merged = dict(interrupt_on)
    if _interrupts(rules):
        merged.update({name: _config(rules, interrupt_on.get(name, False)) for name in _USES})
    return merged


def _config(rules: Sequence[FilesystemPermission], given: bool | InterruptOnConfig) -> bool | InterruptOnConfig:
    if given is True:
        return True

    def by_rules(request: ToolCallRequest) -> bool:
        return asks_first(rules, request.tool_call["name"], request.tool_call["args"])

    if given is False:
        return InterruptOnConfig(allowed_decisions=["approve", "edit", "reject"], when=by_rules)
    own = given.get("when")
    return (
        given
        if own is None
        else InterruptOnConfig(**{**given, "when": lambda request: own(request) or by_rules(request)})
    )
