"""Which files a search selects, and the query that its pattern is compiled to."""

from deepfs.operations import Glob as GlobRequest
from deepfs.operations import Grep as GrepRequest
from deepfs.operations import PathFilter
from deepfs.operations import Search as SearchRequest
from deepfs.search.globs import GlobPattern, compile_glob
from deepfs.search.query import Query, compile_query
from deepfs.text import paths
from deepfs.text.paths import is_visible, visible_in
from deepfs.threads.deadline import Deadline

__all__ = ["FileFilter", "GlobRequest", "GrepRequest", "PathFilter", "SearchRequest", "query_of"]


def query_of(request: GrepRequest) -> Query:
    """Compile the query to search each file with. Raises InvalidPatternError."""
    return compile_query(
        request.pattern,
        regex=request.regex,
        ignore_case=request.ignore_case,
        context_lines=request.context_lines,
    )


class FileFilter:
    """The files at or under `root` that a request selects; without a pattern, all that have no dot-name below `root`.

    Paths for which `ignored` or the request's `hidden` returns True are left out; `ignored` is never called for the
    root itself. Raises InvalidPatternError, and InvalidPathError if `root` is None and the request's path is invalid.
    """

    def __init__(self, request: SearchRequest, root: str | None = None, ignored: PathFilter | None = None) -> None:
        self.root: str = request.root if root is None else root
        self.glob: GlobPattern | None = None if request.file_glob is None else compile_glob(request.file_glob)
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
        chosen = visible_in(relative, names) if self.glob is None else self.glob.select(relative, names)
        return self._show(directory, chosen, deadline, is_dir=False) if self._leaving_out else chosen

    def directories(self, directory: str, names: list[str], deadline: Deadline) -> list[str]:
        """Those of the directories `names` that `may_enter` enters; `directory`, where they are, ends in `/`."""
        relative = directory[self._start :]
        chosen = visible_in(relative, names) if self.glob is None else self.glob.enterable(relative, names)
        return self._show(directory, chosen, deadline, is_dir=True) if self._leaving_out else chosen

    def _show(self, directory: str, names: list[str], deadline: Deadline, *, is_dir: bool) -> list[str]:
        shown: list[str] = []
        for name in names:
            deadline.check(directory)
            for leaves_out in self._leaving_out:
                if leaves_out(directory + name, is_dir=is_dir):
                    break
            else:
                shown.append(name)
        return shown
