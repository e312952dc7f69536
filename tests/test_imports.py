"""Importing a part of deepfs loads no framework and no driver before they are used."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import deepfs
from support.scripts import run_script

# The dependencies of deepfs, and their own dependencies.
LIGHT: Final = {"anyio", "deepfs", "idna", "msgspec", "sniffio", "typing_extensions"}


def loaded_by(statement: str) -> set[str]:
    """The packages outside the standard library that a statement loads in a new interpreter."""
    printed = run_script(f"""
        import json, sys
        before = set(sys.modules)
        {statement}
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(json.dumps(sorted(loaded - sys.stdlib_module_names)))
    """)
    return set(json.loads(printed))


def test_importing_deepfs_loads_nothing_else() -> None:
    assert loaded_by("import deepfs, deepfs.backends") == {"deepfs"}


def test_using_backends_loads_no_framework_and_no_driver(tmp_path: object) -> None:
    used = f"""from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, PermissionedBackend, run_sync
        from deepfs.policy import WrapperBackend
        files = PermissionedBackend(WrapperBackend(MemoryBackend()))
        backend = CompositeBackend(files, {{"/d/": FilesystemBackend({str(tmp_path)!r})}})
        assert backend.write("/d/a.txt", "one").ok and run_sync(backend.agrep, "one").matches"""
    assert loaded_by(used) <= LIGHT


def test_commands_on_files_load_no_framework(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    (tmp_path / "of.patch").write_text("--- a\n+++ b\n@@ -1 +1 @@\n-1\n+2\n")
    for words in (["ls", "-l"], ["diff", ".", "."], ["patch", "of.patch"], ["cp", "a", "c"]):
        used = f"""import contextlib, io, os
        from deepfs.cli.app import app
        os.chdir({str(tmp_path)!r})
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app({words})"""
        assert not loaded_by(used) & {"langchain_core", "langgraph", "pydantic", "rich"}, words
    assert (tmp_path / "a").read_text() == "2\n"


def test_a_part_whose_dependency_is_missing_says_so() -> None:
    printed = run_script("""
        import sys
        sys.modules["mcp"] = None
        import deepfs
        try:
            deepfs.mcp
        except ImportError as error:
            print(error)
    """)
    assert printed == "deepfs.mcp needs the MCP SDK: pip install 'deepfs[mcp]'\n"


PACKAGES: Final = [deepfs, deepfs.backends, deepfs.middleware, deepfs.sandboxes, deepfs.testing]


def test_a_star_import_has_all_names_and_no_modules() -> None:
    for package in PACKAGES:
        namespace: dict[str, Any] = {}
        exec(f"from {package.__name__} import *", namespace)
        assert set(package.__all__) == namespace.keys() - {"__builtins__"}
        assert [name for name, value in namespace.items() if isinstance(value, ModuleType)] == []
