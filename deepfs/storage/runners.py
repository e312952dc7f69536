"""What plans ask of flat storages, how plans run on each kind of storage, and how requests to servers are sent again.

A plan is a generator. It yields requests to the storage, or `Work` that takes long, receives the answers, and returns
the result of the operation. If the storage raises ChangedError, the operation starts again with a new plan.

A storage maps path → file and has four primitives: `stat`, `get`, `list` and `apply`. Derive from `InlineStorage` if
they never wait, from `BlockingStorage` if they block (sqlite3, boto3), from `AsyncStorage` if they are coroutines
(asyncpg). `StorageBackend` in `backends/flat.py` builds every operation of the contract on a storage.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import monotonic, sleep
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, final

import anyio
from msgspec import Struct

from deepfs._drivers import condition_of, failure_by, log_failure
from deepfs.errors import DeepFSError
from deepfs.search.flat import run_search, search_deadline
from deepfs.search.request import FileFilter, SearchRequest
from deepfs.storage.gathering import gather_each
from deepfs.sync import is_inline, run_shielded
from deepfs.text.arguments import check_integer
from deepfs.text.flat_tree import Change, ChangedError, FileStat, FileTree
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline

T = TypeVar("T")

# --- requests that are sent again ------------------------------------------------------------------------------------

CONTENTION: Final = 30.0
"""How long an operation is planned anew while others change the same files, in seconds."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When a request is tried again, and for how long.

    Args:
        attempts: How often a request is sent at most, if it fails for a reason that may pass.
        timeout: Seconds that one attempt may take.
        first_delay: Seconds to wait before the second attempt, at most. The wait is random, and its limit doubles with
            each further attempt.
        longest_delay: The limit at which that doubling ends, in seconds.
        contention: Seconds for which an operation is planned anew while others change the same files.

    Raises:
        TypeError: For something else than a number, and for a fraction of an attempt.
        ValueError: For a number that is not positive.
    """

    attempts: int = 5
    timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 2.0
    contention: float = CONTENTION

    def __post_init__(self) -> None:
        check_integer("attempts", self.attempts)
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)!r}")

    def delay(self, failed: int) -> float:
        """Return for how long to wait after a failed attempt.

        Args:
            failed: How many attempts have failed.

        Returns:
            A random number of seconds, so that clients that failed together do not come back together.
        """
        # A watch tries for ever, so the number may be too large for a power.
        return random.uniform(0, min(self.longest_delay, self.first_delay * 2.0 ** min(failed - 1, 64)))


def check_policy(given: RetryPolicy | None) -> RetryPolicy:
    """The policy, or the default for None. Raises TypeError for anything else."""
    if not isinstance(given, RetryPolicy | None):
        raise TypeError(f"retries must be a RetryPolicy, not {type(given).__name__}")
    return given or RetryPolicy()


class Requests:
    """Sends the requests of one backend to its server, by a policy.

    Args:
        policy: The policy.
        is_transient: Whether an error of the driver is one that may pass, such as a lost connection.
    """

    def __init__(self, policy: RetryPolicy, is_transient: Callable[[Exception], bool]) -> None:
        self.policy: RetryPolicy = policy
        self._is_transient = is_transient

    async def send(self, attempt: Callable[[], Awaitable[T]], *, attempts: int | None = None) -> T:
        """Send a request, again if it fails for a reason that may pass. Raises the error of the last attempt.

        `attempts` is how often it is sent at most, by default the number of the policy. A request that must not be
        carried out twice is sent once.
        """
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            try:
                with anyio.fail_after(self.policy.timeout):
                    return await attempt()
            except Exception as error:
                if failed == most or not self._may_pass(error):
                    raise
            await anyio.sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def send_blocking(self, attempt: Callable[[], T], *, attempts: int | None = None) -> T:
        """As `send`, for a function that blocks, in a worker thread. Nothing limits the time of an attempt."""
        most = attempts or self.policy.attempts
        for failed in range(1, most + 1):
            try:
                return attempt()
            except Exception as error:
                if failed == most or not self._may_pass(error):
                    raise
            sleep(self.policy.delay(failed))
        raise AssertionError("unreachable")

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, TimeoutError) or self._is_transient(error)


_PAUSE: Final = 0.02
"""The longest pause before an operation is planned anew, in seconds."""

# --- what plans ask --------------------------------------------------------------------------------------------------


class Stat(Struct, frozen=True):
    """Asks for the files at these paths without content. The answer has a `FileStat` for each path with a file."""

    paths: Sequence[str]

    def ask(self, storage: "Storage") -> Any:
        return storage.stat(self.paths)


class Get(Struct, frozen=True):
    """Asks for the files at these paths. The answer has the file of each path that has one."""

    paths: Sequence[str]

    def ask(self, storage: "Storage") -> Any:
        return storage.get(self.paths)


class GetEach(Struct, frozen=True):
    """As `Get`, but a file that cannot be read spoils no other: access to it in the answer raises the reason.

    The paths `ahead` are probably asked for next, in this order, so the storage may begin to fetch them.
    """

    paths: Sequence[str]
    ahead: Sequence[str] = ()

    def ask(self, storage: "Storage") -> Any:
        return storage.get_each(self.paths, self.ahead)


class List(Struct, frozen=True):
    """Asks for the files whose paths begin with `prefix`, or for the first `limit` of them.

    The answer is a mapping of path to `FileStat`, or a `FileTree`. It may hold other files as well.
    """

    prefix: str
    limit: int | None = None

    def ask(self, storage: "Storage") -> Any:
        return storage.list(self.prefix, self.limit)


class Children(Struct, frozen=True):
    """Asks for what is directly in a directory, whose path with `/` at the end is `prefix`.

    The answer is as that of `List`, but of the files deeper down it needs only one for each directory in this one.
    """

    prefix: str

    def ask(self, storage: "Storage") -> Any:
        return storage.children(self.prefix)


class Page(Struct, frozen=True):
    """Some of the files that a search may find, in the order of their paths."""

    files: Mapping[str, FileStat]
    last: str | None = None
    """The path up to which no other file can be found; None if there are no more files."""
    skipped: int = 0
    """How many other files up to there could not be searched."""
    truncated: bool = False
    """Whether the storage gave up, at a limit of its own, before all files were considered."""
    as_of: str | None = None
    """The time of the listing that the answer rests on; None if the storage itself was asked."""


class Find(Struct, frozen=True):
    """Asks for the next files, behind the path `after`, that a search may find. The answer is a `Page`.

    It may hold other files as well: the search checks the path and the content of each.
    """

    request: SearchRequest
    files: FileFilter
    after: str | None = None

    def ask(self, storage: "Storage") -> Any:
        return storage.find(self.request, self.files, self.after)


class Apply(Struct, frozen=True):
    """Asks to store the changes of an operation, additions before removals. The answer is the `files_update`, if any.

    The storage raises ChangedError, and stores nothing, if the condition of a change does not hold.
    """

    changes: Sequence[Change]

    def ask(self, storage: "Storage") -> Any:
        return storage.apply(self.changes)


@final
class Together(Struct, frozen=True):
    """Asks for several things at once. The answer is a list of the answers."""

    requests: Sequence["Primitive"]


@final
class Work(Struct, frozen=True):
    """A search of files in memory. It checks its deadline, and belongs off the event loop unless it is short."""

    run: Callable[[Deadline], Any]
    deadline: Deadline
    is_short: bool = False


Primitive: TypeAlias = Stat | Get | GetEach | List | Children | Find | Apply
Request: TypeAlias = Primitive | Together | Work
Plan: TypeAlias = Generator[Request, Any, T]


# --- storages, and how plans run on them -----------------------------------------------------------------------------

Kind: TypeAlias = Literal["look", "search", "change"]
Listing: TypeAlias = Mapping[str, FileStat] | FileTree


async def until_accepted(attempt: Callable[[], Awaitable[T]], seconds: float = CONTENTION) -> T:
    """Run an operation; run it again while it raises ChangedError, for up to `seconds`."""
    deadline = monotonic() + seconds
    while True:
        try:
            return await attempt()
        except ChangedError:
            if monotonic() > deadline:
                raise
        # The pause is random, so that two attempts that collided do not collide again.
        pause = random.uniform(0, _PAUSE)
        if is_inline():
            sleep(pause)  # noqa: ASYNC251  # There is no event loop to wait on.
        else:
            await anyio.sleep(pause)


class Storage(ABC):
    """Files by path, for one operation. The primitives of an `AsyncStorage` return awaitables of these results."""

    failures: ClassVar[tuple[type[Exception], ...]] = ()
    """The exceptions of the driver that callers get as `backend_error` or `timeout`. Those of deepfs pass unchanged."""

    scope: Hashable = None
    """Identifies the storage: storages take turns in searching. Set for searches only."""

    _awaits: ClassVar[bool] = True
    """Whether answers are awaitables."""

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        """Run a plan to its end.

        Args:
            plan: The plan of one operation.
            kind: Whether it looks at files, searches them or changes them.

        Returns:
            The result of the operation.
        """
        result: T
        try:
            request = plan.send(None)
            while True:
                try:
                    answer = self._answer(request)
                    if self._awaits or type(request) is Work:
                        answer = await answer
                except Exception as error:
                    request = plan.throw(self._report(error))
                else:
                    request = plan.send(answer)
        except StopIteration as end:
            result = end.value
        return result

    def _report(self, error: Exception) -> Exception:
        """The error to raise for an error of a primitive or a transaction; what the driver said is logged."""
        failure = self.translate(error)
        if isinstance(failure, DeepFSError):
            log_failure(failure)
        return failure

    def _answer(self, request: Request) -> Any:
        """The answer to a request, or what is awaited for it."""
        if type(request) is Work:
            return run_search(request.run, deadline=request.deadline, is_short=request.is_short, storage=self.scope)
        if type(request) is Together:
            return [each.ask(self) for each in request.requests]
        return request.ask(self)

    def look(self, plan: Callable[[], Plan[T]], kind: Kind) -> Awaitable[T]:
        """Run a plan that changes nothing. Only a transaction can refuse it.

        Args:
            plan: Makes the plan, anew for each attempt.
            kind: Whether it looks at files or searches them.

        Returns:
            The result of the operation.
        """
        return self.carry_out(plan(), kind)

    def translate(self, error: Exception) -> Exception:
        """Return the error to raise for an error of a primitive or a transaction.

        Args:
            error: The error.

        Returns:
            An error of `deepfs.errors` if the error is expected, else the error itself. After a ChangedError the
            operation is planned anew.
        """
        if isinstance(error, DeepFSError) or not isinstance(error, self.failures):
            return error
        return failure_by(error, condition_of(error), "storage", "The storage")

    @abstractmethod
    def stat(self, paths: Sequence[str]) -> Any:
        """Look at files without fetching content.

        Args:
            paths: The paths.

        Returns:
            A `FileStat` for each path that has a file.
        """

    @abstractmethod
    def get(self, paths: Sequence[str]) -> Any:
        """Fetch files.

        Args:
            paths: The paths.

        Returns:
            The file at each path that has one; `TaggedFiles` if each file has a tag.
        """

    def get_each(self, paths: Sequence[str], ahead: Sequence[str]) -> Any:
        """Fetch files, of which some may be unreadable, and perhaps begin to fetch others. By default this is `get`.

        Args:
            paths: The paths of the files to return.
            ahead: The paths that are probably asked for next, in this order.

        Returns:
            What `get` returns for `paths`. Access to a file that cannot be read raises an error about it.
        """
        return self.get(paths)

    @abstractmethod
    def list(self, prefix: str, limit: int | None = None) -> Any:
        """List files without fetching content.

        Args:
            prefix: The prefix of their paths; it ends in `/`. The result may hold other files as well.
            limit: How many files are needed; None is all.

        Returns:
            A `FileStat` for each file by path. A storage that already has the contents returns a `FileTree` of them.
        """

    def children(self, prefix: str) -> Any:
        """List what is directly in a directory. By default this is what `list` returns.

        Args:
            prefix: The path of the directory, with `/` at the end.

        Returns:
            What `list` returns, but of the files deeper down it needs only one for each directory in this one. That
            need not be a path that exists, and its stat does not matter.
        """
        return self.list(prefix)

    def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Any:
        """Name the next files that a search may find; for backends that declare `_finds`.

        The files come in the order of their paths, in pages of a size that the storage chooses. A file that the search
        would find must not be left out, while the others need not be.

        Args:
            request: The search, a `GlobRequest` or a `GrepRequest`.
            files: The files that it selects, by path. For a grep, `files.root` may be a file itself.
            after: The last path of the page before; None asks for the first page.

        Returns:
            A `Page`.

        Raises:
            NotImplementedError: By default.
        """
        raise NotImplementedError

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> Any:
        """Store all changes, or none. Those that add files come before those that remove files.

        A backend that declares `_is_transactional` also gets the changes of an `achange_files`, in its order.

        Args:
            changes: The changes.

        Returns:
            The `files_update` of the result, if the storage is graph state.

        Raises:
            ChangedError: The `condition` of a change does not hold. The operation is planned anew.
        """


class InlineStorage(Storage):
    """A storage whose primitives never wait: only a search suspends, or the pause before a retry."""

    _awaits = False


class BlockingStorage(Storage):
    """A storage whose primitives block: each operation runs as a whole, in one transaction, in a worker thread.

    Each object serves one operation, so what `transaction` opens belongs to this operation alone.
    """

    def transaction(self, kind: Kind) -> AbstractContextManager[object]:
        """The context in which the primitives of an operation are called, entered in the thread that calls them.

        It commits at the end and rolls back on an error.

        Args:
            kind: "change" if the operation may apply changes.

        Raises:
            ChangedError: Another process blocks the transaction. Do not wait for it here: that would occupy the thread.
        """
        return nullcontext()

    def look(self, plan: Callable[[], Plan[T]], kind: Kind) -> Awaitable[T]:
        return until_accepted(lambda: self.carry_out(plan(), kind))

    async def carry_out(self, plan: Plan[T], kind: Kind) -> T:
        if is_inline():
            return self._in_transaction(search_deadline() if kind == "search" else Deadline(), plan, kind)
        if kind == "search":
            return await pool.run_long(self._in_transaction, plan, kind, deadline=search_deadline(), storage=self.scope)
        return await pool.run(self._in_transaction, Deadline(), plan, kind, storage=self.scope)

    def _in_transaction(self, deadline: Deadline, plan: Plan[T], kind: Kind) -> T:
        with self._reporting(), self.transaction(kind):
            return self._run_plan(plan, deadline)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise an error of the driver as the error to raise for it."""
        try:
            yield
        except self.failures as error:
            if (failure := self._report(error)) is error:
                raise
            raise failure from failure.__cause__

    def _run_plan(self, plan: Plan[T], deadline: Deadline) -> T:
        result: T
        try:
            request = plan.send(None)
            while True:
                deadline.check_cancelled()
                try:
                    answer = request.run(deadline) if type(request) is Work else self._answer(request)
                except Exception as error:
                    request = plan.throw(self._report(error))
                else:
                    request = plan.send(answer)
        except StopIteration as end:
            result = end.value
        return result


class AsyncStorage(Storage):
    """A storage whose primitives are awaited. `apply` is shielded: once begun, it runs to its end."""

    apply_waits = True
    """Whether `apply` may suspend. If it never does, nothing can interrupt it, so it needs no shield."""

    def _answer(self, request: Request) -> Any:
        if type(request) is Together:
            return gather_each(lambda each: each.ask(self), request.requests)
        if type(request) is Apply and self.apply_waits:
            return run_shielded(partial(request.ask, self))
        return super()._answer(request)
