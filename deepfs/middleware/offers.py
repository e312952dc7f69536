"""Which tools make sense over a backend, and what a model has to know about its commands."""

from collections.abc import Iterator

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.text import paths
from deepfs.text.visible import one_line, shown_path

__all__ = ["about_commands", "not_offered", "offers_move"]


def not_offered(backend: BackendProtocol) -> set[str]:
    """The tools that a model cannot use over the backend, known without a call."""
    changes = _offers_changes(backend)
    offered = {
        "write_file": changes,
        "edit_file": changes,
        "delete": changes and backend.capabilities.deletes,
        "move": changes and offers_move(backend),
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


def about_commands(backend: BackendProtocol) -> str:
    """Where commands start, and what they do not see, as a part of the description of `execute`."""
    mount, unseen = "/", ""
    while not isinstance(backend, SandboxBackendProtocol):
        if isinstance(backend, CompositeBackend):
            mount, unseen = _mount_of_commands(backend)
            backend = backend.executor
        elif (inner := next(_inner(backend), None)) is not None:
            backend = inner
        else:
            return ""
    place = backend.working_directory
    if place is None:
        return unseen
    if place == "/":
        at = paths.join(mount, "a/b") if mount != "/" else "/a/b"
        return (
            f" Commands start in the directory that the file tools call `{mount}`: its `{at}` is `a/b` there.{unseen}"
        )
    return f" Commands start in {shown_path(place)}.{unseen}"


def _mount_of_commands(composite: CompositeBackend) -> tuple[str, str]:
    """The path under which a composite has the files of its commands, and a sentence about the other files."""
    mount = next((route for route, each in composite.routes.items() if each is composite.executor), "/")
    others = [one_line(route, 60) for route in composite.routes if route != mount]
    if mount != "/":
        return paths.normalize(mount), f" They see no files outside of `{mount}`."
    return mount, f" They do not see {', '.join(f'`{route}`' for route in others)}." if others else ""
