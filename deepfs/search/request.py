"""Which files a search selects, the query that its pattern is compiled to, and its result, collected up to a limit."""

from deepfs.operations import Glob as GlobRequest
from deepfs.operations import Grep as GrepRequest
from deepfs.operations import PathFilter
from deepfs.operations import Search as SearchRequest
from deepfs.search.globs import GlobPattern, compile_glob
from deepfs.search.query import Query, compile_query, search
from deepfs.text import paths
from deepfs.text.paths import MAX_PATH_BYTES, is_visible, visible_in
from deepfs.threads.deadline import Deadline
from deepfs.types import FileInfo, GlobResult, GrepMatch, GrepResult

__all__ = [
    "MAX_GLOB_CHARS",
    "MAX_GLOB_MATCHES",
    "MAX_SEARCHED_BYTES",
    "SEARCH_SECONDS",
    "FileFilter",
    "GlobRequest",
    "GrepRequest",
    "GrepScan",
    "PathFilter",
    "SearchRequest",
    "glob_result",
]


MAX_SEARCHED_BYTES = 10 * 1024 * 1024
MAX_GLOB_MATCHES = 100_000
MAX_GREP_LINES = 100_000
"""The most lines in the result of a grep, context lines included; a result with more is cut, and `truncated`."""
MAX_GLOB_CHARS = 32 * 1024 * 1024
"""The most characters of all paths in the result of a glob."""
MAX_GREP_CHARS = 32 * 1024 * 1024
"""The most characters of all lines in the result of a grep, context lines included."""
SEARCH_SECONDS = 60.0
"""Seconds after which a search ends with a `truncated` result, if its backend sets no other limit."""


class FileFilter:
    """The files at or under `root` that a request selects; without a pattern, all that have no dot-name below `root`.

    Paths for which `ignored` or the request's `hidden` returns True are left out; `ignored` is never called for the
    root itself. Raises InvalidPatternError, and InvalidPathError if `root` is None and the request's path is invalid.
    """

    def __init__(self, request: SearchRequest, root: str | None = None, ignored: PathFilter | None = None) -> None:
        self.root: str = paths.normalize(request.path or "/") if root is None else root
        pattern = request.file_glob
        self.glob: GlobPattern | None = None if pattern is None else compile_glob(pattern)
        self._ignored = ignored
        self._hidden = request.hidden
        self._leaving_out = [leaves_out for leaves_out in (request.hidden, ignored) if leaves_out is not None]
        self._start = len(self.root.rstrip("/")) + 1

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


# --- results --------------------------------------------------------------------------------------------------------


class GrepScan:
    """The matches of a grep so far. Files must come sorted by path if `max_count` is to keep the first matches.

    `deadline` is checked every few milliseconds within a file.
    """

    deadline: Deadline

    def __init__(self, request: GrepRequest, files: FileFilter, max_bytes: int = MAX_SEARCHED_BYTES) -> None:
        self.query: Query = compile_query(request)
        self.files: FileFilter = files
        self.is_limited: bool = request.max_count is not None
        most = MAX_GREP_LINES // (1 + 2 * request.context_lines)
        self.max_count: int = most if request.max_count is None else max(0, min(request.max_count, most))
        self.max_bytes = max_bytes
        self.matches: list[GrepMatch] = []
        self.skipped: int = 0
        self.truncated: bool = False
        self.deadline = Deadline()
        self.required: bytes = self.query.required or _find_required(request)
        """Bytes that every matching file contains; empty if none are known."""
        self._chars = 0

    def scan(self, path: str, content: bytes | str) -> None:
        """Search one file; the size limit counts the characters of a str. Raises DeadlineError."""
        if len(content) > self.max_bytes:
            self.skipped += 1
            return
        if self.required and type(content) is bytes and self.required not in content:
            return  # Most files end here.
        room = self.max_count - len(self.matches)
        hits = search(self.query, path, content, room + 1, self.deadline)
        self.skipped += hits.skipped
        if hits.matches:
            self.add(hits.matches)

    def add(self, matches: list[GrepMatch]) -> None:
        """Add matches, as many as a result may have lines and characters."""
        most = self.max_count - len(self.matches)
        for count, match in enumerate(matches[:most]):
            beside = (*(match.context_before or ()), *(match.context_after or ()))
            self._chars += len(match.text) + sum([len(line.text) for line in beside])
            if self._chars > MAX_GREP_CHARS:
                most = count
                break
        self.matches += matches[:most]
        self.truncated = self.truncated or len(matches) > most

    def skip(self) -> None:
        """Count a file or directory that cannot be searched."""
        self.skipped += 1

    def result(self) -> GrepResult:
        """The matches so far, as a result."""
        return GrepResult(matches=self.matches, truncated=self.truncated, skipped=self.skipped)


def _find_required(request: GrepRequest) -> bytes:
    """The longest text that every match of a regular expression contains, if case counts; empty if none is known."""
    if not request.regex or request.ignore_case:
        return b""
    from deepfs.search.literals import folds_case, required_text  # Late: its expressions take long to compile.

    if folds_case(request):
        return b""
    return max((texts[0] for texts in required_text(request) if len(texts) == 1), key=len, default="").encode()


def glob_result(matches: list[FileInfo], *, is_late: bool = False) -> GlobResult:
    """The result of a glob, cut at its limits; `is_late` if the search ended at its deadline."""
    limit = min(MAX_GLOB_MATCHES, _count_fitting(matches))
    is_cut = is_late or len(matches) > limit
    return GlobResult(matches=matches[:limit], truncated=is_cut, truncation_reason="budget" if is_cut else None)


def _count_fitting(matches: list[FileInfo]) -> int:
    """How many of the matches have paths of `MAX_GLOB_CHARS` at most."""
    if len(matches) * MAX_PATH_BYTES <= MAX_GLOB_CHARS:
        return len(matches)
    room = MAX_GLOB_CHARS
    for count, info in enumerate(matches):
        room -= len(info.path)
        if room < 0:
            return count
    return len(matches)
