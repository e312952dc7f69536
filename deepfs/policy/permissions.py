"""A wrapper that enforces rules on every operation of a backend."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError, ErrorCode, PermissionDeniedError, quote
from deepfs.operations import (
    Batch,
    ChangeEntries,
    ChangeFiles,
    Copy,
    Delete,
    DownloadFiles,
    DownloadStream,
    Edit,
    Execute,
    Glob,
    Grep,
    ListTree,
    Ls,
    Move,
    Operation,
    PathFilter,
    Read,
    ReadRaw,
    ResolvePaths,
    Search,
    StoragePlaceOf,
    UploadFiles,
    UploadStream,
    Watch,
    Write,
)
from deepfs.policy.rules import (
    CompiledRules,
    FilesystemOperation,
    FilesystemPermission,
    Mode,
    check_rules,
    decide,
    decide_beneath,
)
from deepfs.text import paths
from deepfs.text.access import AccessCheck, AccessScope, BothChecks, Role, current_access, iterate_under
from deepfs.text.entries import Omission, TreeListing, is_valid, join_omissions
from deepfs.types import ChangeEvent, FileInfo, GlobResult, GrepMatch, GrepResult, LsResult, replace_fields

FoundT = TypeVar("FoundT", FileInfo, GrepMatch)

_is_approved: ContextVar[bool] = ContextVar("deepfs_is_approved", default=False)


def _refused_modes() -> frozenset[Mode]:
    return frozenset(["deny"] if _is_approved.get() else ["deny", "interrupt"])


@contextmanager
def as_approved() -> Iterator[None]:
    """Allow, within the block and in this task, the operations that rules of the mode `"interrupt"` match."""
    token = _is_approved.set(True)
    try:
        yield
    finally:
        _is_approved.reset(token)


class DeniedError(PermissionDeniedError):
    """A rule denies the operation. The text is the same whether something is at the path or not.

    Args:
        operation: The operation.
        path: The path; None for a command.
        reason: Why, in plain words.
    """

    def __init__(self, operation: str, path: str | None = None, reason: str = "") -> None:
        self.operation: str = operation
        self._set(path, reason)

    def _render(self) -> str:
        where = "" if self.path is None else f" on {quote(self.path)[1:-1]}"
        why = f": {self.reason}" if self.reason else ""
        return f"permission denied for {self.operation}{where}{why}"


class ApprovalNeededError(DeniedError):
    """A rule requires a person's approval, which is missing.

    Args:
        operation: The operation.
        path: The path; None for a command.
    """

    def __init__(self, operation: str, path: str | None = None) -> None:
        super().__init__(operation, path, "approval is needed")


class _RulesCheck:
    """Applies the rules to the paths that a backend finds when it resolves links; checks are equal if they are one."""

    def __init__(
        self,
        rules: CompiledRules,
        source: Sequence[FilesystemOperation],
        target: Sequence[FilesystemOperation],
        is_approved: bool,
    ) -> None:
        self._rules = rules
        self._needed: dict[Role, Sequence[FilesystemOperation]] = {"source": source, "target": target}
        self._is_approved = is_approved

    def check(self, path: str, role: Role, shown: str) -> None:
        for operation in self._needed[role]:
            _raise_refusal(self._rules.mode(operation, path), operation, shown, self._is_approved)


def _raise_refusal(mode: Mode, operation: FilesystemOperation, shown: str, is_approved: bool) -> None:
    """Raise the error, naming the path `shown`, if an operation of this mode is refused."""
    if mode == "deny":
        raise DeniedError(operation, shown)
    if mode == "interrupt" and not is_approved:
        raise ApprovalNeededError(operation, shown)


class PermissionedBackend(WrapperBackend):
    """Enforces rules on every operation, for tools, code and other wrappers alike.

    The first rule that matches counts; without one, an operation is allowed. Both the normalised path and the path
    after links are followed (`aresolve_paths`) are checked; if one of them is denied, the operation is. A denied path
    gives the same `permission_denied` whether something is there or not, and is absent from `ls`, `glob` and `grep`; a
    search starts only where reading is allowed. Rules of the mode `"interrupt"` deny as well, with a text that says so,
    except within `as_approved()`.

    `read`, `ls`, `glob`, `grep` and downloads need permission to read; `write`, `delete` and uploads to write; `edit`,
    and `write` and `delete` with `if_match`, both, since their results depend on the content. `copy` reads the source
    and writes the destination, `move` also writes the source; these and `delete` need permission for every path under a
    directory, and change nothing if one is denied. `skipped` of a grep counts the files that may be read.

    `execute` is a separate permission. A command is not subject to rules about paths: where these must hold, deny
    `execute` or use a backend that does not run commands.

    On disk, and in the workspace of a `BubblewrapSandbox` or `LandlockSandbox`, a path is checked again where it is
    used, with its directory held open: a process that swaps links in between gains nothing. Elsewhere, where links
    exist, it may gain access that the rules deny. Everywhere, a process that moves a denied file to an allowed path has
    made it an allowed one.
    Each hard link of a file is a file of its own for the rules. Names are compared exactly: on a file system that
    ignores case, rules must cover every spelling.

    Args:
        inner: The backend.
        rules: The rules, in order.

    Raises:
        TypeError: If an item of `rules` is not a rule.
    """

    is_synchronous: bool = True
    _shown = ("inner", "rules")

    def __init__(self, inner: BackendProtocol, rules: Sequence[FilesystemPermission] = ()) -> None:
        super().__init__(inner)
        self.rules: tuple[FilesystemPermission, ...] = check_rules(rules)
        self._restricted: frozenset[str] = frozenset(
            operation for rule in self.rules if rule.mode != "allow" for operation in rule.operations
        )
        self._compiled = CompiledRules(self.rules)
        self._access_checks: dict[tuple[object, ...], AccessCheck] = {}
        self._filters: dict[frozenset[Mode], PathFilter] = {}
        if decide(self.rules, "execute").mode == "deny":
            self.capabilities: Capabilities = replace(self.capabilities, executes=False)
        self.offers_changes: bool = not self._compiled.hides("write", "/", {"deny"})

    # --- applying the rules ---

    def _access_scope(
        self, source: Sequence[FilesystemOperation] = (), target: Sequence[FilesystemOperation] = ()
    ) -> AccessScope:
        """A context for one call of `inner`, which then also checks the paths that it finds itself.

        `source` are the permissions needed for what is there, `target` those for what is put somewhere.
        """
        outer, needed = current_access(), (tuple(self._only_restricted(source)), tuple(self._only_restricted(target)))
        if not any(needed):
            return AccessScope(outer)
        # One object for equal checks, so that searches that arrive together are carried out together.
        key = *needed, _is_approved.get()
        own = self._access_checks.setdefault(key, _RulesCheck(self._compiled, *key))
        return AccessScope(own if outer is None else BothChecks(own, outer))

    def _permits(self, operations: Sequence[FilesystemOperation], path: str) -> bool:
        refused = _refused_modes()
        return all(self._compiled.mode(operation, path) not in refused for operation in operations)

    def _only_restricted(self, operations: Sequence[FilesystemOperation]) -> list[FilesystemOperation]:
        """The items of `operations` that some rule restricts."""
        return [operation for operation in operations if operation in self._restricted]

    async def _check(self, path: str, *operations: FilesystemOperation) -> str:
        """Normalise `path`. Raises if one of `operations` is refused on it or on the path that it resolves to."""
        path = paths.normalize(path)
        watched = self._only_restricted(operations)
        if watched:
            self._raise_refusal(watched, path, path)
            for real in await self._real(path):
                if real is None:
                    raise DeniedError(watched[0], path)
                if real != path:
                    self._raise_refusal(watched, real, path)
        return path

    def _raise_refusal(self, operations: Sequence[FilesystemOperation], path: str, shown: str) -> None:
        for operation in operations:
            _raise_refusal(self._compiled.mode(operation, path), operation, shown, _is_approved.get())

    async def _real(self, path: str) -> list[str | None]:
        """Resolve all links in `path`, and only those in its parent: reads follow a link, a delete removes the link."""
        real, directory = await self.inner.aresolve_paths([path, paths.parent(path)])
        return [real, None if directory is None else paths.join(directory, paths.name(path))]

    async def _visible(self, found: Sequence[FoundT]) -> list[FoundT]:
        """The items of `found` whose path, and the path that it resolves to, may be read.

        No rule can be about what lies outside of the backend: an entry of a listing that leads there is shown, since it
        is only a name, but no line of such a file.
        """
        mode, refused = self._compiled.mode, _refused_modes()
        places = [_place(record) for record in found]
        plain = [path for path in dict.fromkeys(places) if mode("read", path) not in refused]
        if self.inner.judges_results:
            visible = set(plain)
            return [record for record, place in zip(found, places, strict=True) if place in visible]
        real = await self.inner.aresolve_paths(plain) if plain else []
        visible = {
            path
            for path, leads_to in zip(plain, real, strict=True)
            if leads_to == path or leads_to is None or mode("read", leads_to) not in refused
        }
        outside = {path for path, leads_to in zip(plain, real, strict=True) if leads_to is None and is_valid(path)}
        return [
            record
            for record, place in zip(found, places, strict=True)
            if place in visible and not (record.path in outside and isinstance(record, GrepMatch))
        ]

    def _hiding_filter(self, also: PathFilter | None) -> PathFilter | None:
        """The filter of paths that a search skips. It does not follow links: `_visible` must check what is found."""
        if not self._only_restricted(["read"]):
            return also
        refused = _refused_modes()
        # One object for equal filters, so that each is asked once for searches that are carried out together.
        return either(self._filters.setdefault(refused, _hiding_filter(self._compiled, refused)), also)

    # --- operations ---

    async def run(self, operation: Operation) -> Any:
        source, target = _permissions_for(operation)
        needed = source if source == target else [*source, *target]
        match operation:
            case Execute():
                mode = decide(self.rules, "execute").mode
                if mode == "deny":
                    raise DeniedError("execute")
                if mode == "interrupt" and not _is_approved.get():
                    raise ApprovalNeededError("execute")
                return await super().run(operation)
            case ResolvePaths() | StoragePlaceOf():
                return await self.inner.arun(operation)
            case Batch():

                async def carry_out(permitted: Operation) -> Any:
                    with self._access_scope(source, target):
                        return await self.inner.arun(permitted)

                async def check(one: Operation) -> None:
                    of_source, of_target = _permissions_for(one)
                    await self._check(one.paths[0], *(of_source or of_target))

                return await operation.where(check, carry_out)
            case Search(path=path):
                operation = replace(operation, path=await self._begin_of_search(path))
                operation = replace(operation, hidden=self._hiding_filter(operation.hidden))
            case Copy(src, dst):
                src, dst = await self._check_transfer(src, dst, source)
                operation = replace(operation, src=src, dst=dst)
            case _:
                checked = await self._check(operation.paths[0], *needed)
                operation = operation.at(lambda _: checked)
        match operation:
            case Watch():
                return self._readable_events(operation)
            case DownloadStream():
                return self._open(operation)
            case UploadStream(chunks=chunks):
                operation = replace(operation, chunks=iterate_under(current_access(), chunks))
            case Delete(path) if self._only_restricted(["write"]):
                await visit_beneath(self.inner, path, partial(self._check_beneath, path, ["write"]), follow=False)
        with self._access_scope(source, target):
            return await self._visible_answer(operation, await self.inner.arun(operation))

    # --- what may be seen ---

    async def _begin_of_search(self, path: str | None) -> str | None:
        """Where a search begins. Without a path, rules that deny `/` restrict it to what they allow beneath.

        It stays without a path then, so that the same holds for rules of the backends within.
        """
        try:
            checked = await self._check(path or "/", "read")
        except DeniedError as error:
            if path or isinstance(error, ApprovalNeededError) or self._compiled.hides("read", "/", {"deny"}):
                raise
            return None
        return checked if path else None

    async def _visible_answer(self, operation: Operation, answer: Any) -> Any:
        """The answer without what the rules hide."""
        hides = bool(self._only_restricted(_READ))
        match answer:
            case LsResult(entries=[*found]) if hides:
                return replace_fields(answer, entries=await self._visible(found))
            case GlobResult(matches=[*found]) if hides:
                return replace_fields(answer, matches=await self._visible(found))
            case GrepResult(matches=[*_]) if hides and isinstance(operation, Grep):
                return await self._visible_lines(operation, answer)
            case TreeListing() if isinstance(operation, ListTree):
                needed, _ = _permissions_for(operation)
                return await self._visible_tree(answer, self._only_restricted(needed))
        return answer

    async def _visible_lines(self, request: Grep, found: GrepResult) -> GrepResult:
        matches = found.matches or []
        visible, max_count = await self._visible(matches), request.max_count
        if max_count is not None and found.truncated and len(visible) < len(matches):
            # Denied matches counted for `max_count`: search again without a limit.
            found = await self.inner.arun(replace(request, max_count=None))
            visible = await self._visible(found.matches or [])
        limit = len(visible) if max_count is None else max(0, max_count)
        return replace_fields(
            found,
            matches=visible[:limit],
            truncated=found.truncated or len(visible) > limit,
            skipped=found.skipped and await self._visibly_skipped(found.skipped, request),
        )

    async def _visibly_skipped(self, skipped: int, request: Grep) -> int:
        """How many of the files that `inner` skipped may be read; 0 if that cannot be found out."""
        if self.inner.judges_results:
            return skipped
        listed: GlobResult = await self.inner.arun(Glob(request.glob or "**", request.path, hidden=request.hidden))
        if listed.code is ErrorCode.NOT_A_DIRECTORY:
            return skipped
        if listed.matches is None or listed.truncated:
            return 0
        visible = {info.path for info in await self._visible(listed.matches)}
        for info in listed.matches:
            if info.path not in visible:
                one = await self.inner.arun(replace(request, path=info.path, glob=None, max_count=None))
                skipped -= one.skipped
        return max(0, skipped)

    async def _visible_tree(self, listing: TreeListing, watched: Sequence[FilesystemOperation]) -> TreeListing:
        if not watched:
            return listing
        real = await self.inner.aresolve_paths([entry.path for entry in listing.entries])
        shown = [
            entry
            for entry, leads_to in zip(listing.entries, real, strict=True)
            if is_valid(entry.path)
            and self._permits(watched, entry.path)
            and self._permits(watched, leads_to or entry.path)
        ]
        hidden = len(listing.entries) - len(shown)
        omission = Omission(hidden, ErrorCode.PERMISSION_DENIED, "rules forbid a part of it") if hidden else None
        return TreeListing(shown, join_omissions(omission, listing.omission))

    # --- streams ---

    async def _open(self, operation: DownloadStream) -> AsyncGenerator[bytes, None]:
        async with aclosing(await self.inner.arun(operation)) as chunks:
            with self._access_scope(["read"]):  # What is open by then is what the chunks are read from.
                first = await anext(chunks, None)
            if first is not None:
                yield first
            async for chunk in chunks:
                yield chunk

    async def _readable_events(self, operation: Watch) -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(await self.inner.arun(operation)) as events:
            async for event in events:
                if (readable := await self._readable(event, operation.path)) is not None:
                    yield readable

    async def _readable(self, event: ChangeEvent, top: str) -> ChangeEvent | None:
        """`event` of a watch of `top`, if its path may be read.

        The `resync` of a path that may not be read is one of the next path above it that may, unless certainly nothing
        at and beneath the path may be read. `top` may be read.
        """
        path = event.path
        if await self._may_read(path):
            return event
        hidden = self._hiding_filter(None)
        if event.kind != "resync" or (hidden is not None and hidden(path, is_dir=True)):
            return None
        while path != top and not await self._may_read(path):
            path = paths.parent(path)
        return replace(event, path=path)

    async def _may_read(self, path: str) -> bool:
        with suppress(DeepFSError):
            await self._check(path, "read")
            return True
        return False

    # --- trees ---

    async def _check_transfer(self, src: str, dst: str, needed: Sequence[FilesystemOperation]) -> tuple[str, str]:
        """Normalise both paths. Raises if the rules refuse a path at or beneath `src`, or its counterpart in `dst`."""
        src = await self._check(src, *needed)
        dst = await self._check(dst, "write")
        if self._restricted.isdisjoint(("read", "write")):
            return src, dst
        (real_dst,) = await self.inner.aresolve_paths([dst])

        def check(path: str, real: str) -> None:
            self._check_beneath(src, needed, path, real)
            arriving = paths.relative(path, src)
            self._check_beneath(dst, ["write"], paths.join(dst, arriving), paths.join(real_dst or dst, arriving))

        def check_target(path: str) -> None:
            arriving = paths.join(dst, paths.relative(path, src))
            if decide_beneath(self.rules, "write", arriving).mode != "allow":
                raise DeniedError("write", dst)

        await visit_beneath(self.inner, src, check, follow=True, pass_by=check_target)
        return src, dst

    def _check_beneath(self, top: str, operations: Sequence[FilesystemOperation], *touched: str) -> None:
        """Raise if the operations are refused on a path beneath `top`; the error names only `top`."""
        for path in touched:
            self._raise_refusal(self._only_restricted(operations), path, top)


def _place(record: FileInfo | GrepMatch) -> str:
    return record.path.rstrip("/") or "/"


_READ: Final[Sequence[FilesystemOperation]] = ["read"]
_WRITE: Final[Sequence[FilesystemOperation]] = ["write"]
_BOTH: Final[Sequence[FilesystemOperation]] = ["write", "read"]
_READ_WRITE: Final[Sequence[FilesystemOperation]] = ["read", "write"]
_NOTHING: Final[Sequence[FilesystemOperation]] = ()


def _permissions_for(operation: Operation) -> tuple[Sequence[FilesystemOperation], Sequence[FilesystemOperation]]:
    """The permissions that an operation needs for what is there, and for what is put somewhere.

    The result of an edit, and of a change with `if_match`, depends on the content.
    """
    match operation:
        case (
            Read()
            | ReadRaw()
            | Ls()
            | Search()
            | DownloadFiles()
            | DownloadStream()
            | Watch()
            | ListTree(deleting=False)
        ):
            return _READ, _NOTHING
        case Write(if_match=if_match):
            return _NOTHING, _WRITE if if_match is None else _BOTH
        case Delete(if_match=if_match):
            return _WRITE if if_match is None else _BOTH, _NOTHING
        case Edit():
            return _BOTH, _BOTH
        case Move():
            return _READ_WRITE, _WRITE
        case Copy():
            return _READ, _WRITE
        case UploadFiles() | UploadStream():
            return _NOTHING, _WRITE
        case ChangeFiles(files):
            needed = _WRITE if all(change.if_match is None for change in files) else _BOTH
            return (
                needed if any(change.content is None for change in files) else _NOTHING,
                needed if any(change.content is not None for change in files) else _NOTHING,
            )
        case ChangeEntries():
            return _WRITE, _WRITE
        case ListTree():
            return _READ_WRITE, _NOTHING
        case _:
            return _NOTHING, _NOTHING


def _hiding_filter(rules: CompiledRules, refused: frozenset[Mode]) -> PathFilter:
    """The filter that hides paths for which a rule with a mode in `refused` counts; links are not followed."""

    def is_hidden(path: str, *, is_dir: bool) -> bool:
        return rules.hides("read", path, refused) if is_dir else rules.mode("read", path) in refused

    return is_hidden


def either(first: PathFilter, second: PathFilter | None) -> PathFilter:
    """The filter that hides what one of both filters hides."""
    if second is None:
        return first
    return lambda path, *, is_dir: first(path, is_dir=is_dir) or second(path, is_dir=is_dir)


_NOTHING_BENEATH = (ErrorCode.NOT_A_DIRECTORY, ErrorCode.FILE_NOT_FOUND)


async def visit_beneath(
    backend: BackendProtocol,
    top: str,
    visit: Callable[[str, str], object],
    *,
    follow: bool,
    pass_by: Callable[[str], object] = lambda _: None,
) -> None:
    """Call `visit` with the path and the real path of each entry beneath the directory `top`, in no particular order.

    With `follow`, the real path is the target of a link, and linked directories are entered, but each directory only
    once: `pass_by` is called with each other path of it. Without `follow`, links are not followed. An error that
    `visit` raises ends the walk. Raises PermissionDeniedError if a directory cannot be listed.
    """
    (real_top,) = await backend.aresolve_paths([top])
    pending = [(top, real_top or top)]
    seen = {real_top}
    while pending:
        directory, real_directory = pending.pop()
        listing = await backend.als(directory)
        if listing.entries is None:
            if listing.code in _NOTHING_BENEATH:
                continue
            raise PermissionDeniedError(top, "not everything beneath it can be listed")
        children = [entry.path.rstrip("/") for entry in listing.entries]
        targets = await backend.aresolve_paths(children) if children else []
        for entry, path, target in zip(listing.entries, children, targets, strict=True):
            own = paths.join(real_directory, paths.name(path))
            visit(path, (target or own) if follow else own)
            if not entry.is_dir or not (follow or target == own):
                continue
            if target in seen:
                pass_by(path)
            else:
                seen.add(target)
                pending.append((path, target or own))
