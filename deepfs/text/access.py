"""Access checks of paths: a question that goes down with an operation, to where links are resolved.

A policy checks a path and then calls the backend with it. If another process swaps a link in between, the backend uses
another file than the one that was checked. So the policy also leaves its check here, and a backend that resolves links
asks it about the path that it is about to use, while nothing can change that path any more.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from deepfs.errors import DeepFSError, PermissionDeniedError
from deepfs.text import paths

P = ParamSpec("P")
T = TypeVar("T")

Role: TypeAlias = Literal["source", "target"]
"""What an operation does at a path: it looks at, moves or removes what is there, or it puts something there."""


class AccessCheck(Protocol):
    """Decides about paths that an operation uses. Two checks that are equal decide equally."""

    def check(self, path: str, role: Role, shown: str) -> None:
        """Raise the error of a refusal, about the path `shown`, of what is done at `path`, which has no links."""

    def __hash__(self) -> int: ...


_access: ContextVar[AccessCheck | None] = ContextVar("deepfs_access", default=None)

current_access: Callable[[], AccessCheck | None] = _access.get
"""The access check of the operation that this task carries out; None if no policy has one."""


class AccessScope:
    """A context in which the operations of this task have the check `access`, or none if it is None."""

    __slots__ = ("_access", "_token")

    def __init__(self, access: AccessCheck | None) -> None:
        self._access = access

    def __enter__(self) -> None:
        self._token: Token[AccessCheck | None] = _access.set(self._access)

    def __exit__(self, *_: object) -> None:
        _access.reset(self._token)


def unchecked() -> AccessScope:
    """A context for what a layer does besides the operation, such as keeping a version: nothing is checked there."""
    return AccessScope(None)


def without_access_check(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate an async function that works besides the operation: it runs `unchecked`."""

    @wraps(function)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        with unchecked():
            return await function(*args, **options)

    return run


def access_as(role: Role) -> AccessScope:
    """A context for looking at what an operation is to replace or remove: refused where the operation would be."""
    access = _access.get()
    return AccessScope(access and _As(access, role))


class _As(Struct, frozen=True):
    access: AccessCheck
    role: Role

    def check(self, path: str, role: Role, shown: str) -> None:
        self.access.check(path, self.role, shown)


async def iterate_under(access: AccessCheck | None, chunks: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """The same chunks, made under `access` whoever asks for them: their source is not checked as the destination is."""
    source = aiter(chunks)
    while True:
        with AccessScope(access):
            try:
                chunk = await anext(source)
            except StopAsyncIteration:
                return
        yield chunk


def access_at(prefix: str, root: str = "") -> AccessScope:
    """A context for calls of a backend of which `root` appears at `prefix`; the check gets the paths as they appear.

    What lies outside of `root` appears nowhere, so it is refused. An empty string stands for `/`.
    """
    access = _access.get()
    return AccessScope(access if access is None or prefix == root == "" else _At(access, prefix, root))


class _At(Struct, frozen=True):
    access: AccessCheck
    prefix: str
    root: str

    def check(self, path: str, role: Role, shown: str) -> None:
        inner = "" if path == "/" else path
        if inner != self.root and not inner.startswith(f"{self.root}/"):
            raise PermissionDeniedError(shown, "a link leads outside")
        self.access.check(self.prefix + inner[len(self.root) :] or "/", role, shown)


class BothChecks(Struct, frozen=True):
    """Refuses what one of two checks refuses."""

    first: AccessCheck
    second: AccessCheck

    def check(self, path: str, role: Role, shown: str) -> None:
        """Ask both."""
        self.first.check(path, role, shown)
        self.second.check(path, role, shown)


def keep_inside(directory: str) -> AccessScope:
    """A context in which nothing is put where links lead out of a directory, whose path has no links."""
    access, inside = _access.get(), _Inside(directory)
    return AccessScope(inside if access is None else BothChecks(access, inside))


class _Inside(Struct, frozen=True):
    directory: str

    def check(self, path: str, role: Role, shown: str) -> None:
        if role == "target" and path != self.directory and not paths.is_beneath(path, self.directory):
            raise PermissionDeniedError(shown, "a link leads outside of the target")


def permits(access: AccessCheck | None, path: str) -> bool:
    """Whether what is at a path may be looked at."""
    if access is None:
        return True
    try:
        access.check(path, "source", path)
    except DeepFSError:
        return False
    return True
