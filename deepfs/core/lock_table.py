"""Who holds which paths, and who comes next: a table that threads share without ever waiting for each other."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import takewhile
from operator import is_not

__all__ = ["LockTable", "Request"]


class Request:
    """A claim on several paths, granted as a whole."""

    __slots__ = ("claims", "is_granted", "notify", "obstacles", "thread")

    def __init__(self, paths: Iterable[str], shared: Iterable[str] = ()) -> None:
        self.thread: int = threading.get_ident()
        """Where the holder runs, on an event loop or without one."""
        self.claims: dict[str, bool] = dict.fromkeys(shared, False) | _claims(paths)
        self.obstacles: set[str] = set()
        """The claimed paths at which others come first."""
        self.is_granted: bool = False
        self.notify: Callable[[], object] | None = None
        """Called in any thread when the request is granted; must not block. Look at `is_granted` after setting it."""

    def advance(self, path: str) -> None:
        """Nobody else comes first at `path`."""
        self.obstacles.discard(path)
        self.grant_if_free()

    def grant_if_free(self) -> None:
        if self.obstacles or self.is_granted:
            return
        self.is_granted = True
        if self.notify is not None:
            self.notify()


def _claims(paths: Iterable[str]) -> dict[str, bool]:
    """Whether each path is claimed exclusively: the given ones are, the directories above them are not."""
    claims = dict.fromkeys(paths, True)
    for path in tuple(claims):
        above = path
        while above != "/":
            above = above[: above.rindex("/")] or "/"
            if above in claims:  # So are those above it, or they will be.
                break
            claims[above] = False
    return claims


class _Line(dict[Request, bool]):
    """The requests that claim one path, in order of arrival, granted or not, and whether exclusively."""

    exclusives = 0
    """How many of them do so exclusively."""

    def join(self, request: Request, exclusive: bool) -> bool:
        """Whether nobody in line excludes the newcomer."""
        free = not (self if exclusive else self.exclusives)
        self[request] = exclusive
        if exclusive:
            self.exclusives += 1
        return free

    def leave(self, request: Request) -> Iterable[Request]:
        """Those whom nobody in front excludes now, as far as `request` did before."""
        if self.pop(request):
            self.exclusives -= 1
            return self._front()
        return self._front() if self.exclusives and next(iter(self.values())) else ()

    def _front(self) -> list[Request]:
        front: list[Request] = []
        for request, exclusive in self.items():
            if not (exclusive and front):
                front.append(request)
            if exclusive:
                break
        return front


class LockTable:
    """Requests by path.

    A request is granted when no earlier one, granted or waiting, claims a path of it exclusively, or shares a path that
    it claims exclusively. So the order is that of arrival, nobody starves, and nobody deadlocks.

    Changes are queued, and whichever thread finds the table free carries out all of them: nobody blocks, not even in a
    finaliser that interrupts a change.
    """

    __slots__ = ("_changes", "_lines", "_turn")

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._changes: deque[tuple[Callable[[Request], None], Request]] = deque()
        self._turn = threading.Lock()

    def __len__(self) -> int:
        """The number of paths that someone holds or wants."""
        return len(self._lines)

    def enter(self, request: Request) -> None:
        """Put `request` in line; often it is granted at once."""
        self._change(self._enter, request)

    def leave(self, request: Request) -> None:
        """Take `request`, granted or not, out of line."""
        self._change(self._leave, request)

    def threads_before(self, request: Request) -> set[int]:
        """The threads of those that `request` waits for, and of those that these wait for."""
        before: dict[Request, None] = {}
        pending = [request]
        while pending:
            waiting = pending.pop()
            for path in tuple(waiting.obstacles):
                line = list(self._lines.get(path, ()))
                first = takewhile(partial(is_not, waiting), line)
                pending += (new := [other for other in first if other not in before])
                before |= dict.fromkeys(new)
        return {other.thread for other in before}

    def _change(self, change: Callable[[Request], None], request: Request) -> None:
        self._changes.append((change, request))
        # Looked at again after each turn: what came while the turn was taken may have found nobody to carry it out.
        while self._changes and self._turn.acquire(blocking=False):
            try:
                while self._changes:
                    change, request = self._changes.popleft()
                    change(request)
            finally:
                self._turn.release()

    def _enter(self, request: Request) -> None:
        for path, exclusive in request.claims.items():
            line = self._lines.get(path)
            if line is None:
                line = self._lines[path] = _Line()
            if not line.join(request, exclusive):
                request.obstacles.add(path)
        request.grant_if_free()

    def _leave(self, request: Request) -> None:
        for path in request.claims:
            line = self._lines[path]
            if len(line) == 1:
                del self._lines[path]
            else:
                for freed in line.leave(request):
                    freed.advance(path)
