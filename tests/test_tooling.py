"""Rules for the project as a whole: its modules, imports and tools, and the commands given to newcomers."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

import mcp.client.stdio  # noqa: F401  # Subscripts `Popen` on import, which the guard of blocking calls replaces.
import pytest

import deepfs

PACKAGE: Final = Path(next(iter(deepfs.__path__)))
SOURCES: Final = sorted(PACKAGE.rglob("*.py"))


def module_name(source: Path) -> str:
    return ".".join(("deepfs", *source.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imported_names(source: Path) -> Iterator[str]:
    """Each dotted name that a module imports, `from a import b` as `a.b`."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _misses_deepagents(source: Path) -> bool:
    """Whether a module needs deepagents and that is not installed: it requires later versions than deepfs does."""
    return find_spec("deepagents") is None and any(name.startswith("deepagents.") for name in imported_names(source))


def in_a_new_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


class TestModules:
    def test_the_public_names_are_listed_once_and_exist(self) -> None:
        """ruff checks their order."""
        for source in SOURCES:
            name = module_name(source)
            if _misses_deepagents(source):
                with pytest.raises(ModuleNotFoundError):
                    importlib.import_module(name)
                continue
            module = importlib.import_module(name)
            listed = getattr(module, "__all__", None if source.parent == PACKAGE else [])
            assert listed is not None, f"{name} is of the top, and lists its names"
            assert len(listed) == len(set(listed)), name
            assert [each for each in listed if not hasattr(module, each)] == [], name

    def test_each_directory_of_modules_is_a_package(self) -> None:
        directories = {source.parent for source in SOURCES}
        assert [directory for directory in directories if not (directory / "__init__.py").exists()] == []

    def test_only_one_module_imports_private_names_of_langgraph(self) -> None:
        touching = {
            source.name for source in SOURCES for name in imported_names(source) if re.match(r"langgraph\b.*\._", name)
        }
        assert touching <= {"private.py"}


class TestImportingDeepfs:
    @pytest.mark.stress
    def test_importing_deepfs_takes_less_than_150_ms_of_the_processor(self) -> None:
        timed = "from time import process_time as now; start = now(); import deepfs; print(now() - start)"
        assert median(float(in_a_new_interpreter(timed)) for _ in range(9)) < 0.150
