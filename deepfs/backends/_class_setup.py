"""How a class that defines some of the operations, in one way or the other, becomes a whole backend."""

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from deepfs.backends.older_protocols import (
    V1_NAMES,
    adapters,
    add_former_names,
    add_v1_names,
    defined_formerly,
    speaks_v1,
    takes_overwrite,
)
from deepfs.backends.operations import Capabilities
from deepfs.errors import DeepFSError, NotSupportedError
from deepfs.search.request import GlobRequest, GrepRequest, SearchRequest, option_types
from deepfs.sync import OPERATIONS, named, shielded, sync_shims
from deepfs.text.arguments import Argument, argument_of, arguments_of, check_string, path_list, upload_list
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
    replaced,
)

__all__ = ["Parameters", "bound_operations", "complete", "limited", "made_by_overrides"]

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

_REQUESTS: Final[dict[str, type[SearchRequest]]] = {"glob": GlobRequest, "grep": GrepRequest}
"""The operations that can be given as one value, to the method `arun_<operation>`."""


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
            if not kwargs:
                return await method(*args)
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
    """An `aupload_stream` that checks its arguments, turns expected failures into its result and closes the source."""

    @functools.wraps(method)
    async def aupload_stream(self: Any, path: str, chunks: Any) -> FileUploadResponse:
        check_string("path", path)
        if not isinstance(chunks, AsyncIterable):
            raise TypeError(f"chunks must be an async iterable of bytes, not {chunks!r:.100}")
        try:
            outcome: FileUploadResponse = await method(self, path, chunks)
        except DeepFSError as error:
            return FileUploadResponse(path, error.code.value)
        finally:
            if isinstance(chunks, AsyncGenerator):  # It was perhaps not read to its end.
                await shielded(chunks.aclose)
        return outcome

    return aupload_stream


def _bounded_request(run: Callable[..., Any], result: type[Result]) -> Callable[..., Any]:
    """An `arun_…` with its expected failures turned into its result."""

    @functools.wraps(run)
    async def arun(self: Any, request: SearchRequest) -> Any:
        try:
            return await run(self, request)
        except DeepFSError as error:
            return failure(result, error)

    return arun


def bound_operations(cls: ClassT) -> ClassT:
    """Put the operations in the body of `cls` behind the error boundary, each with the docstring of the class above."""
    for name in OPERATIONS:
        for spelled in (name, f"a{name}"):
            method = cls.__dict__.get(spelled)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                bounded = _bounded(method, name, is_async=spelled != name)
                bounded.__doc__ = method.__doc__ or getattr(getattr(super(cls, cls), spelled, None), "__doc__", None)
                setattr(cls, spelled, bounded)
    for name in _REQUESTS:
        if inspect.isfunction(run := vars(cls).get(f"arun_{name}")):
            setattr(cls, f"arun_{name}", _bounded_request(run, _RESULTS[name]))
    if "aupload_stream" in vars(cls):
        cls.aupload_stream = _bounded_stream(vars(cls)["aupload_stream"])  # type: ignore[attr-defined]
    return cls


def _adopt_operations(cls: type, mixins: Sequence[type]) -> None:
    """Treat the operations that a mixin overrides as if they stood in the body of `cls`."""
    for name in OPERATIONS:
        spellings = (name, f"a{name}", f"arun_{name}", *filter(None, [V1_NAMES.get(name)]))
        owner = next((base for base in cls.__mro__ if any(spelled in vars(base) for spelled in spellings)), None)
        if owner in mixins:
            for spelled in spellings:
                if inspect.isfunction(method := vars(owner).get(spelled)):
                    setattr(cls, spelled, method)


def _add_edges(cls: type, protocol: Any) -> None:
    """Give `cls` the public form of each search that its body defines by its request alone."""
    for name, request in _REQUESTS.items():
        run = vars(cls).get(f"arun_{name}")
        if run is not None and not any(spelled in vars(cls) for spelled in (name, f"a{name}")):
            setattr(cls, f"a{name}", _edge(run, request, getattr(protocol, f"a{name}")))


def _edge(run: Callable[..., Any], request: type[SearchRequest], like: Callable[..., Any]) -> Callable[..., Any]:
    """The operation `like`, made of `run`, which is called as it is, not through `self`."""

    async def call(self: Any, *placed: Any, **options: Any) -> Any:
        return await run(self, request.called_with(placed, options))

    return named(call, like, like.__name__)


def _add_requests(cls: type) -> None:
    """Give `cls` the form by its request of each search that its body defines by its parameters."""
    for name in _REQUESTS:
        search = vars(cls).get(f"a{name}")
        if search is not None and f"arun_{name}" not in vars(cls):
            setattr(cls, f"arun_{name}", _unpacking(search))


def _unpacking(search: Callable[..., Any]) -> Callable[..., Any]:
    async def arun(self: Any, request: SearchRequest) -> Any:
        return await search(self, *request.arguments, **request.options)

    return arun


def _is_synchronous(cls: type, mixins: Sequence[type]) -> bool:
    """Whether `cls` adds no async code and none of the backends that it inherits from waits."""
    added = [member for owner in (cls, *mixins) for member in vars(owner).values()]
    inherited = [base.__dict__["is_synchronous"] for base in cls.__bases__ if base not in mixins]
    return all(inherited) and not any(inspect.iscoroutinefunction(member) for member in added)


def _is_older(cls: type) -> bool:
    """Whether the body of `cls` may have been written for an older protocol, as its names or its `write` tell."""
    by_name = any(name in vars(cls) for name in V1_NAMES.values()) or any(map(speaks_v1, cls.__bases__))
    return by_name or any(
        inspect.isfunction(method) and not takes_overwrite(method)
        for method in (vars(cls).get("write"), vars(cls).get("awrite"))
    )


def complete(cls: type[Any], protocol: type) -> None:
    """Make a whole backend of a subclass of `protocol` whose body defines operations in either way.

    Bases that are no backends may override operations, too. `is_synchronous` is told anew unless the body declares it.
    """
    mixins = [base for base in cls.__mro__[1:] if protocol not in base.__mro__ and base not in protocol.__mro__]
    add_former_names(cls, mixins)
    if "is_synchronous" not in vars(cls):
        cls.is_synchronous = _is_synchronous(cls, mixins)
    _adopt_operations(cls, mixins)
    if _is_older(cls):
        adapters().body(cls, protocol)
    _add_edges(cls, protocol)
    sync_shims(bound_operations(cls))
    _add_requests(cls)
    add_v1_names(cls)
    _declare_deletes(cls, protocol)
    if "offers_move" not in vars(cls):
        # What the protocol itself has is made of the other operations.
        cls.offers_move = cls.amove is protocol.amove or _place(cls, "amove") <= _place(cls, "awrite")  # type: ignore[attr-defined]


def _declare_deletes(cls: type[Any], protocol: type[Any]) -> None:
    """Declare whether `cls` deletes, by whether it has an `adelete`, unless a class that has one declared it."""
    owner: Any = next(base for base in cls.__mro__ if "capabilities" in vars(base))
    if not isinstance(declared := vars(owner)["capabilities"], Capabilities):
        return
    has_delete = cls.adelete is not protocol.adelete
    is_for_another = owner is not cls and owner.adelete is protocol.adelete
    deletes = has_delete and (declared.deletes or is_for_another)
    if deletes != declared.deletes:
        cls.capabilities = replace(declared, deletes=deletes)


_STREAMS: Final[Mapping[str, str]] = {"aupload_stream": "aupload_files", "adownload_stream": "adownload_files"}
"""Streams, and the operation that each could be made of."""


def made_by_overrides(cls: type[Any], wrapper: type[Any], protocol: type[Any]) -> None:
    """Have an override of uploads, downloads or `als` in `cls`, a subclass of `wrapper`, hold for streams and trees.

    Where a class overrides `upload_files` and no stream, its streams are made of its `upload_files`, as in `protocol`;
    so are those of downloads. Otherwise a stream would pass by what the class does. A `dispatch` by its former name
    knows no streams either.
    """
    knows_no_streams = defined_formerly(cls, "dispatch")
    for stream, whole in _STREAMS.items():
        if (0 if knows_no_streams else _place(cls, whole)) < _place(cls, stream):
            setattr(cls, stream, vars(protocol)[stream])
    if cls.alist_tree is wrapper.alist_tree and cls.als is not wrapper.als:
        cls.alist_tree = protocol.alist_tree


def _place(cls: type[Any], name: str) -> int:
    """How far up the method of this name is defined."""
    return next(place for place, owner in enumerate(cls.__mro__) if name in vars(owner))


_SPELLINGS: Final = {"path": "file_path", "old": "old_string", "new": "new_string"}
"""Parameters that code written for deepagents names differently; either name is accepted, whichever a class uses."""

_BATCHES: Final[dict[str, tuple[str, Callable[[Any], list[Any]]]]] = {
    "upload_files": ("files", upload_list),
    "download_files": ("paths", path_list),
}
"""Operations on many items, with the name of the items, and what makes a list of them."""

_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_OPTIONS: Final = frozenset({"overwrite", "if_match", "timeout"}).union(*map(option_types, _REQUESTS.values()))
"""What a method may lack; each is off where it is false, a text where it is None."""


def _search_options(operation: str) -> dict[str, Argument]:
    options = option_types(_REQUESTS[operation]) if operation in _REQUESTS else {}
    return {name: argument_of(name, kind) for name, kind in options.items()}


class Parameters:
    """What a method takes, as the operation of this sync name."""

    def __init__(self, method: Callable[..., Any], operation: str) -> None:
        own = inspect.signature(method).parameters
        self._batch = _BATCHES.get(operation)
        known = {**arguments_of(operation), **_search_options(operation)}
        self._named = {**known, **{theirs: known[name] for name, theirs in _SPELLINGS.items()}}
        self._placed: list[Argument | None] = [
            self._named.get(name) for name, taken in own.items() if taken.kind in _PLACED
        ]
        pairs = [*_SPELLINGS.items(), *((new, old) for old, new in _SPELLINGS.items())]
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
        self._name = method.__qualname__
        self._respelled = {other: name for name, other in pairs if name in own and other not in own}
        self._lacking = frozenset() if takes_all else _OPTIONS - own.keys()

    def checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any] | None]:
        """The arguments, and the items of a batch, which have become a list; TypeError for what none can be."""
        for taken, given in zip(self._placed, args, strict=False):
            if taken is not None and type(given) not in taken.plain:  # What `look` asks first.
                taken.look(given)
        for name, given in kwargs.items():
            if name in self._named:
                self._named[name].look(given)
        return (args, kwargs, None) if self._batch is None else self._listed(*self._batch, args, kwargs)

    def _listed(
        self, name: str, listed: Callable[[Any], list[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any] | None]:
        if name in kwargs:
            kwargs = {**kwargs, name: listed(kwargs[name])}
            return args, kwargs, kwargs[name]
        if len(args) < 2:
            return args, kwargs, None
        items = listed(args[1])
        return (args[0], items, *args[2:]), kwargs, items

    def fitted(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The keyword arguments as the method takes them, and the `max_count` that its caller has to see to.

        Raises NotSupportedError for another option that it lacks.
        """
        lacking = {name: kwargs[name] for name in self._lacking & kwargs.keys()}
        limit = lacking.pop("max_count", None)
        for name in (name for name, value in lacking.items() if value or value == ""):
            raise NotSupportedError(None, f"{self._name} has no parameter {name!r}")
        return {self._respelled.get(name, name): kwargs[name] for name in kwargs if name not in self._lacking}, limit


def limited(result: Any, limit: int | None) -> Any:
    """`result`, with at most `limit` matches where it is one of a grep."""
    if limit is None or not isinstance(result, GrepResult) or len(result.matches or ()) <= max(limit, 0):
        return result
    return replaced(result, matches=(result.matches or [])[: max(limit, 0)], truncated=True)
