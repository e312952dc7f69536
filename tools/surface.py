"""Prints or compares the public surface of the package: importable names, signatures, and members of classes.

    python tools/surface.py DIR > old.json            the surface of a checkout, as JSON
    python tools/surface.py --compare OLD NEW         additions, removals and changes

OLD and NEW are checkouts; OLD may be such JSON instead. The exit code is 1 if something was removed or changed. The
package is imported: its dependencies must be installed.

The surface consists of the names in `__all__` of public modules (`docstrings.py` defines these), and of the names that
the README, the docs or the examples import from other modules. It does not matter where a name is defined, and each
import path of OLD is tried in NEW: a former path that can still be imported is not removed. A new optional parameter is
an addition; any other change of names, order, defaults or annotations is a change, and so is a base class that a class
lost.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args

from docstrings import is_public

PACKAGE: Final = "deepfs"
ALIASES: Final = {
    "AccessError": "PermissionDeniedError",
    "DirectoryError": "IsDirectoryError",
    "ExistsError": "AlreadyExistsError",
    "FileMissingError": "NotFoundError",
    "GuardedBackend": "HookedBackend",
}
"""Old names that are kept, with their new names: in an annotation, one may replace the other."""
WIDENED: Final = {"BackendProtocol": "Operations"}
"""Parameter types that may be replaced by one of their base classes, which accepts more."""

Described = dict[str, Any]
Surface = dict[str, dict[str, Described]]
"""The description of each name of each module; modules that cannot be imported are missing."""

# --- import paths ----------------------------------------------------------------------------------------------------


def public_paths(root: Path) -> set[str]:
    files = (path.relative_to(root).with_suffix("") for path in (root / PACKAGE).rglob("*.py"))
    return {*filter(is_public, (".".join(file.parts).removesuffix(".__init__") for file in files))}


def documented(root: Path) -> dict[str, set[str]]:
    """The names that the README, the docs and the examples import, by module."""
    texts = [*root.glob("README.md"), *root.glob("docs/**/*.md"), *root.glob("examples/*.py")]
    found: dict[str, set[str]] = {}
    for text in texts:
        for module, names in re.findall(rf"from ({PACKAGE}[\w.]*) import (\([^)]*\)|[\w, ]+)", text.read_text()):
            found.setdefault(module, set()).update(re.findall(r"\w+", re.sub(r" as \w+", "", names)))
    return found


# --- describing, in an interpreter that imports the checkout ----------------------------------------------------------


def surface(root: Path, asked: Surface) -> Surface:
    """The surface of a checkout, with the names of `asked`, another surface, that it still has."""
    command = [sys.executable, "-P", "-W", "ignore", __file__, "--describe", str(root)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)])}
    names = json.dumps({module: list(found) for module, found in asked.items()})
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, input=names, env=env)
    described: Surface = json.loads(ended.stdout)
    return described


def describe_modules(root: Path, asked: Mapping[str, Sequence[str]]) -> Surface:
    public, used = public_paths(root), documented(root)
    described = {
        path: _describe_module(path, {*asked.get(path, ()), *used.get(path, ())}, whole=path in public)
        for path in sorted({*public, *used, *asked})
    }
    return {path: found for path, found in described.items() if found is not None}


def _describe_module(path: str, asked: set[str], *, whole: bool) -> dict[str, Described] | None:
    try:
        module = import_module(path)
    except ImportError:
        return None
    names = sorted({*(getattr(module, "__all__", ()) if whole else ()), *asked})
    return {name: describe(getattr(module, name)) for name in names if hasattr(module, name)}


def describe(value: object) -> Described:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__mro__[1:] if not base.__name__.startswith("_")]
        return {"kind": "class", **_call(value), "bases": bases, "members": _members(value)}
    if inspect.isroutine(value):
        return {"kind": "async function" if _is_async(value) else "function", **_call(value)}
    if choices := get_args(value):
        return {"kind": "type", "members": {_annotation(each): {"kind": "choice"} for each in choices}}
    return {"kind": "value"}


def _members(of: type) -> dict[str, Described]:
    """The public members that classes of the package define; those that come from frameworks do not count."""
    ours = [base for base in of.__mro__ if base.__module__.partition(".")[0] == PACKAGE]
    names = {name for base in ours for name in vars(base) if not name.startswith("_")}
    return {name: _member(inspect.getattr_static(of, name)) for name in names}


def _member(value: object) -> Described:
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return describe(function) if inspect.isfunction(function) else {"kind": "attribute"}


def _is_async(value: object) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)


def _call(value: Any) -> Described:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return {}
    parameters = [_parameter(each) for each in signature.parameters.values()]
    return {"parameters": parameters, "returns": _annotation(signature.return_annotation)}


def _parameter(given: inspect.Parameter) -> dict[str, str | None]:
    default = None if given.default is given.empty else _without_address(repr(given.default))
    return {"name": given.name, "kind": given.kind.name, "default": default, "type": _annotation(given.annotation)}


def _annotation(given: object) -> str:
    """An annotation as text, without module names."""
    if given is inspect.Signature.empty:
        return ""
    text = given if isinstance(given, str) else _without_address(inspect.formatannotation(given))
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text).replace("'", "")


def _without_address(text: str) -> str:
    return re.sub(r" at 0x\w+", "", text)


# --- comparing -------------------------------------------------------------------------------------------------------


def removals(old: Surface, new: Surface) -> Iterator[str]:
    """Yield the removals and changes: what users of the old surface do not find in the new one."""
    for module, names in old.items():
        if module not in new:
            yield f"{module}: is gone"
        else:
            yield from _differences(module, {"kind": "", "members": names}, {"kind": "", "members": new[module]})


def additions(old: Surface, new: Surface) -> Iterator[str]:
    for module, names in new.items():
        if module not in old:
            yield module
        yield from (f"{module}.{name}" for name in names if name not in old.get(module, {}) and module in old)
        for name in names.keys() & old.get(module, {}).keys():
            before, after = old[module][name].get("members", {}), names[name].get("members", {})
            yield from (f"{module}.{name}.{member}" for member in after.keys() - before.keys())


def _differences(name: str, old: Described, new: Described) -> Iterator[str]:
    if old["kind"] != new["kind"]:
        yield f"{name}: was {old['kind']}, is {new['kind']}"
    for base in old.get("bases", ()):
        if not {base, _aliased(base)} & {*new.get("bases", ())}:
            yield f"{name}: is no {base} any more"
    for member, before in old.get("members", {}).items():
        if member not in new.get("members", {}):
            yield f"{name}.{member}: is gone"
        else:
            yield from _differences(f"{name}.{member}", before, new["members"][member])
    if "parameters" in old:
        yield from (f"{name}: {change}" for change in _changes_of_call(old, new))


def _changes_of_call(old: Described, new: Described) -> Iterator[str]:
    before = {each["name"]: each for each in old["parameters"]}
    after = {each["name"]: each for each in new.get("parameters", ())}
    for parameter, was in before.items():
        if parameter not in after:
            yield f"{parameter} is gone"
        else:
            yield from (f"{parameter}: {change}" for change in _changes_of_parameter(was, after[parameter]))
    for parameter, now in after.items():
        if parameter not in before and now["default"] is None and not now["kind"].startswith("VAR"):
            yield f"{parameter} is new and must be passed"
    if _places(before)[: len(_places(after))] != _places(after)[: len(_places(before))]:
        yield "parameters in another order"
    if _aliased(old["returns"]) != _aliased(new.get("returns", "")):
        yield f"returned {old['returns']}, returns {new.get('returns', '')}"


def _changes_of_parameter(was: Described, now: Described) -> Iterator[str]:
    if was["kind"] != now["kind"] and now["kind"] != "POSITIONAL_OR_KEYWORD":
        yield f"was {was['kind']}, is {now['kind']}"
    if was["default"] not in (None, now["default"]):
        yield f"default was {was['default']}, is {now['default'] or 'gone'}"
    if _aliased(now["type"]) not in (_aliased(was["type"]), WIDENED.get(was["type"])):
        yield f"was {was['type'] or 'untyped'}, is {now['type'] or 'untyped'}"


def _places(parameters: Mapping[str, Described]) -> list[str]:
    return [name for name, each in parameters.items() if each["kind"].startswith("POSITIONAL")]


def _aliased(annotation: str) -> str:
    return re.sub(r"\w+", lambda word: ALIASES.get(word[0], word[0]), annotation)


# --- the program -----------------------------------------------------------------------------------------------------


def _read(old: Path) -> Surface:
    if old.is_dir():
        return surface(old.resolve(), {})
    described: Surface = json.loads(old.read_text())
    return described


def compare(old: Surface, new: Surface) -> int:
    """Print the differences, and return the number of removals and changes."""
    added, gone = sorted(additions(old, new)), sorted(removals(old, new))
    print(f"{len(added)} additions:", *added, sep="\n  ")
    print(f"{len(gone)} removals and changes:", *gone, sep="\n  ")
    return len(gone)


def main() -> int:
    parser = argparse.ArgumentParser(description="The public surface of the package.")
    parser.add_argument("of", type=Path, nargs="?", metavar="DIR", help="print the surface of a checkout")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="print what differs")
    parser.add_argument("--describe", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compare:
        old = _read(given.compare[0])
        return 1 if compare(old, surface(given.compare[1].resolve(), old)) else 0
    if given.describe:
        print(json.dumps(describe_modules(given.describe, json.load(sys.stdin))))
    else:
        print(json.dumps(surface((given.of or Path()).resolve(), {}), indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
