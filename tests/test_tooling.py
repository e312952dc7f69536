"""Rules for the project as a whole: its modules, imports and tools, and the commands given to newcomers."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from statistics import median
from typing import Final

import mcp.client.stdio  # noqa: F401  # Subscripts `Popen` on import, which the guard of blocking calls replaces.
import pytest

import deepfs

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = Path(next(iter(deepfs.__path__)))
SOURCES: Final = sorted(PACKAGE.rglob("*.py"))
HEAVY: Final = {"asyncpg", "deepagents", "langchain", "langchain_core", "langgraph", "mcp", "obstore", "rich", "typer"}

each_module = pytest.mark.parametrize("source", SOURCES, ids=[str(path.relative_to(PACKAGE)) for path in SOURCES])


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


WITHOUT_PUBLIC_NAMES: Final = re.compile(r"storage/|backends/(mounts\.py|\w+/(?!__init__))")
"""Modules that only other modules of deepfs import."""


class TestModules:
    @each_module
    def test_the_public_names_are_listed_once_and_exist(self, source: Path) -> None:
        """ruff checks their order."""
        if _misses_deepagents(source):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(module_name(source))
            return
        module = importlib.import_module(module_name(source))
        public = getattr(module, "__all__", None)
        if public is None:
            assert WITHOUT_PUBLIC_NAMES.match(source.relative_to(PACKAGE).as_posix())
            return
        assert len(public) == len(set(public))
        assert [name for name in public if not hasattr(module, name)] == []

    def test_each_directory_of_modules_is_a_package(self) -> None:
        directories = {source.parent for source in SOURCES}
        assert [directory for directory in directories if not (directory / "__init__.py").exists()] == []

    def test_only_one_module_imports_private_names_of_langgraph(self) -> None:
        touching = {
            source.name for source in SOURCES for name in imported_names(source) if re.match(r"langgraph\b.*\._", name)
        }
        assert touching <= {"private.py"}

    def test_the_package_ships_its_types(self) -> None:
        assert (PACKAGE / "py.typed").exists()


class TestImportingDeepfs:
    def test_importing_deepfs_loads_no_framework_and_no_extra(self) -> None:
        loaded = in_a_new_interpreter("import deepfs, sys; print(*sys.modules)").split()
        assert HEAVY.isdisjoint(loaded)

    def test_importing_deepfs_takes_less_than_150_ms_of_the_processor(self) -> None:
        timed = "from time import process_time as now; start = now(); import deepfs; print(now() - start)"
        assert median(float(in_a_new_interpreter(timed)) for _ in range(9)) < 0.150


class TestStructure:
    """`tools/structure.py` on small packages named deepfs: the tool measures the checkout that contains it."""

    def test_an_import_cycle_through_late_imports_is_found(self, tmp_path: Path) -> None:
        modules = {
            "one.py": "from deepfs import two\nif TYPE_CHECKING:\n    import deepfs.apart\n",
            "two.py": "def late():\n    from .three import name\n",
            "three.py": "from deepfs.one import name\n",
            "apart.py": "import deepfs.one\n",
        }
        figures = self.measure(checkout(tmp_path, modules))
        assert figures["modules in the largest circle of imports"] == "3"

    def test_modules_with_one_importer_are_counted_without_packages_and_tests(self, tmp_path: Path) -> None:
        modules = {
            "once.py": "",
            "twice.py": "",
            "room/__init__.py": "from deepfs import once, twice\n",
            "user.py": "from . import room, twice\n",
            "testing/__init__.py": "from deepfs import user\n",
        }
        assert self.measure(checkout(tmp_path, modules))["modules with one importer"] == "1"

    @pytest.mark.parametrize(
        ("doc", "arguments", "errors"),
        [
            ("Read.", "1", "1"),
            ("Read.\n\n        Args:\n            path: What to read.\n", "0", "1"),
            (
                "Read.\n\n        path: What to read.\n\n        Raises:\n            LookupError: Nothing is there.\n",
                "1",
                "0",
            ),
        ],
    )
    def test_docstrings_are_required_where_a_method_is_declared(
        self, doc: str, arguments: str, errors: str, tmp_path: Path
    ) -> None:
        modules = {
            "_base.py": f'''class Base:
    def read(self, path):
        """{doc}"""
        raise LookupError(path)
    def _put(self, path): raise LookupError
''',
            "disk/__init__.py": "__all__ = ['Inner']\nclass Inner:\n    def read(self, path): raise LookupError\n",
            "public.py": "from deepfs._base import Base\n__all__ = ['Own']\n"
            "class Own(Base):\n    def read(self, path): raise LookupError\n",
        }
        figures = self.measure(checkout(tmp_path, modules))
        assert figures["public methods"] == "1"
        assert figures["… with an argument not described"] == arguments
        assert figures["… whose errors are not named"] == errors

    def test_bodies_and_classes_are_counted_without_docstrings(self, tmp_path: Path) -> None:
        long = '    """One.' + "\n" * 40 + '    """\n'
        modules = {
            "documented.py": f"def short():\n{long}    return 1\n",
            "long.py": "def long():\n" + "    print()\n" * 41,
            "large.py": "class Large:\n" + "    x = 1\n" * 300 + f"class Documented:\n{long * 8}",
        }
        figures = self.measure(checkout(tmp_path, modules))
        assert figures["functions over 40 lines, with docstrings"] == "2"
        assert figures["bodies over 40 lines"] == "1"
        assert figures["classes over 300 lines"] == "1"

    def test_a_figure_beyond_its_limit_fails_and_lists_its_modules(self, tmp_path: Path) -> None:
        padding = "# a line\n" * 299
        modules = {"one.py": f"import deepfs.two\n{padding}", "two.py": padding, "three.py": padding}
        kept = structure(checkout(tmp_path / "kept", modules))
        assert (kept.returncode, kept.stderr) == (0, "")
        broken = structure(checkout(tmp_path / "broken", modules | {"two.py": f"import deepfs.one\n{padding}"}))
        assert broken.returncode == 1
        assert broken.stderr == "modules in the largest circle of imports: beyond the limit, ≤ 0\n"
        assert "deepfs.one deepfs.two" in broken.stdout
        assert structure(ROOT, "--of", str(tmp_path / "broken")).returncode == 0

    def measure(self, root: Path) -> dict[str, str]:
        measured = structure(ROOT, "--of", str(root))
        assert measured.stderr == ""
        rows = (re.split(r"  +", line) for line in measured.stdout.splitlines()[1:])
        return {row[0]: row[1] for row in rows if row[1:]}


def checkout(root: Path, modules: dict[str, str]) -> Path:
    """A package with these modules, and the tools that measure it."""
    for name, text in {"__init__.py": "def version():\n    return 1\n", **modules}.items():
        path = root / "deepfs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    copytree(ROOT / "tools", root / "tools")
    return root


def structure(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "utf8", str(root / "tools/structure.py"), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")


class TestSurface:
    """`tools/surface.py --compare` on small packages named deepfs."""

    OLD: Final = """
from typing import Literal
__all__ = ["Base", "Code", "Disk", "find"]
Code = Literal["missing", "denied"]
class Base:
    def close(self): pass
class Disk(Base):
    def __init__(self, root, *, size: int = 1): pass
    async def read(self, path: str, limit: int = 10) -> str: pass
def find(pattern, path="/"): pass
"""

    ADDED: Final = (
        ('"find"]', '"find", "more"]\nmore = 1'),
        ('path="/"', 'path="/", *, depth=None'),
        ("def close(self)", "def close(self, *, now=True)"),
        ('"find"]', "]"),
    )
    CHANGED: Final = (
        ("def find(", "def found(", "find: is gone"),
        (', "denied"', "", "Code.denied: is gone"),
        ("def close(", "def _close(", "Base.close: is gone", "Disk.close: is gone"),
        ("Disk(Base)", "Disk", "Disk: is no Base any more", "Disk.close: is gone"),
        ("async def read", "def read", "Disk.read: was async function, is function"),
        ("limit: int = 10", "limit: int = 9", "Disk.read: limit: default was 10, is 9"),
        ("path: str", "path: bytes", "Disk.read: path: was str, is bytes"),
        ("-> str", "-> bytes", "Disk.read: returned str, returns bytes"),
        ("size: int", "bytes: int", "Disk: size is gone"),
        ("root, *,", "root, user, *,", "Disk: user is new and must be passed"),
        ("pattern, path", "path, pattern", "find: parameters in another order", "find: path: default was '/', is gone"),
        ("path: str, limit", "path: str, *, limit", "Disk.read: limit: was POSITIONAL_OR_KEYWORD, is KEYWORD_ONLY"),
    )

    def test_additions_pass(self, tmp_path: Path) -> None:
        old, new = self.versions(self.ADDED)
        ended = self.compare(tmp_path, old, new)
        assert self.changes(ended) == []
        assert ended.returncode == 0
        assert "deepfs.case0.more" in ended.stdout

    def test_each_removal_and_change_is_reported(self, tmp_path: Path) -> None:
        old, new = self.versions(self.CHANGED)
        ended = self.compare(tmp_path, old, new)
        expected = [f"deepfs.case{number}.{each}" for number, case in enumerate(self.CHANGED) for each in case[2:]]
        assert [change for change in self.changes(ended) if change not in expected] == []
        assert [each for each in expected if each not in self.changes(ended)] == []
        assert ended.returncode == 1

    def test_a_moved_module_is_found_by_its_former_path(self, tmp_path: Path) -> None:
        old = {"kept.py": self.OLD, "made.py": self.OLD, "gone.py": self.OLD}
        new = {
            "room/files.py": self.OLD,
            "kept.py": "from deepfs.room.files import Base, Code, Disk, find\n",
            "__init__.py": "import sys\nfrom deepfs.room import files\nsys.modules['deepfs.made'] = files\n",
        }
        assert self.changes(self.compare(tmp_path, old, new)) == ["deepfs.gone: is gone"]

    def versions(self, cases: Sequence[Sequence[str]]) -> tuple[dict[str, str], dict[str, str]]:
        """Each case as a module, before and after the change."""
        new = {f"case{number}.py": self.OLD.replace(*case[:2]) for number, case in enumerate(cases)}
        assert self.OLD not in new.values()
        return dict.fromkeys(new, self.OLD), new

    def compare(self, root: Path, old: dict[str, str], new: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools/surface.py"), "--compare"]
        roots = [str(checkout(root / "old", old)), str(checkout(root / "new", new))]
        return subprocess.run([*command, *roots], check=False, capture_output=True, text=True)

    def changes(self, ended: subprocess.CompletedProcess[str]) -> list[str]:
        assert ended.stderr == ""
        return [line.strip() for line in ended.stdout.partition("removals and changes:\n")[2].splitlines()]


class TestNewcomersCommands:
    def test_the_readme_opens_with_the_demo_and_the_tests(self) -> None:
        demo, tests = self.commands()[:2]
        assert demo.endswith("nox -s demo")
        assert tests.endswith("nox -s tests")

    def test_ci_runs_the_tests_by_the_same_command(self) -> None:
        assert self.commands()[1] in (ROOT / ".ci/run").read_text().splitlines()

    def commands(self) -> list[str]:
        return re.findall(r"^```console\n(.+)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
