"""The structure of the package in figures, and the limits that `nox -s lint` holds them to.

`python tools/structure.py` prints the table and ends with 1 where a figure is over its limit; `--of DIR` measures
another checkout, without limits. Nothing of the package is imported, but for the modules that two operations pass,
which are counted by running these.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "deepfs"
APART = ("testing",)
"""Rooms that are measured apart, as they are tests."""

# --- modules and what they import ------------------------------------------------------------------------------------


@dataclass
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: set[str] = field(default_factory=set)


def modules_of(root: Path) -> dict[str, Module]:
    """The modules of the package by name, with what they import, late and for typing too."""
    found: dict[str, Module] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(name, path, ast.parse(text), text.count("\n"))
    for module in found.values():
        module.imports = {target for target in _imported(module, found) if target != module.name}
    return found


def _imported(module: Module, known: dict[str, Module]) -> Iterator[str]:
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                target = f"{base}.{alias.name}"
                if target in known:
                    yield target
                elif base in known:
                    yield base


def circles(modules: dict[str, Module]) -> list[list[str]]:
    """The groups of modules that import one another, directly or by others; Tarjan's algorithm."""
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


def body_lines(function: Function) -> int:
    """The lines of the body without its docstring."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
