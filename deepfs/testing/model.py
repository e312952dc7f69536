"""A filesystem as a dict: a simple implementation of every operation, which shares no code with backends."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from deepfs.errors import ErrorCode

# --- paths, texts, globs ---

_BINARY_SUFFIX: Final = ".png"


def normal(path: str) -> str:
    """The normal form of `path`."""
    return "/" + "/".join(name for name in path.split("/") if name not in ("", "."))


def above(path: str) -> list[str]:
    """The directories above `path`, without the root."""
    names = path.split("/")[1:]
    return ["/" + "/".join(names[:count]) for count in range(1, len(names))]


def is_under(path: str, directory: str) -> bool:
    return path != directory and path.startswith(directory.rstrip("/") + "/")


def text_of(path: str, data: bytes) -> str | None:
    """The text of a file, or None if it is binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or path.endswith(_BINARY_SUFFIX) else text


def is_storable(text: str) -> bool:
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each with its line end, without a BOM."""
    lines = [f"{line}\n" for line in text.removeprefix("\ufeff").split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def bare(line: str) -> str:
    """A line without its line end."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def count_places(text: str, old: str) -> int:
    """The number of places where `old` occurs, including overlapping ones."""
    return sum(text.startswith(old, place) for place in range(len(text)))


def _name_fits(segment: str, name: str) -> bool:
    if not segment:
        return not name
    if segment[0] == "*":
        return any(_name_fits(segment[1:], name[start:]) for start in range(len(name) + 1))
    return bool(name) and segment[0] in ("?", name[0]) and _name_fits(segment[1:], name[1:])


def _path_fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        enters = bool(names) and not names[0].startswith(".") and _path_fits(segments, names[1:])
        rest = segments[1:] or ["*"]
        return enters or _path_fits(rest, names)
    if not names or (names[0].startswith(".") and not segments[0].startswith(".")):
        return False
    return _name_fits(segments[0], names[0]) and _path_fits(segments[1:], names[1:])


def glob_fits(pattern: str, relative: str) -> bool:
    """Whether a pattern without sets and braces matches."""
    segments = pattern.strip("/").split("/") if "/" in pattern else ["**", pattern]
    return _path_fits(segments, relative.split("/"))


def parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def beside(lines: Sequence[str], hit: int, count: int) -> tuple[list[str], list[str]]:
    """The `count` lines before and after a line."""
    return list(lines[max(hit - count, 0) : hit]), list(lines[hit + 1 : hit + 1 + count])


# --- the model ---


class ModelRefusesError(Exception):
    """The operation fails; if there are several reasons, the backend may return any of these codes."""

    def __init__(self, codes: Iterable[str]) -> None:
        super().__init__(*codes)
        self.codes: frozenset[str] = frozenset(codes)


class Model:
    """The files by path.

    The paths of files imply the directories, except `mounts`, which always exist, and empty directories that a backend
    keeps: `empty` holds those that its listings showed.
    """

    def __init__(self, mounts: Iterable[str] = ()) -> None:
        self.files: dict[str, bytes] = {}
        self.mounts: frozenset[str] = frozenset(mounts)
        self.empty: frozenset[str] = frozenset()

    # --- the tree ---

    def implied_directories(self) -> set[str]:
        """The directories that must exist, including the root."""
        return {"/", *self.mounts, *(up for path in (*self.files, *self.mounts) for up in above(path))}

    def directories(self) -> set[str]:
        """Every directory."""
        return {*self.implied_directories(), *self.empty}

    def _exists(self, path: str) -> bool:
        return path in self.files or path in self.directories()

    def _at_or_under(self, path: str) -> list[str]:
        return sorted(file for file in self.files if file == path or is_under(file, path))

    def _leads_to_mount(self, path: str) -> bool:
        return any(mount == path or is_under(mount, path) for mount in self.mounts)

    def _relative(self, file: str, directory: str) -> str:
        return file[len(directory.rstrip("/")) :].lstrip("/") if file != directory else ""

    def _no_file(self, path: str) -> Iterator[str]:
        """Yield the errors for which there is no file to read at `path`."""
        if path in self.directories():
            yield ErrorCode.IS_DIRECTORY
        elif path not in self.files:
            yield ErrorCode.FILE_NOT_FOUND

    def _no_place(self, path: str) -> Iterator[str]:
        """Yield the errors for which no file can be put at `path`."""
        if path in self.directories():
            yield ErrorCode.IS_DIRECTORY
        if any(up in self.files for up in above(path)):
            yield ErrorCode.NOT_A_DIRECTORY

    # --- reading ---

    def ls(self, path: str) -> list[tuple[str, bool, int | None]]:
        if path in self.files:
            raise ModelRefusesError([ErrorCode.NOT_A_DIRECTORY])
        if path not in self.directories():
            raise ModelRefusesError([ErrorCode.FILE_NOT_FOUND])
        shown: list[tuple[str, bool, int | None]] = [
            (file, False, len(data)) for file, data in self.files.items() if parent(file) == path
        ]
        shown += [(f"{up}/", True, None) for up in self.directories() if up != "/" and parent(up) == path]
        return sorted(shown)

    def read(self, path: str, offset: int, limit: int) -> tuple[Any, ...]:
        self._refuse(self._no_file(path))
        text = text_of(path, self.files[path])
        if text is None:
            return "base64", self.files[path]
        lines = lines_of(text)
        if not lines:
            return "utf-8", "", None, None, None
        if offset >= len(lines):
            raise ModelRefusesError([ErrorCode.INVALID_CONTENT])
        end = min(offset + limit, len(lines))
        return "utf-8", "".join(lines[offset:end]), offset + 1, end, None if end == len(lines) else end

    def read_raw(self, path: str) -> bytes:
        self._refuse(self._no_file(path))
        return self.files[path]

    def download_files(self, paths: Sequence[str]) -> list[tuple[bytes | None, frozenset[str] | None]]:
        return [(self.files.get(path), frozenset(self._no_file(path)) or None) for path in paths]

    def glob(self, pattern: str, path: str) -> list[str]:
        if ".." in pattern:
            raise ModelRefusesError([ErrorCode.INVALID_PATTERN])
        if path in self.files:
            raise ModelRefusesError([ErrorCode.NOT_A_DIRECTORY])
        if not self._exists(path):
            raise ModelRefusesError([ErrorCode.FILE_NOT_FOUND])
        return [file for file in self._at_or_under(path) if glob_fits(pattern, self._relative(file, path))]

    def grep(
        self,
        pattern: str,
        path: str | None,
        glob: str | None,
        *,
        regex: bool,
        ignore_case: bool,
        context_lines: int,
        max_count: int | None,
    ) -> tuple[Any, ...]:
        root = path or "/"
        if not self._exists(root):
            raise ModelRefusesError([ErrorCode.FILE_NOT_FOUND])
        fits = re.compile(pattern if regex else re.escape(pattern), re.IGNORECASE if ignore_case else 0).search
        found, skipped = [], 0
        for file in (file for file in self._at_or_under(root) if self._is_searched(file, root, glob)):
            data = self.files[file]
            is_text = text_of(file, data) is not None
            lines = [bare(line) for line in lines_of(data.decode(errors="surrogateescape"))]
            hits = [number for number, line in enumerate(lines) if fits(line)]
            skipped += bool(hits) and not is_text
            found += [(file, hit + 1, lines[hit], *beside(lines, hit, context_lines)) for hit in hits if is_text]
        truncated = max_count is not None and len(found) > max_count
        return found[:max_count], truncated, None if truncated else skipped

    def _is_searched(self, file: str, root: str, glob: str | None) -> bool:
        relative = self._relative(file, root)
        if glob is not None:
            return glob_fits(glob, relative or file.rsplit("/", 1)[1])
        return not any(name.startswith(".") for name in relative.split("/"))

    # --- changing ---

    def _refuse(self, codes: Iterable[str]) -> None:
        if found := frozenset(codes):
            raise ModelRefusesError(found)

    def write(self, path: str, content: str, *, overwrite: bool, if_match: bool | None) -> str:
        codes = set(self._no_place(path))
        if not is_storable(content):
            codes.add(ErrorCode.INVALID_CONTENT)
        if if_match is not None:
            codes |= {ErrorCode.CONFLICT} if path not in self.files or not if_match else set()
        elif path in self.files and not overwrite:
            codes.add(ErrorCode.ALREADY_EXISTS)
        self._refuse(codes)
        self.files[path] = content.encode()
        return path

    def edit(self, path: str, old: str, new: str, replace_all: bool, *, if_match: bool | None) -> tuple[str, int]:
        codes = set(self._no_file(path))
        if if_match is False:
            codes.add(ErrorCode.CONFLICT)
        if not old or old == new or not is_storable(new):
            codes.add(ErrorCode.INVALID_CONTENT)
        if path not in self.files:
            raise ModelRefusesError(codes)
        text = text_of(path, self.files[path])
        if text is None:
            raise ModelRefusesError({*codes, ErrorCode.BINARY_FILE})
        if "\r\n" in text:
            old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        places = count_places(text, old) if old else 0
        if places == 0:
            codes.add(ErrorCode.NO_MATCH)
        elif places > 1 and not replace_all:
            codes.add(ErrorCode.AMBIGUOUS_MATCH)
        self._refuse(codes)
        self.files[path] = text.replace(old, new).encode()
        return path, text.count(old)

    def delete(self, path: str, *, if_match: bool | None) -> str:
        if path == "/" or self._leads_to_mount(path):
            raise ModelRefusesError([ErrorCode.PERMISSION_DENIED])
        if not self._exists(path):
            raise ModelRefusesError([ErrorCode.FILE_NOT_FOUND])
        if if_match is not None:
            self._refuse(self._no_file(path))
        if if_match is False:
            raise ModelRefusesError([ErrorCode.CONFLICT])
        self._remove(path)
        return path

    def _remove(self, path: str) -> None:
        for file in self._at_or_under(path):
            del self.files[file]
        self.empty = frozenset(up for up in self.empty if up != path and not is_under(up, path))

    def copy(self, src: str, dst: str, *, overwrite: bool) -> str:
        self._refuse(self._move_errors(src, dst, overwrite))
        self.files |= {dst + file[len(src) :]: self.files[file] for file in self._at_or_under(src)}
        return dst

    def move(self, src: str, dst: str, *, overwrite: bool) -> str:
        if src == "/" or self._leads_to_mount(src):
            raise ModelRefusesError({ErrorCode.PERMISSION_DENIED, *self._move_errors(src, dst, overwrite)})
        if src == dst and self._exists(src):
            return dst
        self._refuse(self._move_errors(src, dst, overwrite))
        moved = {dst + file[len(src) :]: self.files[file] for file in self._at_or_under(src)}
        self._remove(src)
        self.files |= moved
        return dst

    def _move_errors(self, src: str, dst: str, overwrite: bool) -> Iterator[str]:
        """Yield the errors for which `src` cannot be moved or copied to `dst`."""
        if not self._exists(src):
            yield ErrorCode.FILE_NOT_FOUND
        if is_under(dst, src):
            yield ErrorCode.INVALID_PATH
        if any(up in self.files for up in above(dst)):
            yield ErrorCode.NOT_A_DIRECTORY
        if dst in self.files and not overwrite:
            yield ErrorCode.ALREADY_EXISTS
        elif dst in self.files and src in self.directories():
            yield ErrorCode.NOT_A_DIRECTORY
        if dst in self.directories():
            yield ErrorCode.IS_DIRECTORY if overwrite else ErrorCode.ALREADY_EXISTS
            if self._leads_to_mount(dst):
                yield from (ErrorCode.IS_DIRECTORY, ErrorCode.ALREADY_EXISTS)

    def upload_files(self, files: Sequence[tuple[str, bytes]]) -> list[frozenset[str] | None]:
        outcomes: list[frozenset[str] | None] = []
        for path, data in files:
            codes = frozenset(self._no_place(path))
            if not codes:
                self.files[path] = data
            # Uploads have few error codes; for a path beneath a file, either of these two is right.
            beneath = {ErrorCode.INVALID_PATH} if ErrorCode.NOT_A_DIRECTORY in codes else set()
            outcomes.append(codes | beneath or None)
        return outcomes

    def change_files(self, files: Sequence[tuple[str, bytes | None, bool]]) -> list[frozenset[str] | None]:
        outcomes: list[frozenset[str] | None] = []
        for path, data, overwrite in files:
            codes = set(self._no_place(path) if data is not None else self._no_file(path))
            if data is None and (path == "/" or self._leads_to_mount(path)):
                codes.add(ErrorCode.PERMISSION_DENIED)
            if data is not None and path in self.files and not overwrite:
                codes.add(ErrorCode.ALREADY_EXISTS)
            if not codes and data is not None:
                self.files[path] = data
            elif not codes:
                self._remove(path)
            beneath = {ErrorCode.INVALID_PATH} if ErrorCode.NOT_A_DIRECTORY in codes else set()
            outcomes.append(frozenset(codes | beneath) or None)
        return outcomes
