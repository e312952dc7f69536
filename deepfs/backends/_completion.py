"""How a class that defines some of the operations, in one way or the other, becomes a whole backend."""

import functools
import inspect
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, TypeVar

from deepfs.backends._parameters import Parameters, limited
from deepfs.backends._v1 import V1_NAMES, add_v1_names, v1_operations
from deepfs.core.arguments import check_string
from deepfs.errors import DeepFSError
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


def complete(cls: type[Any], protocol: type) -> None:
    """Make a whole backend of a subclass of `protocol` whose body defines operations in either way.

    Bases that are no backends may override operations, too. `never_waits` is told anew unless the body declares it.
    """
    mixins = [base for base in cls.__mro__[1:] if protocol not in base.__mro__]
    if "never_waits" not in vars(cls):
        cls.never_waits = _never_waits(cls, mixins)
    _adopt_operations(cls, mixins)
    _adapt_v1(cls, protocol)
    sync_shims(bound_operations(cls))
    add_v1_names(cls)
