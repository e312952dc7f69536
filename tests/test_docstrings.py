"""Public methods say in their docstrings what they take, and which errors they raise."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType
from typing import Final

PUBLIC: Final = ("deepfs", "deepfs.backends", "deepfs.graph", "deepfs.middleware", "deepfs.policy", "deepfs.sandboxes")


def public_methods() -> Iterator[tuple[str, FunctionType, str]]:
    """The methods and constructors of public classes where they are declared first, with their docstrings.

    Of classes that derive from one of a framework, only the constructor counts.
    """
    modules = [import_module(name) for name in PUBLIC]
    exported = [getattr(module, name) for module in modules for name in module.__all__]
    for public in {each for each in exported if inspect.isclass(each) and each.__module__.startswith("deepfs.")}:
        lineage = [each for each in public.__mro__ if each.__module__.startswith("deepfs.")]
        is_foreign = any(each.__module__.partition(".")[0] in ("langchain", "langgraph") for each in public.__mro__)
        declared = {name: (each, value) for each in lineage for name, value in vars(each).items()}
        declared["__init__"] = next(
            ((each, vars(each)["__init__"]) for each in lineage if "__init__" in vars(each)), (public, None)
        )
        for name, (owner, value) in declared.items():
            if not isinstance(value, FunctionType) or ((name.startswith("_") or is_foreign) and name != "__init__"):
                continue
            value = inspect.unwrap(value)
            if value.__name__ != name or value.__code__.co_filename != inspect.getfile(owner):
                continue  # Generated.
            docs = [value.__doc__ or "", *([owner.__doc__ or ""] if name == "__init__" else [])]
            yield f"{owner.__module__}.{value.__qualname__}", value, "\n".join(docs)


def test_arguments_and_errors_are_described() -> None:
    methods = {name: (function, doc) for name, function, doc in public_methods()}
    assert len(methods) > 130
    failing = []
    for name, (function, doc) in methods.items():
        parameters = [each for each in [*inspect.signature(function).parameters][1:] if not each.startswith("_")]
        described = doc.partition("Args:\n")[2]
        failing += [
            f"{name}: {each}"
            for each in parameters
            if not re.search(rf"^ *\*{{0,2}}{each}( \(.+\))?: ", described, re.M)
        ]
        if re.search(r"^ +raise \w", inspect.getsource(function), re.M) and not re.search(r"\b(Raises|Errors):", doc):
            failing.append(f"{name}: errors")
    assert sorted(failing) == []
