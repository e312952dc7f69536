"""What plans ask of a storage.

A plan is a generator. It yields requests to the storage, or `Work` that takes long, receives the answers, and returns
the result of the operation. If the storage raises ChangedError, the operation starts again with a new plan.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, final

from msgspec import Struct

from deepfs.search.request import FileFilter, SearchRequest
from deepfs.text.flat_tree import Change, FileStat
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2

if TYPE_CHECKING:
    from deepfs.storage.runners import Storage

T = TypeVar("T")


class Stat(Struct, frozen=True):
    """Asks for the files at these paths without content. The answer has a `FileStat` for each path with a file."""

    paths: Sequence[str]

    def ask(self, storage: "Storage") -> Any:
        return storage.stat(self.paths)


class Get(Struct, frozen=True):
    """Asks for the files at these paths. The answer has the file of each path that has one."""

    paths: Sequence[str]

    def ask(self, storage: "Storage") -> Any:
        return storage.get(self.paths)


class GetEach(Struct, frozen=True):
    """As `Get`, but a file that cannot be read spoils no other: access to it in the answer raises the reason.

    The paths `ahead` are probably asked for next, in this order, so the storage may begin to fetch them.
    """

    paths: Sequence[str]
    ahead: Sequence[str] = ()

    def ask(self, storage: "Storage") -> Any:
        return storage.get_each(self.paths, self.ahead)


class List(Struct, frozen=True):
    """Asks for the files whose paths begin with `prefix`, or for the first `limit` of them.

    The answer is a mapping of path to `FileStat`, or a `FileTree`. It may hold other files as well.
    """

    prefix: str
    limit: int | None = None

    def ask(self, storage: "Storage") -> Any:
        return storage.list(self.prefix, self.limit)


class Children(Struct, frozen=True):
    """Asks for what is directly in a directory, whose path with `/` at the end is `prefix`.

    The answer is as that of `List`, but of the files deeper down it needs only one for each directory in this one.
    """

    prefix: str

    def ask(self, storage: "Storage") -> Any:
        return storage.children(self.prefix)


class Page(Struct, frozen=True):
    """Some of the files that a search may find, in the order of their paths."""

    files: Mapping[str, FileStat]
    last: str | None = None
    """The path up to which no other file can be found; None if there are no more files."""
    skipped: int = 0
    """How many other files up to there could not be searched."""
    truncated: bool = False
    """Whether the storage gave up, at a limit of its own, before all files were considered."""
    as_of: str | None = None
    """The time of the listing that the answer rests on; None if the storage itself was asked."""


class Find(Struct, frozen=True):
    """Asks for the next files, behind the path `after`, that a search may find. The answer is a `Page`.

    It may hold other files as well: the search checks the path and the content of each.
    """

    request: SearchRequest
    files: FileFilter
    after: str | None = None

    def ask(self, storage: "Storage") -> Any:
        return storage.find(self.request, self.files, self.after)


class Apply(Struct, frozen=True):
    """Asks to store all changes of an operation, additions before removals. The answer is the `files_update`, if any.

    The storage raises ChangedError, and stores nothing, if the condition of a change does not hold.
    """

    changes: Sequence[Change]

    def ask(self, storage: "Storage") -> Any:
        return storage.apply(self.changes)


@final
class Together(Struct, frozen=True):
    """Asks for several things at once. The answer is a list of the answers."""

    requests: Sequence["Primitive"]


@final
class Work(Struct, frozen=True):
    """A search of files in memory. It checks its deadline, and belongs off the event loop unless it is short."""

    run: Callable[[Deadline], Any]
    deadline: Deadline
    is_short: bool = False


Primitive: TypeAlias = Stat | Get | GetEach | List | Children | Find | Apply
Request: TypeAlias = Primitive | Together | Work
Plan: TypeAlias = Generator[Request, Any, T]


class Terms(Protocol):
    """The parts of a backend that its plans use."""

    _max_bytes: int
    _reads_before_change: bool
    _asks_together: bool
    _finds: bool

    def _check_storable(self, path: str, data: FileDataV2) -> None: ...

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]: ...
