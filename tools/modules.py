"""Parses the modules of the package: their imports, and the lengths of their functions and classes.

- Modules are the `*.py` files of the package without its `testing/`. All lines count, also comments and blank ones.
- Every import statement of a module counts, also in functions and under `TYPE_CHECKING`. `from a import b` imports the
  module `a.b` if there is one, else `a`. Names in strings, as in tables of lazy exports, are not imports.
- A body is a function's lines after its signature and docstring; a class is counted without docstrings.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = "deepfs"
APART: Final = {"testing"}
"""Subpackages that are not measured, because they are tests."""

# --- modules and their imports ---------------------------------------------------------------------------------------


@dataclass
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: set[str] = field(default_factory=set)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def modules_of(root: Path) -> dict[str, Module]:
    """The measured modules of the package by name, each with its imports of other measured modules."""
    found: dict[str, Module] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[1] not in APART:
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    for module in found.values():
        module.imports = {target for target in _imported(module, found) if target != module.name}
    return found


def _imported(module: Module, known: dict[str, Module]) -> Iterator[str]:
    """The modules that are imported when a module runs: those for type checkers alone are left out."""
    blocks = (node for node in ast.walk(module.tree) if isinstance(node, ast.If))
    for_types = {each for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for each in block.body}
    for node in ast.walk(module.tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            source = source_of(module, node)
            targets = (f"{source}.{alias.name}" for alias in node.names)
            yield from (name for target in targets if (name := target if target in known else source) in known)


def source_of(module: Module, node: ast.ImportFrom) -> str:
    """The full name of the module that an import statement imports from."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*above, *filter(None, [node.module])])


def importers(modules: dict[str, Module]) -> dict[str, list[str]]:
    return {name: [other.name for other in modules.values() if name in other.imports] for name in modules}


def circles(modules: dict[str, Module]) -> list[list[str]]:
    """The import cycles: groups of modules that import one another, directly or not, largest first (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in modules[name].imports:
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            start = stack.index(name)
            groups.append(stack[start:])
            del stack[start:]

    for name in modules:
        if name not in order:
            visit(name)
    return sorted((sorted(group) for group in groups if len(group) > 1), key=len, reverse=True)


# --- functions and classes -------------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def span(node: Function | ast.ClassDef | ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: Function | ast.ClassDef) -> int:
    return 0 if ast.get_docstring(node, clean=False) is None else span(node.body[0])


def body_lines(function: Function) -> int:
    """The lines of the body without its docstring."""
    body = function.body[1:] if _docstring_lines(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def class_lines(node: ast.ClassDef) -> int:
    """The lines of a class without the docstrings in it."""
    return span(node) - sum(_docstring_lines(each) for each in [*functions(node), *classes(node)])
