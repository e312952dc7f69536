"""Finds the public methods of the package, and checks that their docstrings describe arguments and name errors.

- A public class is one that a public module lists in its `__all__`, wherever it is defined. A module is public if no
  part of its name begins with `_` and it is not in `INNER`.
- A public method is counted once, at the class of the package that declares it first: overrides repeat no docstring. A
  constructor counts for each class that has one; the docstring of the class may describe its arguments. Generated sync
  methods are not seen here. Of classes that derive from a class of a framework, only the constructor counts.
- A method's arguments are described if its `Args:` names each of them. Its errors must be named, under `Raises:` or
  `Errors:`, if it raises one itself or returns a result that can hold one.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from modules import Function, Module, source_of

INNER: Final = (
    *("cli", "core", "disk", "_langgraph", "process", "search", "text", "threads"),
    *("mcp.calls", "mcp.reference", "mcp.resources", "mcp.tools", "testing.conformance", "testing.model"),
    *(
        "backends.flat_plans",
        "backends.flat_requests",
        "backends.flat_searches",
        "sandboxes.answers",
        "sandboxes.loop_affinity",
        "sandboxes.responses",
    ),
    *("sandboxes.script", "sandboxes.wire"),
)
"""Subpackages and modules whose classes are not for users; only older checkouts have `core`."""
PLAIN: Final = {*vars(builtins), "ABC", "Generic", "NamedTuple", "Protocol", "StrEnum", "Struct", "TypedDict"}
"""Base classes from outside the package that do not count as a framework."""


# --- docstrings of public methods ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class:
    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return f"{self.module.name}.{self.node.name}"

    def methods(self) -> dict[str, Function]:
        return {each.name: each for each in self.node.body if isinstance(each, Function)}


class Names:
    """Looks up the classes that names in modules refer to, also through imports."""

    def __init__(self, modules: dict[str, Module]) -> None:
        self._modules = modules

    def exported(self) -> dict[str, Class]:
        """The public classes by the full name of their definition."""
        found = (
            self.find(module, name)
            for module in self._modules.values()
            if is_public(module.name)
            for name in _listed(module)
        )
        return {each.name: each for each in found if each is not None}

    def find(self, module: Module, name: str) -> Class | None:
        for node in _at_the_top(module.tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return Class(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    source = self._modules.get(source_of(module, node))
                    if (alias.asname or alias.name) == name and source not in (None, module):
                        return self.find(source, alias.name)
        return None

    def lineage(self, of: Class) -> list[Class]:
        """The class and its base classes in the package, nearest first."""
        found = (self.find(of.module, base) for base in _bases(of))
        return [of, *(each for base in found if base is not None for each in self.lineage(base))]

    def is_foreign(self, of: Class) -> bool:
        """Whether the class derives directly from a class of a framework."""
        return any(base not in PLAIN and self.find(of.module, base) is None for base in _bases(of))


def _bases(of: Class) -> list[str]:
    return [ast.unparse(base.value if isinstance(base, ast.Subscript) else base) for base in of.node.bases]


def is_public(module: str) -> bool:
    within = module.partition(".")[2]
    return "._" not in module and not any(f"{within}.".startswith(f"{inner}.") for inner in INNER)


def _listed(module: Module) -> list[str]:
    """The strings of `__all__`."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _is_assigned(node, "__all__"):
            constants = (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))
            return [each for each in constants if isinstance(each, str)]
    return []


def _is_assigned(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _at_the_top(node: ast.AST) -> Iterator[ast.AST]:
    """The statements outside functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.ClassDef):
            yield from _at_the_top(child)


@dataclass(frozen=True)
class Method:
    name: str
    node: Function
    doc: str

    def describes_arguments(self) -> bool:
        described = self.doc.partition("Args:\n")[2]
        return all(re.search(rf"^ *\*{{0,2}}{name}( \(.+\))?: ", described, re.M) for name in _parameters(self.node))

    def names_errors(self) -> bool:
        return not _can_fail(self.node) or re.search(r"\b(Raises|Errors):", self.doc) is not None


def public_methods(modules: dict[str, Module]) -> list[Method]:
    names = Names(modules)
    found: dict[str, Method] = {}
    for public in names.exported().values():
        for declaring, node in _declared(names, names.lineage(public)):
            docs = [ast.get_docstring(node) or ""]
            if node.name == "__init__":
                docs.append(ast.get_docstring(declaring.node) or "")
            name = f"{declaring.name}.{node.name}"
            found[name] = Method(name, node, "\n".join(docs))
    return list(found.values())


def _declared(names: Names, lineage: list[Class]) -> Iterator[tuple[Class, Function]]:
    """The public methods of a class, each with the class that declares it first, and its constructor."""
    first = {name: each for each in lineage for name in each.methods() if not name.startswith("_")}
    if not any(names.is_foreign(each) for each in lineage):
        yield from ((each, each.methods()[name]) for name, each in first.items())
    yield from [(each, each.methods()["__init__"]) for each in lineage if "__init__" in each.methods()][:1]


def _parameters(function: Function) -> list[str]:
    """The names of the parameters that a caller passes to a method."""
    args = function.args
    named = [each.arg for each in [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg] if each]
    is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    return [name for name in (named if is_static else named[1:]) if not name.startswith("_")]


def _can_fail(function: Function) -> bool:
    returned = ast.unparse(function.returns) if function.returns else ""
    raises = any(isinstance(node, ast.Raise) for node in _at_the_top(function))
    return raises or re.search(r"(Result|Response)\b", returned) is not None
