"""Namespaces of a LangGraph store: their validation, and how a backend gets its own."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from deepfs.errors import BackendError, DeepFSError

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

__all__ = [
    "Namespace",
    "NamespaceFactory",
    "check_legacy_namespace",
    "check_namespace",
    "encode_namespace",
    "namespace_from",
    "namespace_given",
]

Namespace: TypeAlias = tuple[str, ...]
NamespaceFactory: TypeAlias = Callable[["Runtime[Any]"], Sequence[str]]

_PLAIN = "@+:"
"""What a stored name holds beside letters, digits and `-_.~`; all else is escaped as in a URL."""

_DOT = "!"
"""Replaces a dot, which stores refuse in a label. No component contains it, so different names stay different."""


def check_namespace(given: object) -> Namespace:
    """Return `given` as it is stored: `auth0|ada` is `auth0%7Cada`. Raises ValueError if it is no namespace."""
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(f"a namespace is a non-empty tuple of strings, not {given!r}")
    for component in given:
        if not isinstance(component, str) or not component or not component.isprintable():
            raise ValueError(
                f"namespace component {component!r} is refused: it must be a string of printable characters"
            )
    return tuple(quote(component, safe=_PLAIN) for component in given)


def check_legacy_namespace(given: object) -> Namespace:
    """Return `given`, made from the `assistant_id` of a run, which may be anything. Raises BackendError if invalid."""
    try:
        return check_namespace(given)
    except ValueError as error:
        raise BackendError(None, f"The assistant_id of this run names no files: {error}") from error


def encode_namespace(namespace: Namespace) -> Namespace:
    """The labels under which a store keeps `namespace`, with dots replaced."""
    return tuple(component.replace(".", _DOT) for component in namespace)


def namespace_from(factory: Callable[[Any], object], runtime: object) -> Namespace:
    """The namespace that `factory` returns for `runtime`. Raises BackendError if it fails or returns an invalid one."""
    try:
        return check_namespace(factory(runtime))
    except DeepFSError:
        raise
    except Exception as error:
        outside = " (there is no LangGraph runtime here)" if runtime is None else ""
        raise BackendError(None, f"The namespace factory failed{outside}: {type(error).__name__}: {error}") from error


def namespace_given(given: object) -> Callable[[], str]:
    """What names the namespace of each operation, with slashes between the names, which no name holds.

    Args:
        given: A name, a tuple of names, or a factory of either that gets the runtime.

    Raises:
        ValueError: A name is not valid.
    """
    if callable(given):
        from deepfs._langgraph.private import current_context  # Now: importing LangGraph would block an event loop.

        return partial(_namespace_now, given, current_context)
    return partial(str, "/".join(check_namespace(_names(given))))


def _namespace_now(factory: Callable[[Any], object], context: Callable[[], object]) -> str:
    return "/".join(namespace_from(lambda runtime: _names(factory(runtime)), context()))


def _names(given: object) -> object:
    return (given,) if isinstance(given, str) else given
