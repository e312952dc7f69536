"""How a class that defines some of the operations, in one way or the other, becomes a whole backend."""

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from deepfs.backends._parameters import Parameters, limited
from deepfs.backends._v1 import V1_NAMES, add_v1_names, v1_operations
from deepfs.core.arguments import check_string
from deepfs.core.told import shows_file
from deepfs.errors import DeepFSError, ExistsError
from deepfs.sync import OPERATIONS, named, sync_shims
from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Result,
    WriteResult,
    failure,
)

__all__ = ["bound_operations", "complete"]

ClassT = TypeVar("ClassT", bound=type)

_RESULTS: dict[str, type[Result]] = {
    "ls": LsResult,
    "read": ReadResult,
    "read_raw": ReadRawResult,
    "write": WriteResult,
    "edit": EditResult,
    "glob": GlobResult,
    "grep": GrepResult,
    "delete": DeleteResult,
    "move": WriteResult,
    "copy": WriteResult,
}


def _failed(operation: str, error: DeepFSError, items: list[Any] | None) -> Any:
    """What an operation returns that failed with `error`; raises it where there is no such result."""
    if items is not None and operation == "upload_files":
        return [FileUploadResponse(path, error.code.value) for path, _ in items]
    if items is not None and operation == "download_files":
        return [FileDownloadResponse(path, error=error.code.value) for path in items]
    if operation not in _RESULTS:
        raise error
    return failure(_RESULTS[operation], error)


def _bounded(method: Callable[..., Any], operation: str, *, is_async: bool) -> Callable[..., Any]:
    """`method` with its arguments checked and its expected failures turned into its result.

    It is called by its own parameters.
    """
    parameters = Parameters(method, operation)

    @functools.wraps(method)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, items = parameters.checked(args, kwargs)
        try:
            fitted, limit = parameters.fitted(kwargs)
            return limited(await method(*args, **fitted), limit)
        except DeepFSError as error:
            return _failed(operation, error, items)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, items = parameters.checked(args, kwargs)
        try:
            fitted, limit = parameters.fitted(kwargs)
            return limited(method(*args, **fitted), limit)
        except DeepFSError as error:
            return _failed(operation, error, items)

    return acall if is_async else call


def _bounded_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    """An `aupload_stream` with its arguments checked and its expected failures turned into its result."""

    @functools.wraps(method)
    async def aupload_stream(self: Any, path: str, chunks: Any) -> FileUploadResponse:
        check_string("path", path)
        if not isinstance(chunks, AsyncIterable):
            raise TypeError(f"chunks must be an async iterable of bytes, not {chunks!r:.100}")
        try:
            outcome: FileUploadResponse = await method(self, path, chunks)
        except DeepFSError as error:
            return FileUploadResponse(path, error.code.value)
        return outcome

    return aupload_stream


def bound_operations(cls: ClassT) -> ClassT:
    """Put the operations in the body of `cls` behind the error boundary, each with the docstring of the class above."""
    for name in OPERATIONS:
        for spelled in (name, f"a{name}"):
            method = cls.__dict__.get(spelled)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                bounded = _bounded(method, name, is_async=spelled != name)
                bounded.__doc__ = method.__doc__ or getattr(getattr(super(cls, cls), spelled, None), "__doc__", None)
                setattr(cls, spelled, bounded)
    if "aupload_stream" in vars(cls):
        cls.aupload_stream = _bounded_stream(vars(cls)["aupload_stream"])  # type: ignore[attr-defined]
    return cls


def _adopt_operations(cls: type, mixins: Sequence[type]) -> None:
    """Treat the operations that a mixin overrides as if they stood in the body of `cls`."""
    for name in OPERATIONS:
        spellings = (name, f"a{name}", *filter(None, [V1_NAMES.get(name)]))
        owner = next((base for base in cls.__mro__ if any(spelled in vars(base) for spelled in spellings)), None)
        if owner in mixins:
            for spelled in spellings:
                if inspect.isfunction(method := vars(owner).get(spelled)):
                    setattr(cls, spelled, method)


def _never_waits(cls: type, mixins: Sequence[type]) -> bool:
    """Whether `cls` adds no async code and none of the backends that it inherits from waits."""
    added = [member for owner in (cls, *mixins) for member in vars(owner).values()]
    inherited = [base.__dict__["never_waits"] for base in cls.__bases__ if base not in mixins]
    return all(inherited) and not any(inspect.iscoroutinefunction(member) for member in added)


def _adapt_v1(cls: type, protocol: type) -> None:
    """Make the async operations of what the body of `cls` defines in V1."""
    for operation in list(v1_operations(cls)):
        setattr(cls, f"a{operation}", _adapted(cls, operation, vars(protocol).get(f"a{operation}")))


def _adapted(cls: type, operation: str, like: Callable[..., Any] | None) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **options: Any) -> Any:
        from deepfs.backends.adapted import own_operation

        return await own_operation(self, cls, operation)(*args, **options)

    return call if like is None else named(call, like, f"a{operation}")


# --- a write of deepagents, which replaces ---------------------------------------------------------------------------

_inside: ContextVar[frozenset[tuple[int, str]]] = ContextVar("deepfs_inside", default=frozenset())
"""The `awrite`s, by object and path, in which this call is made; an `awrite` may call `write`."""
_decided: Final[list[tuple[int, str, Any]]] = []
"""The `awrite`s under way with their content: an `awrite` may call `write` in a thread that knows no context. Whoever
else writes the same there at the same time loses nothing of anyone's."""


def _check_free(read: ReadResult, path: str) -> None:
    """Raise ExistsError if a read shows a file at `path`, and the error of the read if it cannot tell."""
    if shows_file(read):
        raise ExistsError(path)


@contextmanager
def _deciding(backend: object, path: str, content: Any) -> Iterator[None]:
    """While this is held, it is clear that a write of `content` to `path` may replace."""
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
    """A `write` that replaces what is there, made one that creates unless told to `overwrite`."""
    own = inspect.signature(method)

    def given(*args: Any, **kwargs: Any) -> tuple[str, Any]:
        _, path, *more = own.bind(*args, **kwargs).arguments.values()
        return str(path), next(iter(more), None)

    @functools.wraps(method)
    async def awrite(self: Any, *args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        path, content = given(self, *args, **kwargs)
        if not overwrite:
            _check_free(await self.aread(path, 0, 1), path)
        with _deciding(self, path, content):
            return await method(self, *args, **kwargs)

    @functools.wraps(method)
    def write(self: Any, *args: Any, overwrite: bool = False, **kwargs: Any) -> Any:
        path, content = given(self, *args, **kwargs)
        if not overwrite and not _is_decided(self, path, content):
            _check_free(self.read(path, 0, 1), path)
        return method(self, *args, **kwargs)

    made = awrite if is_async else write
    option = inspect.Parameter("overwrite", inspect.Parameter.KEYWORD_ONLY, default=False)
    made.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    return made


def _make_write_create(cls: type, protocol: type) -> None:
    """Where `write` knows no `overwrite`, and nothing above `cls` writes, see to it that it creates.

    Such a body was written for deepagents, where `write` replaces; here, a caller that did not ask for it would lose
    the file that is there. Where a class above writes, its own check holds.
    """
    if getattr(super(cls, cls), "awrite", None) is not vars(protocol)["awrite"]:
        return
    bodies = {name: vars(cls)[name] for name in ("write", "awrite") if inspect.isfunction(vars(cls).get(name))}
    if any(_takes_overwrite(body) for body in bodies.values()):
        return
    for name, body in bodies.items():
        setattr(cls, name, _creating(body, is_async=name == "awrite"))


def _takes_overwrite(method: Callable[..., Any]) -> bool:
    own = inspect.signature(method).parameters
    return "overwrite" in own or any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())


def complete(cls: type[Any], protocol: type) -> None:
    """Make a whole backend of a subclass of `protocol` whose body defines operations in either way.

    Bases that are no backends may override operations, too. `never_waits` is told anew unless the body declares it.
    """
    mixins = [base for base in cls.__mro__[1:] if protocol not in base.__mro__]
    if "never_waits" not in vars(cls):
        cls.never_waits = _never_waits(cls, mixins)
    _adopt_operations(cls, mixins)
    _adapt_v1(cls, protocol)
    _make_write_create(cls, protocol)
    sync_shims(bound_operations(cls))
    add_v1_names(cls)
