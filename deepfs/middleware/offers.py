"""Which tools make sense over a backend, and what a model has to know about its commands."""

from collections.abc import Iterator
from math import inf

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.text import paths
from deepfs.text.visible import one_line, shown_path

__all__ = ["about_commands", "longest_command", "not_offered", "offers_move"]


def not_offered(backend: BackendProtocol) -> set[str]:
    """The tools that a model cannot use over the backend, known without a call."""
    changes = _offers_changes(backend)
    offered = {
        "write_file": changes,
        "edit_file": changes,
        "delete": changes and backend.capabilities.deletes,
        "move": changes and offers_move(backend),
        "apply_patch": changes,
        "memory": changes,
        "execute": supports_execute(backend),
    }
    return {name for name, is_offered in offered.items() if not is_offered}


def _offers_changes(backend: BackendProtocol) -> bool:
    """Whether `backend` and, if it passes calls on, one of its inner backends take changes."""
    inner = list(_inner(backend))
    return backend.offers_changes and (not inner or any(map(_offers_changes, inner)))


def offers_move(backend: BackendProtocol) -> bool:
    """Whether `backend` and all its inner backends offer `move` to a model."""
    return backend.offers_move and all(map(offers_move, _inner(backend)))


def _inner(backend: BackendProtocol) -> Iterator[BackendProtocol]:
    return (each for each in backend.inner_backends() if isinstance(each, BackendProtocol))


def longest_command(backend: BackendProtocol) -> float:
    """The most seconds of a command; infinite if it is not known."""
    while not isinstance(backend, SandboxBackendProtocol):
        inner = backend.executor if isinstance(backend, CompositeBackend) else next(_inner(backend), None)
        if inner is None:
            return inf
        backend = inner
    return backend.command_timeout


def about_commands(backend: BackendProtocol) -> str:
    """Where commands start, and what they see of mounts, as a part of the description of `execute`."""
    mount, others = "/", ""
    is_plain = True
    while not isinstance(backend, SandboxBackendProtocol):
        if isinstance(backend, CompositeBackend):
            mount, others = _around_commands(backend, is_plain)
            backend = backend.executor
        elif (inner := next(_inner(backend), None)) is not None:
            backend, is_plain = inner, False
        else:
            return ""
    place = backend.working_directory
    if place is None:
        return others
    if place == "/":
        start = f"the directory that the file tools call `{mount}`: its `{paths.join(mount, 'a/b')}` is `a/b` there"
        return f" Commands start in {start}.{others}"
    return f" Commands start in {shown_path(place)}.{others}"


def _around_commands(composite: CompositeBackend, is_plain: bool) -> tuple[str, str]:
    """The path under which a composite has the files of its commands, and what these see of its other files.

    Where a layer may have rules, the directories of this machine are not named: commands would get around the rules.
    """
    executor = composite.executor
    mount = next((route for route, each in composite.routes.items() if each is executor), "/")
    if mount != "/":
        return paths.normalize(mount), f" They see no files outside of `{mount}`."
    on_host = is_plain and isinstance(executor, SandboxBackendProtocol) and executor.commands_on_host
    places = {
        route: getattr(each, "host_directory", None) if on_host else None for route, each in composite.routes.items()
    }
    reached = [f" `{one_line(route)}` is {shown_path(place)} for them." for route, place in places.items() if place]
    unseen = [f"`{one_line(route)}`" for route, place in places.items() if not place]
    return mount, "".join(reached) + (f" They do not see {', '.join(unseen)}." if unseen else "")
