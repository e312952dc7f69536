"""Path locks for tasks and threads; the table of holders and waiters is shared by threads without blocking."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Set
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from itertools import takewhile
from operator import is_not
from weakref import WeakKeyDictionary, ref

from anyio import move_on_after

from deepfs.threads.forks import ForkSafeLock, Lock, after_fork, get_ident
from deepfs.threads.loop_bridge import LOOK_S, LoopCallbacks, present_callbacks, waiting_threads


class Request:
    """A request to lock several paths, granted for all of them at once."""

    __slots__ = ("claims", "is_granted", "loop", "notify", "obstacles", "thread")

    def __init__(self, paths: Iterable[str], shared: Iterable[str] = ()) -> None:
        self.loop: LoopCallbacks | None = None
        """The event loop of the holder; None for a thread, which always comes to the end of its `with` block."""
        self.thread: int = get_ident()
        """The thread of the holder, with or without an event loop."""
        self.claims: dict[str, bool] = dict.fromkeys(paths, True)
        """Whether each path is claimed exclusively, as the given ones are, and not their parents."""
        for path in tuple(self.claims):
            while path != "/":
                path = path[: path.rindex("/")] or "/"
                if path in self.claims:  # Its parents are claimed as well, or will be in a later round.
                    break
                self.claims[path] = False
        for path in shared:
            self.claims.setdefault(path, False)
        self.obstacles: set[str] = set()
        """The claimed paths at which an earlier request still blocks this one."""
        self.is_granted: bool = False
        self.notify: Callable[[], object] | None = None
        """Called once, in any thread, when the request is granted, or enters the queues late; must not block.

        Check `is_granted` and what the request waits for after setting it.
        """

    def advance(self, path: str) -> None:
        """Note that no earlier request blocks this one at `path`; grant it if that was the last."""
        self.obstacles.discard(path)
        if not self.obstacles and not self.is_granted:
            self.is_granted = True
            self.wake()

    def wake(self) -> None:
        """Call `notify`, and forget it."""
        if (notify := self.notify) is not None:
            self.notify = None  # Before the call, since the waiter may set it again as soon as it is woken.
            notify()


class _WaitingLine(dict[Request, bool]):
    """The queue of one path: requests, granted or waiting, in order of arrival, and whether each is exclusive."""

    exclusives = 0
    """The number of exclusive requests in the queue."""

    def join(self, request: Request, exclusive: bool) -> bool:
        """Add a request; return whether nothing in the queue blocks it."""
        free = not (self if exclusive else self.exclusives)
        self[request] = exclusive
        if exclusive:
            self.exclusives += 1
        return free

    def leave(self, request: Request) -> Iterable[Request]:
        """Remove `request`; return the requests that nothing blocks now and that it may have blocked."""
        if self.get(request):
            # In this order and without a call, after which a signal handler could raise.
            del self[request]
            self.exclusives -= 1
            return self.first()
        self.pop(request, None)
        return self.first() if self.exclusives and next(iter(self.values())) else ()

    def first(self) -> list[Request]:
        """The requests that nothing in the queue blocks."""
        front: list[Request] = []
        for request, exclusive in self.items():
            if not (exclusive and front):
                front.append(request)
            if exclusive:
                break
        return front


class LockTable:
    """The queues of requests, one for each path.

    Two requests conflict if they claim the same path, at least one of them exclusively. A request is granted when no
    earlier request, granted or waiting, conflicts with it. So conflicting requests are granted in order of arrival, and
    there is no starvation and no deadlock.

    Changes of the table are queued, and the thread that finds the table free carries out all of them. So no thread
    blocks, not even in a signal handler or a finaliser that interrupts a change; but it must not wait for the change
    that it interrupted: see `is_changed_by`.
    """

    __slots__ = ("_changes", "_lines", "_turns")

    def __init__(self) -> None:
        self._lines: dict[str, _WaitingLine | Request] = {}
        """By path, its queue, or the only request there."""
        self._changes: deque[tuple[Callable[[Request], None], Request]] = deque()
        self._turns: dict[None, tuple[int]] = {}
        """The thread that changes the table; taken and named in one atomic step, since a handler can run after each."""

    def __len__(self) -> int:
        """The number of paths that are held or waited for."""
        return len(self._lines)

    def enter(self, request: Request) -> None:
        """Add `request` to the queues; often it is granted at once."""
        self._change(self._enter, request)

    def leave(self, request: Request) -> None:
        """Remove `request`, granted or not, from the queues in which it is."""
        try:
            self._change(self._leave, request)
        except BaseException:  # A signal handler raised. What is not removed would be locked for ever.
            self._change(self._leave, request)
            raise

    def threads_before(self, request: Request) -> set[int]:
        """The threads of all requests that `request` waits for, directly or indirectly."""
        before: dict[Request, None] = {}
        pending = [request]
        while pending:
            waiting = pending.pop()
            for path in tuple(waiting.obstacles):
                line = self.requests(path)
                # A request that has left meanwhile waits for nothing; its place in the line is not known any more.
                first = takewhile(partial(is_not, waiting), line) if waiting in line else ()
                pending += (new := [other for other in first if other not in before])
                before |= dict.fromkeys(new)
        # A request whose loop was closed waits for nobody, whatever its thread does now.
        return {other.thread for other in before if other.loop is None or not other.loop.is_closed()}

    def drop_lost(self, request: Request) -> None:
        """Remove the holders of what `request` waits for whose event loops will never do so, since they were closed."""
        self._change(self._drop_lost, request)

    def requests(self, path: str) -> list[Request]:
        """The requests at `path`, granted or waiting, in order of arrival."""
        line = self._lines.get(path, ())
        return [line] if isinstance(line, Request) else list(line)

    def is_changed_by(self, threads: Set[int]) -> bool:
        """Whether the queued changes are left to one of `threads`, which is changing the table."""
        turn = self._turns.get(None)
        return turn is not None and turn[0] in threads

    def _change(self, change: Callable[[Request], None], request: Request) -> None:
        if self._changes or not self._in_turn(change, request):  # The usual case needs no queue.
            self._changes.append((change, request))
        # Checked again after each turn: a thread that found the turn taken has left its change to this one.
        while self._changes and self._in_turn(self._change_queued):
            pass

    def _in_turn(self, work: Callable[..., None], *args: Request) -> bool:
        """Do `work` on the table and return True; return False if the table is being changed."""
        turn = (get_ident(),)  # An object of this call: the thread may have been interrupted in another one.
        try:
            if self._turns.setdefault(None, turn) is not turn:
                return False
            work(*args)
            return True
        finally:
            # Also if a signal handler raised as soon as the turn was taken; without a call, after which one could.
            try:
                if self._turns[None] is turn:
                    del self._turns[None]
            except KeyError:
                pass

    def _change_queued(self) -> None:
        while self._changes:
            change, request = self._changes.popleft()
            change(request)
            request.wake()  # What it waits for is known only now.

    def _enter(self, request: Request) -> None:
        for path, exclusive in request.claims.items():
            line = self._lines.setdefault(path, request)
            if line is not request and not self._line(path).join(request, exclusive):
                request.obstacles.add(path)
        request.is_granted = not request.obstacles

    def _line(self, path: str) -> _WaitingLine:
        """The queue of `path`, which is made when a second request arrives."""
        line = self._lines[path]
        if isinstance(line, Request):
            first, line = line, _WaitingLine()
            line.join(first, first.claims[path])
            self._lines[path] = line
        return line

    def _drop_lost(self, request: Request) -> None:
        for path in tuple(request.obstacles):
            line = self._lines.get(path, ())
            # Those behind the first ones get there in their turn.
            for first in (
                [line] if isinstance(line, Request) else line.first() if isinstance(line, _WaitingLine) else ()
            ):
                if first.loop is not None and first.loop.is_lost():
                    self._leave(first)

    def _leave(self, request: Request) -> None:
        for path in request.claims:
            line = self._lines.get(path)
            if line is request or (isinstance(line, _WaitingLine) and len(line) == 1 and request in line):
                del self._lines[path]
            elif isinstance(line, _WaitingLine):
                for freed in line.leave(request):
                    freed.advance(path)


_SELF_WAIT = (
    "this call could only wait for itself: what it needs is held by an operation of a thread that waits for it, such "
    "as one that a signal handler or a finaliser interrupted, or an event loop on which a sync method was called"
)


class _Hold(Request):
    __slots__ = ("_locks", "_table")

    def __init__(self, locks: "PathLocks", paths: Iterable[str], shared: Iterable[str] = ()) -> None:
        super().__init__(paths, shared)
        self._locks = locks  # Keeps the locks alive: the registry has only weak references.
        self._table = locks.table

    def _must_wait(self, notify: Callable[[], object], *threads: int) -> bool:
        """Have `notify` called when there is news of this request; return whether it is still to be granted.

        Raises RuntimeError if this request waits for a thread that waits for this call, or for this very code.
        """
        self.notify = notify
        waiting = waiting_threads.get()
        if self._table.is_changed_by(waiting | {get_ident()}):
            raise RuntimeError(_SELF_WAIT)
        waiting = waiting.union(threads)
        if waiting and not waiting.isdisjoint(self._table.threads_before(self)):
            raise RuntimeError(_SELF_WAIT)
        return not self.is_granted

    def _wait_blocking(self) -> None:
        self._table.drop_lost(self)
        while self._must_wait((gate := _make_closed_gate()).release, get_ident()):
            if not gate.acquire(timeout=LOOK_S):
                self._table.drop_lost(self)


def _make_closed_gate() -> Lock:
    gate = Lock()
    gate.acquire()
    return gate


class _BlockingHold(_Hold):
    __slots__ = ()

    def __enter__(self) -> None:
        try:
            self._table.enter(self)
            if not self.is_granted:
                self._wait_blocking()
        except BaseException:
            self._table.leave(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._table.leave(self)


class _AsyncHold(_Hold):
    __slots__ = ()

    async def __aenter__(self) -> None:
        self.loop = present_callbacks()
        try:
            self._table.enter(self)
            if not self.is_granted:
                await self._wait()
        except BaseException:
            self._table.leave(self)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The garbage collector may close a coroutine whose work goes on; who waits next then looks after it.
        if kind is None or self.loop is None or not self.loop.is_closed() or self.loop.is_lost():
            self._table.leave(self)

    async def _wait(self) -> None:
        if self.loop is None:  # This coroutine is driven without an event loop, so the thread itself must wait.
            self._wait_blocking()
            return
        self._table.drop_lost(self)
        while self._must_wait((event := self.loop.event()).set):
            with move_on_after(LOOK_S):
                await event.wait()
                continue
            self._table.drop_lost(self)


class StepLock(ForkSafeLock):
    """A lock between threads, for steps of a coroutine in which it waits for nothing else."""

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        super().__init__()
        self._inside: dict[int, None] = {}
        """The threads that hold the lock or wait for it."""

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Take the lock for an `async with`.

        RuntimeError if this thread, or one that waits for this call, holds it or waits for it.
        """
        return _LockStep(self, self._inside)

    def forget_threads(self, *, is_held: bool) -> None:
        super().forget_threads(is_held=is_held)
        for thread in self._inside.keys() - {get_ident()}:
            del self._inside[thread]


class _LockStep:
    """Holds a `StepLock`, at the latest until this object is dropped: a signal handler may raise before `__aexit__`."""

    _thread: int | None = None
    """The thread that holds the lock or waits for it. On the class, for an object whose making was interrupted."""

    def __init__(self, lock: ForkSafeLock, inside: dict[int, None]) -> None:
        self._lock = lock
        self._inside = inside

    async def __aenter__(self) -> None:
        me = get_ident()
        if me in self._inside:
            raise RuntimeError(_SELF_WAIT)
        self._thread = me
        self._inside[me] = None
        try:
            if not waiting_threads.get().isdisjoint(self._inside):
                raise RuntimeError(_SELF_WAIT)
            # Nobody holds this lock for long, so an event loop may wait for it.
            self._lock.acquire()
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def __del__(self) -> None:
        if self._thread is not None:  # No call in vain: what a signal handler raises within a finaliser is lost.
            self._end()

    def _end(self) -> None:
        """Release what is held. If a signal handler raises in between, it can be called again."""
        if self._thread is None:
            return
        try:  # noqa: SIM105 -- faster
            self._lock.release()
        except RuntimeError:  # Not taken, or released already.
            pass
        self._inside.pop(self._thread, None)
        self._thread = None


class PathLocks:
    """The locks of one storage, which `scope` identifies.

    Those of equal scopes are equal, so that `_known`, which does not keep them, finds them.

    Several paths are granted at once or not at all, so holders cannot deadlock each other. Requests that exclude each
    other are granted in the order of their arrival. Not reentrant: a holder must not request paths that conflict with
    its own.
    """

    __slots__ = ("__weakref__", "_scope", "table")

    def __init__(self, scope: Hashable = None) -> None:
        self._scope = scope
        self.table: LockTable = LockTable()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathLocks) and self._scope == other._scope

    def __hash__(self) -> int:
        return hash(self._scope)

    def __reduce__(self) -> tuple[Callable[[Hashable], "PathLocks"], tuple[Hashable]]:
        # A copy of a backend uses the same storage.
        return path_locks, (self._scope,)

    def hold(self, *paths: str) -> AbstractAsyncContextManager[None]:
        """Lock normalised `paths` for an `async with`; does not suspend if they are free."""
        return _AsyncHold(self, paths)

    def hold_places(self, places: Iterable[Hashable], above: Iterable[Hashable]) -> AbstractAsyncContextManager[None]:
        """Lock `places`, given by any hashable keys, with all beneath them; `above` are the keys of their parents."""
        return _AsyncHold(self, map(_name, places), map(_name, above))

    def hold_blocking(self, *paths: str) -> AbstractContextManager[None]:
        """Like `hold`, for a worker thread, which it blocks."""
        return _BlockingHold(self, paths)


def _name(place: Hashable) -> str:
    # Two places with the same hash exclude each other needlessly, which does no harm.
    return f"/{hash(place)}"


_known: WeakKeyDictionary[PathLocks, ref[PathLocks]] = WeakKeyDictionary()


def path_locks(scope: Hashable) -> PathLocks:
    """The locks of the storage `scope`: the same object for equal scopes, for as long as it is referenced."""
    # Atomic, so that no lock is needed here: a signal handler that interrupts its holder could not get it.
    new = PathLocks(scope)
    while (found := _known.setdefault(new, ref(new))()) is None:
        pass  # Another thread has just dropped them.
    return found


@after_fork
def _after_fork() -> None:
    """Reset all locks in a forked child: the threads that held them do not exist there and cannot release them."""
    for locks in list(_known):
        locks.table = LockTable()
