"""Completes a class that defines some of the operations, sync or async, to a whole backend."""

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from deepfs.backends.answers import completed
from deepfs.backends.older_protocols import (
    V1_NAMES,
    adapters,
    add_v1_names,
    speaks_v1,
    takes_option,
)
from deepfs.errors import ConflictError, DeepFSError, NotSupportedError
from deepfs.operations import KINDS, Operation, Streamed, UploadStream, Write, checked_arguments
from deepfs.sync import BLOCKS_INLINE, OPERATIONS, RUNS_INLINE, shielded, shim, sync_shims
from deepfs.text.arguments import Argument, check_string, path_list, upload_list
from deepfs.text.lines import version
from deepfs.threads.locks import path_locks
from deepfs.types import (
    Capabilities,
    FileUploadResponse,
    GrepResult,
    ReadResult,
    failure,
    replaced,
)

__all__ = [
    "Parameters",
    "answer",
    "bound_operations",
    "complete",
    "complete_protocol",
    "limited",
    "replacing",
]

ClassT = TypeVar("ClassT", bound=type)
Run: TypeAlias = Callable[[Any, Operation], Awaitable[Any]]


def _failed(operation: str, error: DeepFSError, items: list[Any] | None) -> Any:
    """Return the failed result of `operation`; raise `error` if the operation has no result type."""
    kind = KINDS[operation]
    if items is not None:
        return kind(items).failed(error)
    if kind.result is None:
        raise error
    return failure(kind.result, error)


replacing: Final[ContextVar[frozenset[tuple[int, str]]]] = ContextVar("deepfs_replacing", default=frozenset())
"""The writes, by object and path, that replace a file though the override of `write` takes no `overwrite`: the `write`
of its base, which it calls, does."""


def _bounded(method: Callable[..., Any], operation: str, *, is_async: bool, is_outside: bool) -> Callable[..., Any]:
    """Wrap `method` to check its arguments and to return a DeepFSError as a failed result.

    The wrapper is called with the parameters of `method`. The answer of a method from outside of deepfs is completed,
    and a NotImplementedError of it is that of deepagents for an operation that a class lacks.
    """
    parameters = Parameters(method, operation)

    def fit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        if operation == "write" and (paths := replacing.get()):
            replaces = (id(args[0]), parameters.named(args, kwargs)["path"]) in paths
            kwargs = {**kwargs, "overwrite": True} if replaces else kwargs
        return parameters.fitted(kwargs) if kwargs else (kwargs, None)

    def finish(answer: Any, limit: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_outside:
            answer = completed(operation, answer, parameters.named(args, kwargs))
        return limited(answer, limit)

    def failed(error: DeepFSError | NotImplementedError, backend: object, items: list[Any] | None) -> Any:
        if isinstance(error, NotImplementedError):
            if not is_outside:
                raise error
            error = NotSupportedError(backend=type(backend).__name__, operation=operation)
        return _failed(operation, error, items)

    @functools.wraps(method)
    async def acall(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, items = parameters.checked(args, kwargs)
        try:
            fitted, limit = fit(args, kwargs)
            return finish(await method(*args, **fitted), limit, args, kwargs)
        except (DeepFSError, NotImplementedError) as error:
            return failed(error, args[0], items)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, items = parameters.checked(args, kwargs)
        try:
            fitted, limit = fit(args, kwargs)
            return finish(method(*args, **fitted), limit, args, kwargs)
        except (DeepFSError, NotImplementedError) as error:
            return failed(error, args[0], items)

    return acall if is_async else call


def _bounded_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an `aupload_stream` to check its arguments, return a DeepFSError as a result, and close the source."""

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
            if isinstance(chunks, AsyncGenerator):  # It may not have been read to its end.
                await shielded(chunks.aclose)
        return outcome

    return aupload_stream


def _is_outside(cls: type) -> bool:
    return cls.__module__.partition(".")[0] != "deepfs"


def bound_operations(cls: ClassT) -> ClassT:
    """Wrap the operations in the body of `cls` with the error boundary; one without a docstring inherits it."""
    is_outside = _is_outside(cls)
    for name in OPERATIONS:
        for spelled in (name, f"a{name}"):
            method = cls.__dict__.get(spelled)
            if inspect.isfunction(method) and not getattr(method, "__isabstractmethod__", False):
                bounded = _bounded(method, name, is_async=spelled != name, is_outside=is_outside)
                bounded.__doc__ = method.__doc__ or getattr(getattr(super(cls, cls), spelled, None), "__doc__", None)
                setattr(cls, spelled, bounded)
    if "aupload_stream" in vars(cls):
        cls.aupload_stream = _bounded_stream(vars(cls)["aupload_stream"])  # type: ignore[attr-defined]
    return cls


def _adopt_operations(cls: type, mixins: Sequence[type]) -> None:
    """Copy the operations that a mixin overrides, and its `run`, into the body of `cls`."""
    definer = next(base for base in cls.__mro__ if "run" in vars(base))
    if definer in mixins:
        cls.run = vars(definer)["run"]  # type: ignore[attr-defined]
    for name in OPERATIONS:
        spellings = (name, f"a{name}", *filter(None, [V1_NAMES.get(name)]))
        owner = next((base for base in cls.__mro__ if any(spelled in vars(base) for spelled in spellings)), None)
        if owner in mixins:
            for spelled in spellings:
                if inspect.isfunction(method := vars(owner).get(spelled)):
                    setattr(cls, spelled, method)


async def answer(run: Run, backend: Any, operation: Operation) -> Any:
    """What `run` returns for an operation; an error that it raises becomes the failed result."""
    try:
        return await run(backend, operation)
    except DeepFSError as error:
        return operation.failed(error)
    finally:
        if type(operation) is UploadStream and isinstance(operation.chunks, AsyncGenerator):
            await shielded(operation.chunks.aclose)  # It may not have been read to its end.


def _pair_with_run(cls: type[Any], protocol: Any) -> None:
    """Generate the named methods where the body of `cls` defines `run`, and `run` where it defines named methods.

    So each class has both, and `super()` in either leads to the class above.
    """
    body = vars(cls).get("run")
    if body is not None and _is_outside(cls):
        cls.run = body = _completing(body)
    named_here = {kind: vars(cls)[f"a{name}"] for name, kind in KINDS.items() if f"a{name}" in vars(cls)}
    declared = {kind: mark for mark in (RUNS_INLINE, BLOCKS_INLINE) for kind in vars(cls).get(f"_{mark}", ())}
    otherwise = body or _run_above(cls)
    for kind in KINDS.values() if body is not None else declared:
        name = f"a{kind.name}"
        like = getattr(protocol, name, None) or getattr(cls, name, None)
        if kind not in named_here and like is not None:
            method = _named_method(otherwise, kind, like)
            if kind in declared:
                setattr(method, declared[kind], True)
            setattr(cls, name, method)
    sync_shims(cls)
    if named_here:
        cls.run = _choosing(named_here, otherwise)


def _completing(run: Run) -> Run:
    """A `run` from outside of deepfs, whose answers are completed."""

    @functools.wraps(run)
    async def complete_run(self: Any, operation: Operation) -> Any:
        given = await run(self, operation)
        if operation.name not in OPERATIONS:
            return given
        return completed(operation.name, given, {**operation.arguments, "paths": operation.paths})

    return complete_run


def _run_above(cls: type[Any]) -> Run:
    async def run(self: Any, operation: Operation) -> Any:
        return await super(cls, self).run(operation)

    return run


def _choosing(methods: Mapping[type[Operation], Callable[..., Any]], otherwise: Run) -> Run:
    """A `run` that calls the method for an operation if there is one."""

    async def run(self: Any, operation: Operation) -> Any:
        """Carry out an operation by the method of its name, which this class defines."""
        method = methods.get(type(operation))
        if method is None:
            return await otherwise(self, operation)
        answer = method(self, *operation.args, **operation.kwargs)
        return answer if isinstance(operation, Streamed) else await answer

    return run


def _named_method(run: Run, kind: type[Operation], like: Callable[..., Any]) -> Callable[..., Any]:
    """A method with the signature of `like`, which calls `run` itself, not an override of it in the class of `self`."""

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await answer(run, self, kind.called(args, kwargs))

    async def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation: Any = kind.called(args, kwargs)
        if (places := replacing.get()) and (id(self), operation.path) in places:
            operation = replace(operation, overwrite=True)
        return await answer(run, self, operation)

    async def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with aclosing(await run(self, kind.called(args, kwargs))) as items:
            async for item in items:
                yield item

    made = stream if issubclass(kind, Streamed) else write if kind is Write else call
    functools.update_wrapper(made, like)
    return made


def _add_conditions(cls: type) -> None:
    """Let the changes in the body of `cls` that lack the option `if_match`, as those of deepagents do, take it.

    The version is compared just before the call, not in one step with it. Calls with `if_match` wait for each other.
    """
    for name in ("write", "edit", "delete"):
        amethod = vars(cls).get(f"a{name}")
        if inspect.isfunction(amethod) and not takes_option(amethod, "if_match"):
            conditional, method = _conditional(amethod, name), vars(cls)[name]
            setattr(cls, f"a{name}", conditional)
            setattr(cls, name, _either(method, shim(conditional, name)))


def _conditional(amethod: Callable[..., Any], operation: str) -> Callable[..., Any]:
    parameters = Parameters(amethod, operation)
    # With `if_match`, a write replaces the file.
    options = {"overwrite": True} if operation == "write" and takes_option(amethod, "overwrite") else {}

    @functools.wraps(amethod)
    async def call(self: Any, *args: Any, if_match: str | None = None, **kwargs: Any) -> Any:
        if if_match is None:
            return await amethod(self, *args, **kwargs)
        path = check_string("path", parameters.named((self, *args), kwargs)["path"])
        try:
            async with path_locks(("if_match", id(self))).hold(path):
                await _check_version(self, path, if_match)
                return await amethod(self, *args, **{**kwargs, **options})
        except DeepFSError as error:
            return _failed(operation, error, None)

    return call


async def _check_version(backend: Any, path: str, if_match: str) -> None:
    """Raise ConflictError unless a file has this version, told by the backend or of its content."""
    read: ReadResult = await backend.aread(path, 0, 1)
    if not read.ok or read.version != if_match:
        [download] = await backend.adownload_files([path])
        if version(download.unwrap()) != if_match:
            raise ConflictError(path)


def _either(method: Callable[..., Any], conditional: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (method if kwargs.get("if_match") is None else conditional)(*args, **kwargs)

    return call


def _is_synchronous(cls: type, mixins: Sequence[type]) -> bool:
    """Whether `cls` adds no coroutine functions, and all backends that it inherits from are synchronous."""
    added = [member for owner in (cls, *mixins) for member in vars(owner).values()]
    inherited = [base.__dict__["is_synchronous"] for base in cls.__bases__ if "is_synchronous" in vars(base)]
    return all(inherited) and not any(inspect.iscoroutinefunction(member) for member in added)


def _is_older(cls: type) -> bool:
    """Whether the body of `cls` may be written for an older protocol, judged by method names and by its `write`."""
    by_name = any(name in vars(cls) for name in V1_NAMES.values()) or any(map(speaks_v1, cls.__bases__))
    return by_name or any(
        inspect.isfunction(method) and not takes_option(method, "overwrite")
        for method in (vars(cls).get("write"), vars(cls).get("awrite"))
    )


def complete_protocol(cls: ClassT) -> ClassT:
    """Complete the class that defines the protocol itself, with named methods."""
    sync_shims(bound_operations(cls))
    _pair_with_run(cls, cls)
    return cls


def complete(cls: type[Any], protocol: type, *, is_layer: bool) -> None:
    """Complete `cls`, a subclass of `protocol` whose body defines operations as sync or async methods.

    Bases that are no backends may override operations, too. `is_synchronous` is derived unless the body declares it.
    """
    ours = (protocol.__module__, "builtins")
    mixins = [base for base in cls.__mro__[1:] if protocol not in base.__mro__ and base.__module__ not in ours]
    if "is_synchronous" not in vars(cls):
        cls.is_synchronous = _is_synchronous(cls, mixins)
    _adopt_operations(cls, mixins)
    if _is_older(cls):
        adapters().body(cls, protocol)
    sync_shims(bound_operations(cls))
    _add_conditions(cls)
    if is_layer:
        _make_by_overrides(cls, protocol)
    _declare_judging(cls)
    has_links = "aresolve_paths" in vars(cls)
    _pair_with_run(cls, protocol)
    add_v1_names(cls)
    _declare_capabilities(cls, protocol, has_links=has_links)
    if "offers_move" not in vars(cls):
        # The `amove` of the protocol itself calls the other operations, so it does not bypass an `awrite`.
        cls.offers_move = cls.amove is protocol.amove or _mro_index(cls, "amove") <= _mro_index(cls, "awrite")  # type: ignore[attr-defined]


_JUDGING: Final = frozenset({"run", "ls", "als", "glob", "aglob", "grep", "agrep", "aresolve_paths"})
"""The methods that `judges_results` is about."""


def _declare_judging(cls: type[Any]) -> None:
    """Set `judges_results`: as declared, or as its bases say if the body of `cls` overrides none of their methods."""
    if "judges_results" not in vars(cls):
        declared = [base.__dict__["judges_results"] for base in cls.__bases__ if "judges_results" in vars(base)]
        cls.judges_results = all(declared) and _JUDGING.isdisjoint(vars(cls))


def _declare_capabilities(cls: type[Any], protocol: type[Any], *, has_links: bool) -> None:
    """Set what follows from the methods of `cls`: `deletes` is False if it has no `adelete`, else as declared.

    A declaration that is inherited from a class without `adelete` does not count: `cls` then deletes.
    """
    owner: Any = next(base for base in cls.__mro__ if "capabilities" in vars(base))
    if not isinstance(declared := vars(owner)["capabilities"], Capabilities):
        return
    has_delete = cls.adelete is not protocol.adelete
    is_for_another = owner is not cls and owner.adelete is protocol.adelete
    deletes = has_delete and (declared.deletes or is_for_another)
    has_links = has_links or declared.has_links
    if (deletes, has_links) != (declared.deletes, declared.has_links):
        cls.capabilities = replace(declared, deletes=deletes, has_links=has_links)


_MADE_OF: Final[Mapping[str, str]] = {
    "aupload_stream": "aupload_files",
    "adownload_stream": "adownload_files",
    "alist_tree": "als",
}
"""The operations that are made of another one where only that is known."""


def _make_by_overrides(cls: type[Any], protocol: type[Any]) -> None:
    """Where the body of a layer overrides `upload_files` alone, make streams of it: they would bypass it. And so on."""
    for name, other in _MADE_OF.items():
        if other in vars(cls) and name not in vars(cls):
            setattr(cls, name, vars(protocol)[name])


def _mro_index(cls: type[Any], name: str) -> int:
    """The index in the MRO of the first class that defines `name`."""
    return next(place for place, owner in enumerate(cls.__mro__) if name in vars(owner))


_SPELLINGS: Final = {"path": "file_path", "old": "old_string", "new": "new_string"}
"""Parameters that code written for deepagents names differently; callers may use either name with any class."""

_OWN_SPELLINGS: Final = {theirs: name for name, theirs in _SPELLINGS.items()}

_BATCHES: Final[dict[str, tuple[str, Callable[[Any], list[Any]]]]] = {
    "upload_files": ("files", upload_list),
    "download_files": ("paths", path_list),
}
"""Operations on many items: the name of the parameter with the items, and the function that makes a list of them."""

_EMPTY: Final = inspect.Parameter.empty
_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_OPTIONS: Final = frozenset(option for kind in KINDS.values() for option in kind.options)
"""Options that a method may lack. A false value turns an option off, except that "" is a value of a string option."""


class Parameters:
    """The parameters of a method that implements `operation` (a sync name)."""

    def __init__(self, method: Callable[..., Any], operation: str) -> None:
        own = inspect.signature(method).parameters
        kind = KINDS[operation]
        self._batch = _BATCHES.get(operation)
        self._names = kind.parameters
        known = dict(checked_arguments(kind))
        self._named = known | {theirs: known[name] for name, theirs in _SPELLINGS.items() if name in known}
        self._placed: list[Argument | None] = [
            self._named.get(name) for name, taken in own.items() if taken.kind in _PLACED
        ]
        pairs = [*_SPELLINGS.items(), *((new, old) for old, new in _SPELLINGS.items())]
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
        self._name = method.__qualname__
        placed = [taken.default for taken in own.values() if taken.kind in _PLACED]
        # A method may have other defaults than the protocol.
        own_defaults = dict(zip(self._names, placed[1:], strict=False))
        defaults = {each.name: each.default for each in fields(kind) if each.name not in kind.extras} | own_defaults
        self._defaults = {name: default for name, default in defaults.items() if default not in (_EMPTY, NODEFAULT)}
        self._respelled = {other: name for name, other in pairs if name in own and other not in own}
        self._lacking = frozenset() if takes_all else _OPTIONS - own.keys()

    def checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any] | None]:
        """Check the arguments and return them, with the items of a batch as a list. Raises TypeError."""
        for taken, given in zip(self._placed, args, strict=False):
            if taken is not None and type(given) not in taken.plain:  # The first test of `look`.
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

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names of the protocol, without `self`; the items of a batch by their `paths`."""
        given = dict(zip(self._names, args[1:], strict=False))
        given |= {_OWN_SPELLINGS.get(name, name): value for name, value in kwargs.items()}
        if "files" in given:
            given["paths"] = [path for path, _ in given["files"]]
        return {**self._defaults, **given}

    def fitted(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The keyword arguments that the method accepts, and a `max_count` that the caller must apply itself.

        Raises NotSupportedError for any other given option that the method lacks.
        """
        lacking = {name: kwargs[name] for name in self._lacking & kwargs.keys()}
        limit = lacking.pop("max_count", None)
        for name in (name for name, value in lacking.items() if value or value == ""):
            raise NotSupportedError(None, f"{self._name} has no parameter {name!r}; leave it out")
        return {self._respelled.get(name, name): kwargs[name] for name in kwargs if name not in self._lacking}, limit


def limited(result: Any, limit: int | None) -> Any:
    """`result`, with at most `limit` matches if it is a GrepResult."""
    if limit is None or not isinstance(result, GrepResult) or len(result.matches or ()) <= max(limit, 0):
        return result
    return replaced(result, matches=(result.matches or [])[: max(limit, 0)], truncated=True)
