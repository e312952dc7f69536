"""Where the files of a backend lie in its storage: in a fixed place, or in one that a factory chooses by the caller."""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote

from deepfs.errors import BackendError, DeepFSError
from deepfs.text import paths

if TYPE_CHECKING:
    from langgraph.runtime import Runtime

T = TypeVar("T")
BackendT = TypeVar("BackendT")

Namespace: TypeAlias = tuple[str, ...]
NamespaceFactory: TypeAlias = Callable[["Runtime[Any]"], str | Sequence[str]]

MOST_PLACES: Final = 1_000
"""How many places of callers a backend keeps something for, the latest ones."""

_PLAIN: Final = "@+:"
"""What a stored name holds beside letters, digits and `-_.~`; all else is escaped as in a URL."""

_DOT: Final = "!"
"""Replaces a dot, which stores refuse in a label. No component contains it, so different names stay different."""


# --- fixed or chosen -------------------------------------------------------------------------------------------------


class Choice(Generic[T]):
    """What a factory decides by the caller, anew at each operation.

    Args:
        name: The argument that the factory was given as.
        factory: Gets the runtime of the running node, or None outside of a graph.
        check: Returns what the backend uses of an answer, and raises if the answer cannot be used.
        label: Returns what people see of it; None is the names with slashes between them.
        is_place: Whether it is a place in a storage.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[Any], object],
        check: Callable[[Any], T],
        label: Callable[[T], str] | None = None,
        *,
        is_place: bool = True,
    ) -> None:
        import deepfs._langgraph.private  # noqa: F401  # Now, since importing LangGraph would block an event loop.

        self.name: str = name
        self.factory: Callable[[Any], object] = factory
        self.check: Callable[[Any], T] = check
        self.label: Callable[[T], str] = label or _join_place
        self.is_place: bool = is_place

    def __call__(self) -> T:
        """Return what holds for the caller. Raises BackendError if the factory fails or its answer cannot be used.

        Errors of `deepfs.errors` that the factory raises are passed on.
        """
        from deepfs._langgraph.private import acting_caller, current_context

        settled = acting_caller.get().places
        if self in settled:
            place: T = settled[self]
            return place
        runtime = current_context()
        try:
            answer = self.factory(runtime)
        except DeepFSError:
            raise
        except Exception as error:
            where = " (there is no LangGraph runtime here)" if runtime is None else ""
            raise self._failure(f"failed{where}", error) from error
        try:
            return self.check(answer)
        except Exception as error:
            raise self._failure("gave what cannot be used", error) from error

    def _failure(self, what: str, error: Exception) -> BackendError:
        return BackendError(None, f"The {self.name} factory {what}: {type(error).__name__}: {error}")


def fixed_or_chosen(
    name: str, given: object, check: Callable[[str, Any], T], check_answer: Callable[[str, Any], T] | None = None
) -> Callable[[], T]:
    """Return what has the place of each operation: a `Choice` if `given` is a factory, else one that is checked now.

    Args:
        name: The argument of the backend, which is passed to the checks for their errors.
        given: The argument.
        check: Returns the place that a value means.
        check_answer: The same for the answers of a factory; None is `check`.
    """
    if callable(given):
        return Choice(name, given, partial(check_answer or check, name))
    return partial(_same, check(name, given))


def current_thread() -> str | None:
    """Return the thread of the graph that calls; None outside of a graph, and if it is not known."""
    if "langgraph.runtime" not in sys.modules:  # Importing it takes a second, and without it no graph runs.
        return None
    from deepfs._langgraph import private

    return private.current_thread()


def choice_in(place: object) -> Choice[Any] | None:
    """Return the `Choice` that `fixed_or_chosen` returned; None where the place is fixed."""
    return place if isinstance(place, Choice) else None


def _same(value: T) -> T:
    return value


def _join_place(place: Any) -> str:
    """The names of a place with slashes between them, the same for a path as for a namespace."""
    if isinstance(place, tuple):
        return "/".join(place)
    return str(place).strip("/").replace("%7E", "~").replace("%3A", ":").replace("%2E", ".")  # `path_of_names` escapes.


# --- names -----------------------------------------------------------------------------------------------------------


def check_namespace(argument: str, given: object) -> Namespace:
    """Return a name, or several, as they are stored: `auth0|ada` is `auth0%7Cada`.

    Raises:
        TypeError: It is neither a text nor a sequence of texts.
        ValueError: A name is empty or holds what does not print, or there is none.
    """
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or isinstance(names, bytes | bytearray):
        raise TypeError(f"{argument} must be a name, a tuple of names or a factory of these, not {given!r:.100}")
    if not names:
        raise ValueError(f"{argument} needs a name")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be made of strings, not of {name!r:.100}")
        if not name or not name.isprintable():
            raise ValueError(f"{argument} has the name {name!r}: a name is one printable character or more")
    return tuple(quote(name, safe=_PLAIN) for name in names)


def join_names(argument: str, given: object) -> str:
    """`check_namespace`, with slashes between the names, which no name holds."""
    return "/".join(check_namespace(argument, given))


def namespace_beneath(backend: BackendT, name: str) -> BackendT:
    """The same backend, with the same connections, in the namespace with one more name."""
    beneath: Any = copy(backend)
    beneath._namespace = partial(_same, f"{beneath._namespace()}/{join_names('namespace', name)}")
    return cast("BackendT", beneath)


def encode_namespace(namespace: Namespace) -> Namespace:
    """The labels under which a store keeps `namespace`, with dots replaced."""
    return tuple(component.replace(".", _DOT) for component in namespace)


def path_of_names(argument: str, given: object) -> str:
    """Return the path of a directory below `/` for names, of which each is one segment whatever it holds.

    Raises:
        TypeError: It is no sequence of texts.
        ValueError: As `check_namespace`, and InvalidPathError for a name that is too long.
    """
    names = [name.replace("~", "%7E").replace(":", "%3A") for name in check_namespace(argument, given)]
    return paths.normalize("/" + "/".join(name if name.strip(".") else name.replace(".", "%2E") for name in names))


def check_prefix(argument: str, given: object) -> str:
    """Return the path of the directory that a text, a path itself, or a tuple of names stands for.

    Raises:
        TypeError: It is neither.
        ValueError: As `path_of_names`, and InvalidPathError for a text that is no path.
    """
    return paths.normalize(f"/{given}") if isinstance(given, str) else path_of_names(argument, given)


def check_chosen_prefix(argument: str, given: object) -> str:
    """`check_prefix` for the answer of a factory: no segment may be empty, since it may be a name that is missing."""
    if isinstance(given, str) and not {"", "."}.isdisjoint(given.removeprefix("/").split("/")):
        raise ValueError(f"{argument} {given!r:.100} has an empty segment")
    return check_prefix(argument, given)
