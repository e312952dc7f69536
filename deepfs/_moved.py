"""Import paths kept for compatibility: former modules of deepfs, and those that deepagents has.

A former module has no file. It is created when it is imported, and its attributes are loaded when they are first used.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, cast

__all__ = ["MOVED", "install"]

MOVED: Final[Mapping[str, Sequence[str]]] = {
    "deepfs.backends.adapted": ["deepfs.compat.adapters", "deepfs.compat.class_bodies"],
    "deepfs.backends.bubblewrap": ["deepfs.sandboxes.bubblewrap"],
    "deepfs.backends.context": ["deepfs.compat.factories"],
    "deepfs.backends.daytona": ["deepfs.sandboxes.daytona"],
    "deepfs.backends.deno": ["deepfs.sandboxes.deno"],
    "deepfs.backends.factories": ["deepfs.compat.factories"],
    "deepfs.backends.modal": ["deepfs.sandboxes.modal"],
    "deepfs.backends.sandbox": ["deepfs.sandboxes.base"],
    "deepfs.backends.utils": ["deepfs.compat.utils"],
    "deepfs.compat.v1": ["deepfs.backends.older_protocols", "deepfs.compat.adapters"],
    "deepfs.core": [],
    "deepfs.core.filedata": ["deepfs.text.records"],
    "deepfs.core.filemap": ["deepfs.text.flat_tree"],
    "deepfs.core.identity": ["deepfs.text.entries"],
    "deepfs.core.locks": ["deepfs.threads.locks"],
    "deepfs.core.paths": ["deepfs.text.paths"],
    "deepfs.core.patterns": ["deepfs.search.globs"],
    "deepfs.core.reading": ["deepfs.text.records"],
    "deepfs.core.replace": ["deepfs.text.edits"],
    "deepfs.core.scan": ["deepfs.search.query"],
    "deepfs.core.trees": ["deepfs.text.entries"],
    "deepfs.middleware.unanswered": ["deepfs.middleware.approvals"],
    "deepfs.policy.calls": ["deepfs.policy.hooks"],
    "deepfs.policy.wrapper": ["deepfs.backends.wrapper"],
    "deepfs.profiles.harness": ["deepfs.profiles"],
    "deepfs.profiles.harness.harness_profiles": ["deepfs.profiles"],
    "deepfs.profiles.provider": ["deepfs.profiles"],
    "deepfs.profiles.provider.provider_profiles": ["deepfs.profiles"],
}
"""The former modules, each with the modules that define its names."""


class _FormerModule(ModuleType):
    """A module whose attributes come from other modules, which are imported when an attribute is first used."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for home in MOVED[self.__name__]:
                if hasattr(module := import_module(home), name):
                    return getattr(module, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    @property
    def __all__(self) -> list[str]:
        return sorted({name for home in MOVED[self.__name__] for name in import_module(home).__all__})

    def __dir__(self) -> list[str]:
        return self.__all__


class _Finder:
    """Finds and loads former modules. It has no base class, since importing `importlib.abc` takes 12 ms."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in MOVED:
            return None
        return ModuleSpec(name, cast("Any", self), is_package=any(other.startswith(f"{name}.") for other in MOVED))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _FormerModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a former module has no code."""


def install() -> None:
    """Make former modules importable. The finder comes last, so modules that have a file are found first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
