"""The class step: completes a class that defines `run`, or some operations by name, sync or async, to a backend.

Each class gets both forms of what its body defines in one: `run` calls the named methods, and named methods call `run`.
So `super()` in either leads to the class above, and an override is called once, whoever calls.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace

from deepfs.backends.foreign import MISSING, V1_NAMES, adapters, add_v1_names, complete_answer, is_v1, shows_file
from deepfs.errors import AlreadyExistsError, ConflictError, DeepFSError, NotSupportedError
from deepfs.operations import KINDS, SPELLINGS, ChangeFiles, Operation, Streamed, UploadStream, Write
from deepfs.sync import BLOCKS_INLINE, OPERATIONS, RUNS_INLINE, in_thread, name_like, run_shielded, shim, sync_shims
from deepfs.text.lines import version
from deepfs.threads.locks import path_locks
from deepfs.types import Capabilities, GrepResult, ReadResult, replace_fields

ClassT = TypeVar("ClassT", bound=type)
Run: TypeAlias = Callable[[Any, Any], Any]
"""Carries out an operation by a backend. Returns an awaitable of the answer, for a stream of its async generator."""


def _is_outside(cls: type) -> bool:
    return cls.__module__.partition(".")[0] != "deepfs"


def complete_protocol(cls: ClassT) -> ClassT:
    """Complete the class that defines the protocol itself, with named methods."""
    _pair_with_run(cls, cls)
    return cls


def complete(cls: type[Any], protocol: type, *, is_layer: bool) -> None:
    """Complete `cls`, a subclass of `protocol`.

    Bases that are no backends may override operations, too. `is_synchronous` is derived unless the body declares it.
    """
    ours = (protocol.__module__, "builtins")
    mixins = [base for base in cls.__mro__[1:] if protocol not in base.__mro__ and base.__module__ not in ours]
    if "is_synchronous" not in vars(cls):
        cls.is_synchronous = _is_synchronous(cls, mixins)
    _adopt_operations(cls, mixins)
    cls._is_v1 = is_v1(cls)
    _make_by_overrides(cls, protocol, is_layer=is_layer)
    _declare_judges_results(cls)
    has_links = "aresolve_paths" in vars(cls)
    _pair_with_run(cls, protocol)
    add_v1_names(cls)
    _declare_capabilities(cls, protocol, has_links=has_links)
    if "offers_move" not in vars(cls):
        # The `amove` of the protocol itself calls the other operations, so it does not bypass an `awrite`.
        cls.offers_move = cls.amove is protocol.amove or _mro_index(cls, "amove") <= _mro_index(cls, "awrite")  # type: ignore[attr-defined]


async def answer(run: Run, backend: Any, operation: Operation) -> Any:
    """What `run` returns for an operation; an error that it raises becomes the failed result."""
    try:
        return await run(backend, operation)
    except DeepFSError as error:
        return operation.failed_result(error)
    finally:
        if type(operation) is UploadStream and isinstance(operation.chunks, AsyncGenerator):
            await run_shielded(operation.chunks.aclose)  # It may not have been read to its end.


# --- both forms ------------------------------------------------------------------------------------------------------


def _pair_with_run(cls: type[Any], protocol: Any) -> None:
    """Generate named methods where the body of `cls` defines `run`, and `run` where it defines named methods."""
    body = vars(cls).get("run")
    if body is not None and _is_outside(cls):
        cls.run = body = _complete_answers(body)
    otherwise: Run = body or (lambda self, operation: super(cls, self).run(operation))
    marks = {kind: mark for mark in (RUNS_INLINE, BLOCKS_INLINE) for kind in vars(cls).get(f"_{mark}", ())}
    calls = {kind: call for kind in KINDS.values() if (call := _call_of_body(cls, kind, protocol)) is not None}
    for kind in marks if body is None else KINDS.values():
        name = f"a{kind.name}"
        like = getattr(protocol, name, None) or getattr(cls, name, None)
        if kind not in calls and like is not None:
            method = _make_method(otherwise, kind, like)
            if kind in marks:
                setattr(method, marks[kind], True)
            setattr(cls, name, method)
    sync_shims(cls)
    if calls:
        cls.run = _choose_method(calls, otherwise)


def _call_of_body(cls: type[Any], kind: type[Operation], protocol: Any) -> Run | None:
    """What carries out an operation by the method that the body of `cls` defines for it; None if there is none.

    The method itself then makes the operation of its arguments, and returns an error as a result.
    """
    name = f"a{kind.name}"
    method, amethod = vars(cls).get(kind.name), vars(cls).get(name)
    if kind.name not in OPERATIONS:
        if amethod is not None and kind in (UploadStream, ChangeFiles):  # Their arguments are checked.
            setattr(cls, name, _make_method(_by_arguments(amethod, kind), kind, amethod))
        return amethod and _by_arguments(amethod, kind)
    older = V1_NAMES.get(kind.name, kind.name)
    if cls._is_v1 and amethod is None and older in vars(cls) and (method is None or older == kind.name):
        setattr(cls, name, _make_method(_in_v1, kind, getattr(protocol, name, method)))
        return _in_v1
    made: dict[str, _DefinedMethod] = {}
    for spelled, each in ((kind.name, method), (name, amethod)):
        if inspect.isfunction(each):
            made[spelled] = _DefinedMethod(each, kind, cls, protocol)
            each.__doc__ = each.__doc__ or getattr(getattr(super(cls, cls), spelled, None), "__doc__", None)
    if not made:
        return None
    asked = made.get(name) or made[kind.name]
    setattr(cls, name, _make_async(asked, name))
    if kind.name in made:
        setattr(cls, kind.name, _make_sync(made[kind.name], shim(vars(cls)[name], kind.name)))
    return _by_arguments(asked.method, kind) if asked.is_plain else asked.acall


def _by_arguments(method: Callable[..., Any], kind: type[Operation]) -> Run:
    """What calls a method of deepfs, which lacks no option; that of a stream returns the stream."""

    async def stream(backend: Any, operation: Operation) -> Any:
        return method(backend, *operation.args, **operation.kwargs)

    if issubclass(kind, Streamed):
        return stream
    return lambda backend, operation: method(backend, *operation.args, **operation.kwargs)


async def _in_v1(backend: Any, operation: Operation) -> Any:
    """Carry out an operation by the methods of V1 that the class of `backend` has."""
    return await adapters().older(backend).run(operation)


def _complete_answers(run: Run) -> Run:
    """A `run` from outside of deepfs, whose answers are completed."""

    @functools.wraps(run)
    async def complete_run(self: Any, operation: Operation) -> Any:
        return _complete(operation, await run(self, operation))

    return complete_run


def _choose_method(calls: Mapping[type[Operation], Run], otherwise: Run) -> Run:
    def run(self: Any, operation: Operation) -> Any:
        """Carry out an operation by the method of its name, which this class defines."""
        return calls.get(type(operation), otherwise)(self, operation)

    return run


def _make_method(run: Run, kind: type[Operation], like: Callable[..., Any]) -> Callable[..., Any]:
    """A method with the signature of `like`, which calls `run` itself, not an override of it in the class of `self`."""

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation = kind.from_call(args, kwargs)
        return await answer(run, self, _as_replacing(self, operation) if _replacing_now else operation)

    async def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        async with aclosing(await run(self, kind.from_call(args, kwargs))) as items:
            async for item in items:
                yield item

    made = stream if issubclass(kind, Streamed) else call
    functools.update_wrapper(made, like)
    return made


def _make_async(defined: "_DefinedMethod", name: str) -> Callable[..., Any]:
    """The async method of a class that defines one, or a sync one."""

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation, more = defined.operation(self, args, kwargs)
        return await answer(functools.partial(defined.acall, **more) if more else defined.acall, self, operation)

    return functools.wraps(defined.method)(call) if defined.is_async else name_like(call, defined.method, name)


def _make_sync(defined: "_DefinedMethod", shimmed: Callable[..., Any]) -> Callable[..., Any]:
    """The sync method of a class that defines one; `shimmed` is what is generated of the async one."""

    @functools.wraps(defined.method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        operation, more = defined.operation(self, args, kwargs)
        if defined.compares(operation):
            return shimmed(self, *args, **kwargs)
        try:
            return defined.call(self, operation, **more)
        except DeepFSError as error:
            return operation.failed_result(error)

    return call


# --- a method that a class body defines ------------------------------------------------------------------------------

_replacing: Final[ContextVar[frozenset[tuple[int, str]]]] = ContextVar("deepfs_replacing", default=frozenset())
"""The writes, by object and path, that replace a file though the method that makes them takes no `overwrite`: the
`write` that it calls of the same object does."""
_replacing_now: Final[list[tuple[int, str, str]]] = []
"""The same with the content, since the method may call `write` in a thread without its context."""


@contextmanager
def _allow_replacing(backend: object, operation: Write) -> Iterator[None]:
    """Within the block, each `write` of the object to the path may replace a file."""
    now = (id(backend), operation.path, operation.content)
    before = _replacing.set(_replacing.get() | {now[:2]})
    _replacing_now.append(now)
    try:
        yield
    finally:
        _replacing_now.remove(now)
        _replacing.reset(before)


def _as_replacing(backend: object, operation: Operation) -> Operation:
    """The operation; a write that is called within such a block may replace the file."""
    if type(operation) is not Write:
        return operation
    now = (id(backend), operation.path, operation.content)
    return replace(operation, overwrite=True) if now[:2] in _replacing.get() or now in _replacing_now else operation


class _DefinedMethod:
    """A method that a class body defines for an operation, and how it is called for one.

    It may lack options, as those of deepagents do. One that is set is then `unsupported`, but for three: `max_count` is
    applied to the result. `if_match` is compared just before the call, not in one step with it; such calls wait for
    each other. A `write` without `overwrite` replaces files, so it is only called where nothing is or where the caller
    asks for that.

    Args:
        method: The method, sync or async.
        kind: The operation.
        cls: The class.
        protocol: `BackendProtocol`.
    """

    def __init__(self, method: Callable[..., Any], kind: type[Operation], cls: type[Any], protocol: Any) -> None:
        self.method = method
        self.kind = kind
        self.is_async = inspect.iscoroutinefunction(method)
        self._is_outside = _is_outside(cls)
        own = list(inspect.signature(method).parameters.values())[1:]
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in own)
        own = [each for each in own if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        ours = {name: default for name, default in kind.defaults.items() if name not in kind.extras}
        placed = [each.name for each in own if each.kind is not each.KEYWORD_ONLY]
        self._by_place = placed[len(kind.parameters) :]
        self._respelled = dict(zip(placed, kind.parameters, strict=False))
        self._more = {each.name for each in own} - self._respelled.keys() - ours.keys()
        self._lacks = set() if self._takes_all else {*kind.options} - {each.name for each in own}
        defaults = {self._respelled.get(each.name, each.name): each.default for each in own}
        self._defaults = {
            name: default
            for name, default in defaults.items()
            if name in ours and default is not inspect.Parameter.empty and default != ours[name]
        }
        """Those that the protocol does not have."""
        self.is_plain = self.is_async and not (self._is_outside or self._lacks or self._defaults)
        above = getattr(super(cls, cls), "awrite", None)
        self._creates = kind is Write and "overwrite" in self._lacks and above is protocol.awrite
        """Whether nothing else sees to it that no file is replaced unasked."""

    def operation(
        self, backend: object, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Operation, dict[str, Any]]:
        """The operation for the arguments of a call, and those of its arguments that the protocol does not have."""
        if not kwargs and not self._defaults and len(args) <= len(self.kind.parameters):
            return _as_replacing(backend, self.kind.from_call(args, kwargs)), {}
        args, by_place = args[: len(self.kind.parameters)], args[len(self.kind.parameters) :]
        args = [*args, *by_place[len(self._by_place) :]]  # Too many are refused by `called`.
        given = dict(zip(self._by_place, by_place, strict=False))
        given |= {self._respelled.get(name, SPELLINGS.get(name, name)): value for name, value in kwargs.items()}
        more = given.keys() - self.kind.defaults.keys() if self._takes_all else given.keys() & self._more
        own = {name: given.pop(name) for name in more}
        unsaid = self._defaults.keys() - given.keys() - {*self.kind.parameters[: len(args)]}
        operation = self.kind.from_call(args, given | {name: self._defaults[name] for name in unsaid})
        return _as_replacing(backend, operation), own

    async def acall(self, backend: Any, operation: Any, **more: Any) -> Any:
        """Call the method, a sync one in a worker thread; `more` are arguments that the protocol does not have."""
        if self.is_plain:
            return await self.method(backend, *operation.args, **operation.kwargs, **more)
        if not self.compares(operation):
            return await self._acall(backend, operation, more)
        async with path_locks(("if_match", id(backend))).hold(operation.path):
            await _check_version(backend, operation.path, operation.if_match)
            return await self._acall(backend, operation, more)

    async def _acall(self, backend: Any, operation: Any, more: dict[str, Any]) -> Any:
        if self._creates and not _replaces(operation):
            with suppress(*MISSING):
                _check_free(await backend.aread(operation.path, 0, 1), operation.path)
        with self._call(backend, operation, more) as call:
            answered = await (call() if self.is_async else in_thread(call))
        return self._finish(answered, operation)

    def call(self, backend: Any, operation: Any, **more: Any) -> Any:
        """Call the method, which is sync, in this thread. The caller sees to what `compares`."""
        if self._creates and not _replaces(operation):
            with suppress(*MISSING):
                _check_free(backend.read(operation.path, 0, 1), operation.path)
        with self._call(backend, operation, more) as call:
            answered = call()
        return self._finish(answered, operation)

    def compares(self, operation: Any) -> bool:
        """Whether the version of the file must be compared before the call."""
        return "if_match" in self._lacks and operation.if_match is not None

    @contextmanager
    def _call(self, backend: Any, operation: Any, more: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
        """The call to make within the block. Raises NotSupportedError if the method cannot do it."""
        options = operation.kwargs
        options |= {name: getattr(operation, name) for name in self._defaults if name in operation.options}
        for name in self._lacks & options.keys():
            given = options.pop(name)
            if name not in _ADDED and (given or given == ""):  # Other false values turn an option off.
                raise NotSupportedError(None, f"{self.method.__qualname__} has no parameter {name!r}; leave it out")
        is_replacing = "overwrite" in self._lacks and (self._creates or _replaces(operation))
        try:
            with _allow_replacing(backend, operation) if is_replacing else nullcontext():
                yield functools.partial(self.method, backend, *operation.args, **options, **more)
        except NotImplementedError as error:
            if not self._is_outside:
                raise
            # In deepagents, that is an operation that a class lacks.
            raise NotSupportedError(backend=type(backend).__name__, operation=operation.name) from error

    def _finish(self, answered: Any, operation: Any) -> Any:
        if self._is_outside:
            answered = _complete(operation, answered)
        limit = operation.max_count if "max_count" in self._lacks else None
        if limit is None or not isinstance(answered, GrepResult) or len(answered.matches or ()) <= max(limit, 0):
            return answered
        return replace_fields(answered, matches=(answered.matches or [])[: max(limit, 0)], truncated=True)


_ADDED: Final = frozenset({"max_count", "if_match", "overwrite"})
"""Options that a method may lack though they are set."""


def _complete(operation: Operation, answered: Any) -> Any:
    """The answer of a class outside of deepfs, as those of deepfs answer."""
    if operation.name not in OPERATIONS:
        return answered
    return complete_answer(operation.name, answered, {**operation.arguments, "paths": operation.paths})


def _replaces(operation: Any) -> bool:
    return operation.overwrite or operation.if_match is not None


def _check_free(read: ReadResult, path: str) -> None:
    """Raise AlreadyExistsError if a read shows a file at `path`, or the read's error if it leaves that open.

    An empty text does not: some storages answer so where nothing is, and replacing it loses nothing.
    """
    if shows_file(read, path) and not (read.ok and read.file_data is not None and not read.file_data.content):
        raise AlreadyExistsError(path)


async def _check_version(backend: Any, path: str, if_match: str) -> None:
    """Raise ConflictError unless a file has this version, told by the backend or of its content."""
    read: ReadResult = await backend.aread(path, 0, 1)
    if not read.ok or read.version != if_match:
        [download] = await backend.adownload_files([path])
        if version(download.unwrap()) != if_match:
            raise ConflictError(path)


# --- what else is derived from a class -------------------------------------------------------------------------------


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


def _is_synchronous(cls: type, mixins: Sequence[type]) -> bool:
    """Whether `cls` adds no coroutine functions, and all backends that it inherits from are synchronous."""
    added = [member for owner in (cls, *mixins) for member in vars(owner).values()]
    inherited = [base.__dict__["is_synchronous"] for base in cls.__bases__ if "is_synchronous" in vars(base)]
    return all(inherited) and not any(inspect.iscoroutinefunction(member) for member in added)


_JUDGES_RESULTS: Final = frozenset({"run", "ls", "als", "glob", "aglob", "grep", "agrep", "aresolve_paths"})
"""The methods that `judges_results` is about."""


def _declare_judges_results(cls: type[Any]) -> None:
    """Set `judges_results`: as declared, or as its bases say if the body of `cls` overrides none of their methods."""
    if "judges_results" not in vars(cls):
        declared = [base.__dict__["judges_results"] for base in cls.__bases__ if "judges_results" in vars(base)]
        cls.judges_results = all(declared) and _JUDGES_RESULTS.isdisjoint(vars(cls))


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


_MADE_OF: Final[Mapping[str, Sequence[str]]] = {
    "aupload_stream": ["aupload_files"],
    "adownload_stream": ["adownload_files"],
    "alist_tree": ["als"],
    "achange_files": ["awrite", "adelete", "aupload_files"],
}
"""The operations that are made of others where only these are known."""


def _make_by_overrides(cls: type[Any], protocol: type[Any], *, is_layer: bool) -> None:
    """Where the body of a layer overrides `upload_files` alone, make streams of it: they would bypass it. And so on.

    Changes of files would bypass the overrides of any other class from outside, too.
    """
    body = vars(cls).keys()
    for name, others in _MADE_OF.items():
        is_bypassed = is_layer or (name == "achange_files" and "run" not in body and _is_outside(cls))
        if is_bypassed and name not in body and not body.isdisjoint({*others, *(other[1:] for other in others)}):
            setattr(cls, name, vars(protocol)[name])


def _mro_index(cls: type[Any], name: str) -> int:
    """The index in the MRO of the first class that defines `name`."""
    return next(place for place, owner in enumerate(cls.__mro__) if name in vars(owner))
