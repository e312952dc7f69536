"""The names of a package, each imported when it is first used (PEP 562).

The stub of the package, `__init__.pyi`, is the one list of these names: type checkers read it, and so does this module.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module

__all__ = ["lazy_exports"]


def lazy_exports(package: str, *own: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package, for the names that its stub imports, and for its submodules.

    Args:
        package: Its name.
        own: Names that the package itself defines; `__all__` has them and those of the stub, and no submodules.
    """
    namespace = vars(sys.modules[package])

    @cache
    def homes() -> dict[str, str]:
        """The modules that define the names of the stub, which is read when a name is first used."""
        stub = os.path.join(namespace["__path__"][0], "__init__.pyi")
        lines = namespace["__spec__"].loader.get_data(stub).decode().splitlines()
        imports = [line.split() for line in lines if line.startswith("from ")]  # from module import name as name
        return {words[3]: words[1] for words in imports if words[1] != package}

    def get(name: str) -> object:
        if name == "__all__":
            value: object = sorted({*homes(), *own})
        elif name in homes():
            value = getattr(import_module(homes()[name]), name)
        else:
            value = submodule(name)
        namespace[name] = value
        return value

    def submodule(name: str) -> object:
        try:
            if not name.startswith("_"):
                return import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*namespace, *homes(), "__all__"})
