"""Judges of paths: a question that goes down with an operation, to where links are resolved.

A policy judges a path and then calls the backend with it. If another process swaps a link in between, the backend uses
another file than the one that was judged. So the policy also leaves its judge here, and a backend that resolves links
asks it about the path that it is about to use, while nothing can change that path any more.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from deepfs.errors import DeepFSError, PermissionDeniedError
from deepfs.text import paths

P = ParamSpec("P")
T = TypeVar("T")

Role: TypeAlias = Literal["source", "target"]
"""What an operation does at a path: it looks at, moves or removes what is there, or it puts something there."""


class Judge(Protocol):
    """Decides about paths that an operation uses. Two judges that are equal decide equally."""

    def check(self, path: str, role: Role, shown: str) -> None:
        """Raise the error of a refusal.

        Args:
            path: The path without links.
            role: What is done there.
            shown: The path that the error names: the one that the operation was given.
        """

    def __hash__(self) -> int: ...


_judge: ContextVar[Judge | None] = ContextVar("deepfs_judge", default=None)

current_judge: Callable[[], Judge | None] = _judge.get
"""The judge of the operation that this task carries out; None if no policy has one."""


class judging:  # noqa: N801 - it is used like a function
    """A context in which the operations of this task have `judge`, or none if it is None."""

    __slots__ = ("_judge", "_token")

    def __init__(self, judge: Judge | None) -> None:
        self._judge = judge

    def __enter__(self) -> None:
        self._token: Token[Judge | None] = _judge.set(self._judge)

    def __exit__(self, *_: object) -> None:
        _judge.reset(self._token)


def unjudged() -> judging:
    """A context for what a layer does besides the operation, such as keeping a version: no judge is asked there."""
    return judging(None)


def aside(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an async function that works besides the operation: it runs `unjudged`."""

    @wraps(function)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        with unjudged():
            return await function(*args, **options)

    return run


def judging_as(role: Role) -> judging:
    """A context for looking at what an operation is about to replace or remove: refused where the operation would be.

    Args:
        role: What the operation does at the path.
    """
    judge = _judge.get()
    return judging(judge and _As(judge, role))


@dataclass(frozen=True)
class _As:
    judge: Judge
    role: Role

    def check(self, path: str, role: Role, shown: str) -> None:
        self.judge.check(path, self.role, shown)


async def given_under(judge: Judge | None, chunks: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """The same chunks, made under `judge` whoever asks for them: their source is not judged as their destination is."""
    source = aiter(chunks)
    while True:
        with judging(judge):
            try:
                chunk = await anext(source)
            except StopAsyncIteration:
                return
        yield chunk


def rebased(prefix: str, root: str = "") -> judging:
    """A context for calls of a backend of which `root` appears at `prefix`; the judge gets the paths as they appear.

    What lies outside of `root` appears nowhere, so it is refused. An empty string stands for `/`.
    """
    judge = _judge.get()
    return judging(judge if judge is None or prefix == root == "" else _Rebased(judge, prefix, root))


@dataclass(frozen=True)
class _Rebased:
    judge: Judge
    prefix: str
    root: str

    def check(self, path: str, role: Role, shown: str) -> None:
        inner = "" if path == "/" else path
        if inner != self.root and not inner.startswith(f"{self.root}/"):
            raise PermissionDeniedError(shown, "a link leads outside")
        self.judge.check(self.prefix + inner[len(self.root) :] or "/", role, shown)


@dataclass(frozen=True)
class BothJudges:
    """Refuses what one of two judges refuses."""

    first: Judge
    second: Judge

    def check(self, path: str, role: Role, shown: str) -> None:
        """Ask both."""
        self.first.check(path, role, shown)
        self.second.check(path, role, shown)


def keeping_inside(directory: str) -> judging:
    """A context in which nothing is put where links lead out of a directory.

    Args:
        directory: The path of the directory without links.
    """
    judge, inside = _judge.get(), _Inside(directory)
    return judging(inside if judge is None else BothJudges(judge, inside))


@dataclass(frozen=True)
class _Inside:
    directory: str

    def check(self, path: str, role: Role, shown: str) -> None:
        if role == "target" and path != self.directory and not paths.is_beneath(path, self.directory):
            raise PermissionDeniedError(shown, "a link leads outside of the target")


def permits(judge: Judge | None, path: str, role: Role = "source") -> bool:
    """Whether there is no refusal."""
    if judge is None:
        return True
    try:
        judge.check(path, role, path)
    except DeepFSError:
        return False
    return True
