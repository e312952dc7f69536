"""Representations that stay short, whatever the size of a value: for a debugger, a log line, a failed assertion."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

__all__ = ["address", "arguments", "brief", "format_attributes", "struct_repr"]

_MOST_CHARACTERS: Final = 200
"""The most characters of a text that are shown."""
_MOST_ITEMS: Final = 5
"""The most items of a collection that are shown."""
_MOST_OF_OTHERS: Final = 10_000
"""The most characters of the repr of any other object. The repr of a result that is cut in its parts is shorter."""
_MOST_LEVELS: Final = 6
"""The most collections inside each other that are shown."""

_BRACKETS: Final[dict[type, str]] = {dict: "{}", MappingProxyType: "{}", list: "[]", tuple: "()"}


def brief(value: object, levels: int = _MOST_LEVELS) -> str:
    """The repr of a value, with only the start of a long text or collection, and how much more there is.

    Only lists, tuples and dicts are looked into, up to so many `levels` of them inside each other.
    """
    if isinstance(value, str | bytes | bytearray) and not isinstance(value, Enum):
        return f"{value[:_MOST_CHARACTERS]!r}{_more(len(value) - _MOST_CHARACTERS)}"
    brackets = _BRACKETS.get(type(value))
    if brackets is not None:
        shown = ", ".join(_items(value, levels - 1)) if levels else "…"
        if isinstance(value, tuple) and len(value) == 1:
            shown += ","
        return f"{brackets[0]}{shown}{brackets[1]}"
    # A function shows its name: where it lies in memory tells nothing.
    shown = getattr(value, "__qualname__", None) or repr(value)
    return f"{shown[:_MOST_OF_OTHERS]}{_more(len(shown) - _MOST_OF_OTHERS)}"


def _items(value: Any, levels: int) -> Iterator[str]:
    for item in islice(value, _MOST_ITEMS):
        shown = brief(item, levels)
        yield shown if isinstance(value, list | tuple) else f"{shown}: {brief(value[item], levels)}"
    if len(value) > _MOST_ITEMS:
        yield _more(len(value) - _MOST_ITEMS)


def _more(count: int) -> str:
    return f"… {count:,} more" if count > 0 else ""


def arguments(*values: object, **named: object) -> str:
    """The arguments of a constructor, for a repr. Named ones that are None are left out."""
    shown = [brief(value) for value in values]
    return ", ".join([*shown, *(f"{name}={brief(value)}" for name, value in named.items() if value is not None)])


def format_attributes(owner: object, shown: Iterable[str]) -> str:
    """Attributes of an object as arguments, for a repr: `attribute`, `inner.attribute` or `option=attribute`.

    An option that is None is left out.
    """
    given = [(option, attrgetter(name)(owner)) for option, _, name in (each.rpartition("=") for each in shown)]
    values = [value for option, value in given if not option]
    return arguments(*values, **{option: value for option, value in given if option})


def struct_repr(struct: Struct) -> str:
    """The `__repr__` of a Struct: its fields that differ from their defaults, each cut if it is long."""
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    required = len(names) - len(defaults)
    shown = {
        name: value
        for number, name in enumerate(names)
        if (value := getattr(struct, name)) is not None
        and (number < required or value is not defaults[number - required])
    }
    return f"{type(struct).__name__}({arguments(**shown)})"


def address(url: str) -> str:
    """A URL without what may be secret: user, password, query and fragment.

    Of a URL with an `@` behind the host, only the scheme is shown: a password may have stood there unescaped.
    """
    scheme, _, rest = url.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    shown = "…" if "@" in rest[len(host) :] else host.rpartition("@")[2] + re.split("[?#]", rest[len(host) :])[0]
    return f"{scheme}://{shown}"
