"""A search as one value: what to find, where, in which files, within which bounds, and what the caller hides.

`aglob` and `agrep` make a request from their arguments. Wrappers, mounts, backends and engines pass it on.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import fields, replace

from deepfs.search.globs import Glob, compile_glob
from deepfs.search.query import Query, check_search, compile_query
from deepfs.text import paths
from deepfs.text.paths import is_visible, visible_in
from deepfs.threads.deadline import Deadline

__all__ = ["FileFilter", "GlobRequest", "GrepRequest", "PathFilter", "SearchRequest", "option_types"]


_NO_PARAMETERS: Final = frozenset({"hidden", "fresh"})


class PathFilter(Protocol):
    """Returns whether to leave out a path: a file, or with `is_dir` everything beneath a directory."""

    def __call__(self, path: str, *, is_dir: bool) -> bool: ...


class _Search(Struct, frozen=True):
    pattern: str
    path: str | None = None
    """Where to start, as the caller wrote it; None stands for the root."""


class SearchRequest(_Search, frozen=True, kw_only=True):
    """The arguments of a call of `aglob` or `agrep`. The fields have the names and defaults of the parameters.

    Two fields are not parameters. `hidden` selects paths that the caller of a backend will not show, so that the search
    need not look there. It is only a hint, which a wrapper may drop, so the caller must also filter the result. `fresh`
    makes a backend that searches by an index bring that up to date first; the others always search what is there.
    """

    placed: ClassVar[tuple[str, ...]]
    """The positional parameters. All others are options."""

    hidden: PathFilter | None = None
    fresh: bool = False

    @classmethod
    def called_with(cls, placed: Sequence[Any], options: Mapping[str, Any]) -> Self:
        """Make the request from the arguments of the operation. Raises TypeError if it has no such parameters."""
        if len(placed) > len(cls.placed):
            raise TypeError(f"a search takes {len(cls.placed)} arguments by position, but {len(placed)} were given")
        for name in _NO_PARAMETERS & options.keys():
            raise TypeError(f"a search has no parameter {name!r}")
        return cls(*placed, **options)

    @property
    def root(self) -> str:
        """The normalised path of the directory or file that is searched. Raises InvalidPathError if it is not valid."""
        return paths.normalize(self.path or "/")

    @property
    def file_glob(self) -> str | None:
        """The pattern that chooses the files; None for all visible files."""
        raise NotImplementedError

    def elsewhere(self, path: str | None, file_glob: str | None, hidden: PathFilter | None) -> Self:
        """Return the same search with another start, file pattern and `hidden`."""
        raise NotImplementedError

    @property
    def arguments(self) -> list[Any]:
        """The positional arguments of the operation."""
        return [getattr(self, name) for name in self.placed]

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, so that a backend without the others can be called."""
        given = ((name, getattr(self, name), default) for name, default in _defaults(type(self)))
        return {name: value for name, value, default in given if value != default}


class GlobRequest(SearchRequest, frozen=True):
    """Find the files whose paths match `pattern`."""

    placed: ClassVar[tuple[str, ...]] = ("pattern", "path")
    path: str | None = "/"

    def __post_init__(self) -> None:
        check_search(self.pattern)

    @property
    def file_glob(self) -> str:
        return self.pattern

    def elsewhere(self, path: str | None, file_glob: str | None, hidden: PathFilter | None) -> Self:
        return replace(self, pattern=file_glob or self.pattern, path=path, hidden=hidden)


class GrepRequest(SearchRequest, frozen=True):
    """Find the lines that match `pattern` in the files that `glob` chooses."""

    placed: ClassVar[tuple[str, ...]] = ("pattern", "path", "glob")
    glob: str | None = None
    regex: bool = False
    ignore_case: bool = False
    context_lines: int = 0
    max_count: int | None = None

    def __post_init__(self) -> None:
        check_search(self.pattern, self.context_lines, self.max_count)

    @property
    def file_glob(self) -> str | None:
        return self.glob

    def elsewhere(self, path: str | None, file_glob: str | None, hidden: PathFilter | None) -> Self:
        return replace(self, path=path, glob=file_glob, hidden=hidden)

    def query(self) -> Query:
        """Compile the query to search each file with. Raises InvalidPatternError."""
        return compile_query(
            self.pattern, regex=self.regex, ignore_case=self.ignore_case, context_lines=self.context_lines
        )


def option_types(request: type[SearchRequest]) -> dict[str, Any]:
    """The options of an operation by name, each with its type."""
    return {each.name: each.type for each in fields(request) if each.name not in {*request.placed, *_NO_PARAMETERS}}


@cache
def _defaults(request: type[SearchRequest]) -> list[tuple[str, Any]]:
    options = option_types(request)
    return [(each.name, each.default) for each in fields(request) if each.name in options]


class FileFilter:
    """The files at or under `root` that a request selects; without a pattern, all that have no dot-name below `root`.

    Paths for which `ignored` or the request's `hidden` returns True are left out; `ignored` is never called for the
    root itself. Raises InvalidPatternError, and InvalidPathError if `root` is None and the request's path is invalid.
    """

    def __init__(self, request: SearchRequest, root: str | None = None, ignored: PathFilter | None = None) -> None:
        self.root: str = request.root if root is None else root
        self.glob: Glob | None = None if request.file_glob is None else compile_glob(request.file_glob)
        self._ignored = ignored
        self._hidden = request.hidden
        self._leaving_out = [leaves_out for leaves_out in (request.hidden, ignored) if leaves_out is not None]
        self._start = len(paths.join(self.root, "_")) - 1

    def __contains__(self, path: str) -> bool:
        # Every file of a search passes here.
        if self.glob is None:
            if "/." in path and not is_visible(path[self._start :]):
                return False
        elif not self.glob.matches(path[self._start :] or paths.name(self.root)):
            return False
        if self._hidden is not None and self._hidden(path, is_dir=False):
            return False
        return self._ignored is None or path == self.root or not self._ignored(path, is_dir=False)

    @property
    def is_everything(self) -> bool:
        """Whether all files of the storage are selected, except those with dot-names."""
        return self.root == "/" and self.glob is None and self._ignored is None and self._hidden is None

    def may_enter(self, directory: str) -> bool:
        """Whether files beneath `directory`, a directory under the root, could be chosen; False is certain."""
        relative = directory[self._start :]
        may = self.glob.may_enter(relative) if self.glob is not None else is_visible(relative)
        if may and self._hidden is not None and self._hidden(directory, is_dir=True):
            return False
        return may and (self._ignored is None or not self._ignored(directory, is_dir=True))

    def files(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        """Those of the files `names` that are selected; `directory`, where they are, ends in `/`."""
        relative = directory[self._start :]
        chosen = visible_in(relative, names) if self.glob is None else self.glob.matching(relative, names)
        return self._shown(directory, chosen, deadline, is_dir=False) if self._leaving_out else chosen

    def directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        """Those of the directories `names` that `may_enter` enters; `directory`, where they are, ends in `/`."""
        relative = directory[self._start :]
        chosen = visible_in(relative, names) if self.glob is None else self.glob.enterable(relative, names)
        return self._shown(directory, chosen, deadline, is_dir=True) if self._leaving_out else chosen

    def _shown(self, directory: str, names: list[str], deadline: Deadline, *, is_dir: bool) -> list[str]:
        shown: list[str] = []
        for name in names:
            deadline.check(directory)
            for leaves_out in self._leaving_out:
                if leaves_out(directory + name, is_dir=is_dir):
                    break
            else:
                shown.append(name)
        return shown
