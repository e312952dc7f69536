"""A wrapper that enforces rules on every operation of a backend."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Container, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from deepfs.backends._class_setup import judges_own_results
from deepfs.backends.operations import CHUNK_BYTES
from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError, ErrorCode, PermissionDeniedError, quoted
from deepfs.policy.rules import (
    ALLOWED,
    CompiledRules,
    Decision,
    FilesystemOperation,
    FilesystemPermission,
    Mode,
    checked_rules,
    decide,
    decide_beneath,
)
from deepfs.search.request import GlobRequest, GrepRequest, PathFilter
from deepfs.text import paths
from deepfs.text.entries import EntryChange, Omission, TreeListing, is_valid, joined
from deepfs.text.judging import BothJudges, Judge, Role, current_judge, given_under, judging
from deepfs.types import (
    ChangeEvent,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
    replaced,
)

__all__ = [
    "ALLOWED",
    "ApprovalNeededError",
    "Decision",
    "DeniedError",
    "FilesystemOperation",
    "FilesystemPermission",
    "Mode",
    "PermissionedBackend",
    "approved",
    "decide",
    "decide_beneath",
    "either",
    "visit_beneath",
]

FoundT = TypeVar("FoundT", FileInfo, GrepMatch)

_is_approved: ContextVar[bool] = ContextVar("deepfs_is_approved", default=False)


@contextmanager
def approved() -> Iterator[None]:
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

    def _rendered(self) -> str:
        where = "" if self.path is None else f" on {quoted(self.path)[1:-1]}"
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


class _RulesJudge:
    """Applies the rules to the paths that a backend finds when it resolves links; judges are equal if they are one."""

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
            refusal = _refusal(self._rules, operation, path, shown, self._is_approved)
            if refusal is not None:
                raise refusal


def _refusal(
    rules: CompiledRules, operation: FilesystemOperation, path: str, shown: str, is_approved: bool
) -> DeniedError | None:
    """The error, naming `shown`, if the rules refuse the operation on `path`; otherwise None."""
    mode = rules.mode(operation, path)
    if mode == "deny":
        return DeniedError(operation, shown)
    if mode == "interrupt" and not is_approved:
        return ApprovalNeededError(operation, shown)
    return None


class PermissionedBackend(WrapperBackend):
    """Enforces rules on every operation, for tools, code and other wrappers alike.

    The first rule that matches counts; without one, an operation is allowed. Both the normalised path and the path
    after links are followed (`aresolve_paths`) are checked; if one of them is denied, the operation is. A denied path
    gives the same `permission_denied` whether something is there or not, and is absent from `ls`, `glob` and `grep`; a
    search starts only where reading is allowed. Rules of the mode `"interrupt"` deny as well, with a text that says so,
    except within `approved()`.

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
        self.rules: tuple[FilesystemPermission, ...] = checked_rules(rules)
        self._restricted: frozenset[str] = frozenset(
            operation for rule in self.rules if rule.mode != "allow" for operation in rule.operations
        )
        self._compiled = CompiledRules(self.rules)
        self._judges: dict[tuple[object, ...], Judge] = {}
        self._filters: dict[frozenset[Mode], PathFilter] = {}
        if decide(self.rules, "execute").mode == "deny":
            self.capabilities: Capabilities = replace(self.capabilities, executes=False)
        self.offers_changes: bool = not self._compiled.hides("write", "/", {"deny"})

    # --- applying the rules ---

    def _refusal(self, operation: FilesystemOperation, path: str, shown: str) -> DeniedError | None:
        return _refusal(self._compiled, operation, path, shown, _is_approved.get())

    def _judging(
        self, source: Sequence[FilesystemOperation] = (), target: Sequence[FilesystemOperation] = ()
    ) -> judging:
        """A context for one call of `inner`, which then also judges the paths that it finds itself.

        `source` are the permissions needed for what is there, `target` those for what is put somewhere.
        """
        outer, needed = current_judge(), (tuple(self._watched(source)), tuple(self._watched(target)))
        if not any(needed):
            return judging(outer)
        own = self._judge(*needed, _is_approved.get())
        return judging(own if outer is None else BothJudges(own, outer))

    def _judge(
        self, source: tuple[FilesystemOperation, ...], target: tuple[FilesystemOperation, ...], is_approved: bool
    ) -> Judge:
        # One object for equal judges, so that searches that arrive together are carried out together.
        key = source, target, is_approved
        return self._judges.setdefault(key, _RulesJudge(self._compiled, source, target, is_approved))

    def _may(self, operations: Sequence[FilesystemOperation], path: str) -> bool:
        return not any(self._refusal(operation, path, path) for operation in operations)

    def _watched(self, operations: Sequence[FilesystemOperation]) -> list[FilesystemOperation]:
        """The items of `operations` that some rule restricts."""
        return [operation for operation in operations if operation in self._restricted]

    async def _checked(self, path: str, *operations: FilesystemOperation) -> str:
        """Normalise `path`. Raises if one of `operations` is refused on it or on the path that it resolves to."""
        path = paths.normalize(path)
        watched = self._watched(operations)
        if watched:
            self._raise_refusal(watched, path, path)
            for real in await self._real(path):
                if real is None:
                    raise DeniedError(watched[0], path)
                self._raise_refusal(watched, real, path)
        return path

    def _raise_refusal(self, operations: Sequence[FilesystemOperation], path: str, shown: str) -> None:
        for operation in operations:
            refusal = self._refusal(operation, path, shown)
            if refusal is not None:
                raise refusal

    async def _real(self, path: str) -> list[str | None]:
        """Resolve all links in `path`, and only those in its parent: reads follow a link, a delete removes the link."""
        real, directory = await self.inner.aresolve_paths([path, paths.parent(path)])
        return [real, None if directory is None else paths.join(directory, paths.name(path))]

    async def _visible(self, found: Sequence[FoundT]) -> list[FoundT]:
        """The items of `found` whose path, and the path that it resolves to, may be read.

        No rule can be about what lies outside of the backend: an entry of a listing that leads there is shown, since it
        is only a name, but no line of such a file.
        """
        places = dict.fromkeys(map(_place, found))
        plain = [path for path in places if self._may(["read"], path)]
        if judges_own_results(self.inner):
            visible = set(plain)
            return [record for record in found if _place(record) in visible]
        real = await self.inner.aresolve_paths(plain) if plain else []
        visible = {
            path
            for path, leads_to in zip(plain, real, strict=True)
            if leads_to == path or leads_to is None or self._may(["read"], leads_to)
        }
        outside = {path for path, leads_to in zip(plain, real, strict=True) if leads_to is None and is_valid(path)}
        return [record for record in found if _place(record) in visible and not _is_line_of(record, outside)]

    def _hidden(self, also: PathFilter | None) -> PathFilter | None:
        """The filter of paths that a search skips. It does not follow links: `_visible` must check what is found."""
        if not self._watched(["read"]):
            return also
        refused: frozenset[Mode] = frozenset(["deny"] if _is_approved.get() else ["deny", "interrupt"])
        # One object for equal filters, so that each is asked once for searches that are carried out together.
        return either(self._filters.setdefault(refused, _hidden_by(self._compiled, refused)), also)

    # --- one path ---

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        path = await self._checked(path, "read")
        with self._judging(["read"]):
            return await super().aread(path, offset, limit)

    async def aread_raw(self, path: str) -> ReadRawResult:
        path = await self._checked(path, "read")
        with self._judging(["read"]):
            return await super().aread_raw(path)

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        path = await self._checked(path, *_needed(if_match))
        with self._judging(target=_needed(if_match)):
            return await super().awrite(path, content, overwrite=overwrite, if_match=if_match)

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        path = await self._checked(path, "write", "read")
        with self._judging(["write", "read"], ["write", "read"]):
            return await super().aedit(path, old, new, replace_all, if_match=if_match)

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        mode = decide(self.rules, "execute").mode
        if mode == "deny":
            raise DeniedError("execute")
        if mode == "interrupt" and not _is_approved.get():
            raise ApprovalNeededError("execute")
        return await super().aexecute(command, timeout=timeout)

    # --- many paths ---

    async def als(self, path: str) -> LsResult:
        path = await self._checked(path, "read")
        with self._judging(["read"]):
            listing = await super().als(path)
        if listing.entries is None or not self._watched(["read"]):
            return listing
        return replaced(listing, entries=await self._visible(listing.entries))

    async def arun_glob(self, request: GlobRequest) -> GlobResult:
        path = await _begin_of_search(self, request.path)
        with self._judging(["read"]):
            found = await super().arun_glob(replace(request, path=path, hidden=self._hidden(request.hidden)))
        if found.matches is None or not self._watched(["read"]):
            return found
        return replaced(found, matches=await self._visible(found.matches))

    async def arun_grep(self, request: GrepRequest) -> GrepResult:
        path = await _begin_of_search(self, request.path)
        with self._judging(["read"]):
            return await self._grepped(replace(request, path=path, hidden=self._hidden(request.hidden)))

    async def _grepped(self, request: GrepRequest) -> GrepResult:
        found = await super().arun_grep(request)
        if found.matches is None or not self._watched(["read"]):
            return found
        visible, max_count = await self._visible(found.matches), request.max_count
        if max_count is not None and found.truncated and len(visible) < len(found.matches):
            # Denied matches counted for `max_count`: search again without a limit.
            found = await super().arun_grep(replace(request, max_count=None))
            visible = await self._visible(found.matches or [])
        limit = len(visible) if max_count is None else max(0, max_count)
        return replaced(
            found,
            matches=visible[:limit],
            truncated=found.truncated or len(visible) > limit,
            skipped=found.skipped and await self._visibly_skipped(found.skipped, request),
        )

    async def _visibly_skipped(self, skipped: int, request: GrepRequest) -> int:
        """How many of the files that `inner` skipped may be read; 0 if that cannot be found out."""
        if judges_own_results(self.inner):
            return skipped
        looked_at = GlobRequest(request.glob or "**", request.path, hidden=request.hidden)
        listed = await self.inner.arun_glob(looked_at)
        if listed.code is ErrorCode.NOT_A_DIRECTORY:
            return skipped
        if listed.matches is None or listed.truncated:
            return 0
        visible = {info.path for info in await self._visible(listed.matches)}
        for info in listed.matches:
            if info.path not in visible:
                one = replace(request, path=info.path, glob=None, max_count=None)
                skipped -= (await super().arun_grep(one)).skipped
        return max(0, skipped)

    # --- trees ---

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        path = await self._checked(path, *_needed(if_match))
        if self._watched(["write"]):
            await visit_beneath(self.inner, path, partial(self._check_beneath, path, ["write"]), follow=False)
        with self._judging(_needed(if_match)):
            return await super().adelete(path, if_match=if_match)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = await self._checked_transfer(src, dst, ["read"])
        with self._judging(["read"], ["write"]):
            return await super().acopy(src, dst, overwrite=overwrite)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        src, dst = await self._checked_transfer(src, dst, ["read", "write"])
        with self._judging(["read", "write"], ["write"]):
            return await super().amove(src, dst, overwrite=overwrite)

    async def _checked_transfer(self, src: str, dst: str, needed: list[FilesystemOperation]) -> tuple[str, str]:
        """Normalise both paths. Raises if the rules refuse a path at or beneath `src`, or its counterpart in `dst`."""
        src = await self._checked(src, *needed)
        dst = await self._checked(dst, "write")
        if self._restricted.isdisjoint(("read", "write")):
            return src, dst
        (real_dst,) = await self.inner.aresolve_paths([dst])

        def check(path: str, real: str) -> None:
            self._check_beneath(src, needed, path, real)
            arriving = paths.relative(path, src)
            self._check_beneath(dst, ["write"], paths.join(dst, arriving), paths.join(real_dst or dst, arriving))

        def pass_by(path: str) -> None:
            arriving = paths.join(dst, paths.relative(path, src))
            if decide_beneath(self.rules, "write", arriving).mode != "allow":
                raise DeniedError("write", dst)

        await visit_beneath(self.inner, src, check, follow=True, pass_by=pass_by)
        return src, dst

    def _check_beneath(self, top: str, operations: list[FilesystemOperation], *touched: str) -> None:
        """Raise if the operations are refused on a path beneath `top`; the error names only `top`."""
        for path in touched:
            self._raise_refusal(self._watched(operations), path, top)

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        needed: list[FilesystemOperation] = ["read", "write"] if deleting else ["read"]
        path = await self._checked(path, *needed)
        with self._judging(needed):
            listing = await self.inner.alist_tree(path, deleting=deleting)
        watched = self._watched(needed)
        if not watched:
            return listing
        real = await self.inner.aresolve_paths([entry.path for entry in listing.entries])
        shown = [
            entry
            for entry, leads_to in zip(listing.entries, real, strict=True)
            if is_valid(entry.path) and self._may(watched, entry.path) and self._may(watched, leads_to or entry.path)
        ]
        hidden = len(listing.entries) - len(shown)
        omission = Omission(hidden, ErrorCode.PERMISSION_DENIED, "rules forbid a part of it") if hidden else None
        return TreeListing(shown, joined(omission, listing.omission))

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        codes = [await self._refused(change.path, "write") for change in changes]
        allowed = [change for change, code in zip(changes, codes, strict=True) if code is None]
        with self._judging(["write"], ["write"]):
            passed = iter(await super().achange_entries(allowed))
        return [
            FileUploadResponse(change.path, code.value) if code else next(passed)
            for change, code in zip(changes, codes, strict=True)
        ]

    # --- batches ---

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        codes = [await self._refused(path, "write") for path, _ in files]
        allowed = [file for file, code in zip(files, codes, strict=True) if code is None]
        with self._judging(target=["write"]):
            passed = iter(await super().aupload_files(allowed))
        return [
            FileUploadResponse(path, error=code.value) if code else next(passed)
            for (path, _), code in zip(files, codes, strict=True)
        ]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        codes = [await self._refused(path, "read") for path in paths]
        allowed = [path for path, code in zip(paths, codes, strict=True) if code is None]
        with self._judging(["read"]):
            passed = iter(await super().adownload_files(allowed))
        return [
            FileDownloadResponse(path, error=code.value) if code else next(passed)
            for path, code in zip(paths, codes, strict=True)
        ]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        path = await self._checked(path, "write")
        content = given_under(current_judge(), chunks)
        with self._judging(target=["write"]):
            return await super().aupload_stream(path, content)

    async def adownload_stream(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> AsyncGenerator[bytes, None]:
        path = await self._checked(path, "read")
        async with aclosing(super().adownload_stream(path, chunk_size=chunk_size)) as stream:
            with self._judging(["read"]):  # What is open by then is what the chunks are read from.
                first = await anext(stream, None)
            if first is not None:
                yield first
            async for chunk in stream:
                yield chunk

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        path = await self._checked(path, "read")
        async with aclosing(super().awatch(path)) as events:
            async for event in events:
                for readable in await _readable(self, event, path):
                    yield readable

    async def _refused(self, path: str, operation: FilesystemOperation) -> ErrorCode | None:
        try:
            await self._checked(path, operation)
        except DeepFSError as error:
            return error.code
        return None


async def _begin_of_search(backend: PermissionedBackend, path: str | None) -> str | None:
    """Where a search begins. Without a path, rules that deny `/` restrict it to what they allow beneath.

    It stays without a path then, so that the same holds for rules of the backends within.
    """
    try:
        checked = await backend._checked(path or "/", "read")
    except DeniedError as error:
        if path or isinstance(error, ApprovalNeededError) or backend._compiled.hides("read", "/", {"deny"}):
            raise
        return None
    return checked if path else None


async def _readable(backend: PermissionedBackend, event: ChangeEvent, top: str) -> list[ChangeEvent]:
    """`event` of a watch of `top`, if its path may be read; otherwise nothing.

    The `resync` of a path that may not be read is one of the next path above it that may, unless certainly nothing at
    and beneath the path may be read. `top` may be read.
    """
    path = event.path
    if await backend._refused(path, "read") is None:
        return [event]
    hidden = backend._hidden(None)
    if event.kind != "resync" or (hidden is not None and hidden(path, is_dir=True)):
        return []
    while path != top and await backend._refused(path, "read") is not None:
        path = paths.parent(path)
    return [replace(event, path=path)]


def _place(record: FileInfo | GrepMatch) -> str:
    return record.path.rstrip("/") or "/"


def _is_line_of(record: FileInfo | GrepMatch, files: Container[str]) -> bool:
    return isinstance(record, GrepMatch) and record.path in files


def _needed(if_match: str | None) -> list[FilesystemOperation]:
    """The permissions that a change needs: with `if_match`, its result depends on the content."""
    return ["write"] if if_match is None else ["write", "read"]


def _hidden_by(rules: CompiledRules, refused: frozenset[Mode]) -> PathFilter:
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
