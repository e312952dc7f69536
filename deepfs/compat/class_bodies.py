"""Completes subclasses of `BackendProtocol` whose bodies were written for V1 or for deepagents.

This module registers the adapters of `deepfs.compat` with `deepfs.backends`, which must not import them.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final

from deepfs.backends._class_setup import replacing
from deepfs.backends.answers import MISSING, shows_file
from deepfs.backends.older_protocols import V1_NAMES, Adapters, mark_v1, register, speaks_v1, takes_option
from deepfs.backends.protocol import BackendProtocol
from deepfs.compat.adapters import AdaptedBackend, Call, awaitable, caller_of, is_v1
from deepfs.compat.factories import backend_from, current_context
from deepfs.errors import AlreadyExistsError
from deepfs.sync import OPERATIONS, named
from deepfs.types import ReadResult

__all__ = ["adapt_body", "own_operation"]


def adapt_body(cls: type, protocol: type) -> None:
    """Add async operations over the V1 methods in the body of `cls`, and make its `write` refuse existing files."""
    _adapt_v1(cls, protocol)
    _make_write_create(cls, protocol)


class _OneClass(AdaptedBackend):
    """Adapts one operation that the class `owner` defines in V1; calls of other operations go to the whole backend."""

    def __init__(self, whole: BackendProtocol, owner: type, operation: str) -> None:
        super().__init__(whole)
        self.is_v1 = True
        self._whole = whole
        self._owner = owner
        self._operation = operation

    def _call(self, operation: str) -> Call | None:
        if operation == getattr(self, "_operation", None):
            body = vars(self._owner)
            method = body.get(V1_NAMES.get(operation, operation), body.get(operation))
            return awaitable(functools.partial(method, self.adapted))
        theirs = getattr(type(self.adapted), f"a{operation}", None)
        if theirs is None or theirs is getattr(BackendProtocol, f"a{operation}", None):
            return None
        return caller_of(self.adapted, f"a{operation}")


def own_operation(backend: BackendProtocol, owner: type, operation: str) -> Call:
    """The async operation of `backend` over the V1 method that its class `owner` defines."""
    method: Call = getattr(_OneClass(backend, owner, operation), f"a{operation}")
    return method


def _adapt_v1(cls: type, protocol: type) -> None:
    """Add async operations over those that the body of `cls` defines only in V1.

    In a class that is V1 itself, or has a V1 base, all sync methods count as V1.
    """
    whole = is_v1(cls) or any(map(speaks_v1, cls.__bases__))
    if whole:
        mark_v1(cls)
    body = dict(vars(cls))
    for operation in OPERATIONS:
        name = V1_NAMES.get(operation, operation)
        newer = {f"a{operation}", operation} - {name}
        if inspect.isfunction(body.get(name)) and not newer & body.keys() and (whole or name != operation):
            setattr(cls, f"a{operation}", _adapted(cls, operation, getattr(protocol, f"a{operation}", None)))


def _adapted(cls: type, operation: str, like: Callable[..., Any] | None) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **options: Any) -> Any:
        return await own_operation(self, cls, operation)(*args, **options)

    return call if like is None else named(call, like, f"a{operation}")


# --- a write of deepagents, which replaces ---------------------------------------------------------------------------

_inside: ContextVar[frozenset[tuple[int, str]]] = ContextVar("deepfs_inside", default=frozenset())
"""The `awrite` calls, by object and path, around the current call: an `awrite` may call `write`."""
_decided: Final[list[tuple[int, str, Any]]] = []
"""The `awrite` calls in progress with their content: an `awrite` may call `write` in a thread without its context.

Another call that writes the same content to the path at the same time skips its check as well; no content is lost.
"""


def _check_free(read: ReadResult, path: str) -> None:
    """Raise AlreadyExistsError if a read shows a file at `path`, or the read's error if it leaves that open.

    An empty text does not: some storages answer so where nothing is, and replacing it loses nothing.
    """
    if shows_file(read) and not (read.ok and read.file_data is not None and not read.file_data.content):
        raise AlreadyExistsError(path)


@contextmanager
def _deciding(backend: object, path: str, content: Any) -> Iterator[None]:
    """Within the block, a `write` of `content` to `path` does not check for an existing file."""
    before = _inside.set(_inside.get() | {(id(backend), path)})
    _decided.append((id(backend), path, content))
    try:
        yield
    finally:
        _decided.remove((id(backend), path, content))
        _inside.reset(before)


def _is_decided(backend: object, path: str, content: Any) -> bool:
    return (id(backend), path) in _inside.get() or (id(backend), path, content) in _decided


def _creating(method: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Wrap a `write` that replaces files: it gets the option `overwrite`, without which it refuses existing files."""
    own = inspect.signature(method)

    def given(*args: Any, **kwargs: Any) -> tuple[str, Any]:
        _, path, *more = own.bind(*args, **kwargs).arguments.values()
        return str(path), next(iter(more), None)

    @functools.wraps(method)
    async def awrite(self: Any, *args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        path, content = given(self, *args, **kwargs)
        if not overwrite:
            with suppress(*MISSING):
                _check_free(await self.aread(path, 0, 1), path)
        with _deciding(self, path, content):
            return await method(self, *args, **kwargs)

    @functools.wraps(method)
    def write(self: Any, *args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        path, content = given(self, *args, **kwargs)
        if not overwrite and not _is_decided(self, path, content):
            with suppress(*MISSING):
                _check_free(self.read(path, 0, 1), path)
        return method(self, *args, **kwargs)

    return _with_overwrite(awrite if is_async else write, own)


def _with_overwrite(made: Callable[..., Any], own: inspect.Signature) -> Callable[..., Any]:
    """`made`, with the signature `own` and the option `overwrite`."""
    option = inspect.Parameter("overwrite", inspect.Parameter.KEYWORD_ONLY, default=False)
    made.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    return made


def _handing_on(method: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Wrap a `write` that calls that of its base: its option `overwrite` is one of that call."""
    own = inspect.signature(method)

    @contextmanager
    def handing_on(*args: Any, **kwargs: Any) -> Iterator[None]:
        backend, path, *_ = own.bind(*args, **kwargs).arguments.values()
        before = replacing.set(replacing.get() | {(id(backend), str(path))})
        try:
            yield
        finally:
            replacing.reset(before)

    @functools.wraps(method)
    async def awrite(*args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        with handing_on(*args, **kwargs) if overwrite else nullcontext():
            return await method(*args, **kwargs)

    @functools.wraps(method)
    def write(*args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        with handing_on(*args, **kwargs) if overwrite else nullcontext():
            return method(*args, **kwargs)

    return _with_overwrite(awrite if is_async else write, own)


def _make_write_create(cls: type, protocol: Any) -> None:
    """Wrap the `write` of `cls` if it has no `overwrite`: it was written for deepagents, where it replaces files.

    Here, a caller that does not ask for that would lose the existing file. A base class that implements `awrite` has a
    check of its own, and is asked to replace the file where the caller asks for that.
    """
    wrap = _creating if getattr(super(cls, cls), "awrite", None) is protocol.awrite else _handing_on
    bodies = {name: vars(cls)[name] for name in ("write", "awrite") if inspect.isfunction(vars(cls).get(name))}
    if any(takes_option(body, "overwrite") for body in bodies.values()):
        return
    for name, body in bodies.items():
        setattr(cls, name, wrap(body, is_async=name == "awrite"))


register(Adapters(backend=backend_from, body=adapt_body, context=current_context))
