"""The parameters of an operation as a class defines it, which may be those of deepagents or of an older protocol."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from deepfs.core.arguments import Argument, arguments_of, path_list, upload_list
from deepfs.errors import NotSupportedError
from deepfs.types import GrepResult

__all__ = ["Parameters", "limited"]

_SPELLINGS: Final = {"path": "file_path", "old": "old_string", "new": "new_string"}
"""Parameters that code written for deepagents names differently; either name is accepted, whichever a class uses."""

_BATCHES: Final[dict[str, tuple[str, Callable[[Any], list[Any]]]]] = {
    "upload_files": ("files", upload_list),
    "download_files": ("paths", path_list),
}
"""Operations on many items, with the name of the items, and what makes a list of them."""

_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_OPTIONS: Final = frozenset({"overwrite", "if_match", "regex", "ignore_case", "context_lines", "max_count", "timeout"})
"""What a method may lack; each is off where it is false, a text where it is None."""


class Parameters:
    """What a method takes, as the operation of this sync name."""

    def __init__(self, method: Callable[..., Any], operation: str) -> None:
        own = inspect.signature(method).parameters
        self._batch = _BATCHES.get(operation)
        known = arguments_of(operation)
        self._named = {**known, **{theirs: known[name] for name, theirs in _SPELLINGS.items()}}
        self._placed: list[Argument | None] = [
            self._named.get(name) for name, taken in own.items() if taken.kind in _PLACED
        ]
        pairs = [*_SPELLINGS.items(), *((new, old) for old, new in _SPELLINGS.items())]
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
        self._name = method.__qualname__
        self._respelled = {other: name for name, other in pairs if name in own and other not in own}
        self._lacking = frozenset() if takes_all else _OPTIONS - own.keys()

    def checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any] | None]:
        """The arguments, and the items of a batch, which have become a list; TypeError for what none can be."""
        for taken, given in zip(self._placed, args, strict=False):
            if taken is not None:
                taken.look(given)
        for name, given in kwargs.items():
            if name in self._named:
                self._named[name].look(given)
        return (args, kwargs, None) if self._batch is None else self._listed(*self._batch, args, kwargs)

    def _listed(
        self, name: str, listed: Callable[[Any], list[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Any] | None]:
        if name in kwargs:
            kwargs = {**kwargs, name: listed(kwargs[name])}
            return args, kwargs, kwargs[name]
        if len(args) < 2:
            return args, kwargs, None
        items = listed(args[1])
        return (args[0], items, *args[2:]), kwargs, items

    def fitted(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The keyword arguments as the method takes them, and the `max_count` that its caller has to see to.

        Raises NotSupportedError for another option that it lacks.
        """
        if not kwargs:
            return kwargs, None
        lacking = {name: kwargs[name] for name in self._lacking & kwargs.keys()}
        limit = lacking.pop("max_count", None)
        for name in (name for name, value in lacking.items() if value or value == ""):
            raise NotSupportedError(f"Error: {self._name} has no parameter {name!r}")
        return {self._respelled.get(name, name): kwargs[name] for name in kwargs if name not in self._lacking}, limit


def limited(result: Any, limit: int | None) -> Any:
    """`result`, with at most `limit` matches where it is one of a grep."""
    if limit is None or not isinstance(result, GrepResult) or len(result.matches or ()) <= max(limit, 0):
        return result
    return replace(result, matches=(result.matches or [])[: max(limit, 0)], truncated=True)
