"""Measures the structure of the package, and checks the limits that `nox -s lint` enforces.

    python tools/structure.py                  the table; exits with 1 if a figure is beyond its limit
    python tools/structure.py --of DIR         the figures of another checkout, without limits
    python tools/structure.py --compare DIR    that checkout and this one, side by side

The package is not imported, except with `--passes`, which counts the modules that two operations use: then the package
and its dependencies must be installed. `--show` lists what each figure counts.

`modules.py` defines how modules are counted, `docstrings.py` how methods are.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from docstrings import public_methods
from modules import Module, body_lines, circles, class_lines, classes, functions, importers, modules_of, span

ROOT: Final = Path(__file__).resolve().parents[1]

Range = tuple[float, float]
"""The smallest and the largest allowed value."""


@dataclass(frozen=True)
class Figure:
    """A measured figure. Its goal says where the package should go; only a `limit` fails the check."""

    name: str
    goal: Range | None = None
    limit: Range | None = None

    def allows(self, value: float) -> bool:
        return self.limit is None or self.limit[0] <= value <= self.limit[1]


FIGURES: Final = (
    Figure("modules"),
    Figure("lines"),
    Figure("modules per 1,000 lines", goal=(0, 4.5)),
    Figure("lines of the median file", goal=(180, 300)),
    Figure("lines of the median body", goal=(0, 5)),
    Figure("functions over 40 lines, with docstrings"),
    Figure("bodies over 40 lines"),
    Figure("classes over 300 lines"),
    Figure("modules with one importer", goal=(0, 20)),
    Figure("modules in the largest circle of imports", goal=(0, 0), limit=(0, 0)),
    Figure("public methods"),
    Figure("… with an argument not described", goal=(0, 0), limit=(0, 0)),
    Figure("… whose errors are not named", goal=(0, 0), limit=(0, 0)),
    Figure("modules that a disk grep passes", goal=(0, 12)),
    Figure("modules that a store edit passes", goal=(0, 12)),
)


@dataclass(frozen=True)
class Measure:
    value: float
    counted: Sequence[str] = ()


def _count(names: Iterable[str]) -> Measure:
    counted = sorted(names)
    return Measure(len(counted), counted)


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(root: Path) -> dict[str, Measure]:
    """The figures that follow from the source files alone, by name."""
    found = modules_of(root)
    return measure_modules(found) | measure_code(found) | measure_methods(found)


def measure_modules(found: dict[str, Module]) -> dict[str, Measure]:
    lines = sum(module.lines for module in found.values())
    alone = ((name, by) for name, by in importers(found).items() if len(by) == 1 and not found[name].is_package)
    groups = circles(found)
    return {
        "modules": _count(found),
        "lines": Measure(lines),
        "modules per 1,000 lines": Measure(round(1000 * len(found) / lines, 2)),
        "lines of the median file": Measure(median(module.lines for module in found.values())),
        "modules with one importer": _count(f"{name} by {by[0]}" for name, by in alone),
        "modules in the largest circle of imports": Measure(
            max(map(len, groups), default=0), [" ".join(group) for group in groups]
        ),
    }


def measure_code(found: dict[str, Module]) -> dict[str, Measure]:
    defined = [(f"{module.name}:{each.name}", each) for module in found.values() for each in functions(module.tree)]
    classed = [(f"{module.name}:{each.name}", each) for module in found.values() for each in classes(module.tree)]
    return {
        "lines of the median body": Measure(median(body_lines(each) for _, each in defined)),
        "functions over 40 lines, with docstrings": _count(name for name, each in defined if span(each) > 40),
        "bodies over 40 lines": _count(name for name, each in defined if body_lines(each) > 40),
        "classes over 300 lines": _count(name for name, each in classed if class_lines(each) > 300),
    }


def measure_methods(found: dict[str, Module]) -> dict[str, Measure]:
    methods = public_methods(found)
    return {
        "public methods": _count(each.name for each in methods),
        "… with an argument not described": _count(each.name for each in methods if not each.describes_arguments()),
        "… whose errors are not named": _count(each.name for each in methods if not each.names_errors()),
    }


def measure_passes(root: Path) -> dict[str, Measure]:
    """Run `passes.py` on the package in `root`, and count the modules that its operations use."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("passes.py"))]
    env = {**os.environ, "PYTHONPATH": str(root)}
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    return {f"modules that {name} passes": _count(passed) for name, passed in json.loads(printed).items()}


# --- the table -------------------------------------------------------------------------------------------------------


def limits_broken(measured: dict[str, Measure], figures: Sequence[Figure] = FIGURES) -> list[Figure]:
    known = (figure for figure in figures if figure.name in measured)
    return [figure for figure in known if not figure.allows(measured[figure.name].value)]


def table(measured: dict[str, dict[str, Measure]], *, with_limits: bool) -> str:
    """One row for each figure, one column for each of the measured trees."""
    lines = [["", *measured, *(["limit"] if with_limits else []), "goal"]]
    for figure in FIGURES:
        values = [f"{tree[figure.name].value:,g}" for tree in measured.values() if figure.name in tree]
        if values:
            limit = [_range(figure.limit)] if with_limits else []
            lines.append([figure.name, *values, *limit, _range(figure.goal)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _range(limit: Range | None) -> str:
    if limit is None:
        return ""
    low, high = limit
    return f"{low:g} to {high:g}" if low else f"≤ {high:g}"


def _items(measured: dict[str, Measure], figures: Iterable[Figure]) -> str:
    """The names of the items that were counted for these figures."""
    names = (figure.name for figure in figures if measured.get(figure.name, Measure(0)).counted)
    return "\n".join(f"\n{name}:\n  " + "\n  ".join(measured[name].counted) for name in names)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The structure of the package in figures.")
    parser.add_argument("--of", type=Path, metavar="DIR", help="measure another checkout, without limits")
    parser.add_argument("--compare", type=Path, metavar="DIR", help="measure another checkout beside this one")
    parser.add_argument("--passes", action="store_true", help="count the modules that operations pass, too")
    parser.add_argument("--show", action="store_true", help="name what each figure counts")
    given = parser.parse_args(arguments)
    roots = (
        {"now": given.of} if given.of else {"before": given.compare, "now": ROOT} if given.compare else {"now": ROOT}
    )
    measured = {title: measure(root) | (measure_passes(root) if given.passes else {}) for title, root in roots.items()}
    print(table(measured, with_limits=not given.of))
    broken = [] if given.of else limits_broken(measured["now"])
    print(_items(measured["now"], FIGURES if given.show else broken))
    for figure in broken:
        print(f"{figure.name}: beyond the limit, {_range(figure.limit)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
