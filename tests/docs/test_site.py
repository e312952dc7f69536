"""The site has every public name and page, links of the README work on the package index, and a release has a date."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

import mcp.client.stdio  # noqa: F401  # Subscripts `Popen` on import, which the guard of blocking calls replaces.

from deepfs import __version__

ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = sorted((ROOT / "docs/reference").glob("*.md"))
PACKAGES: Final = (
    "",
    ".backends",
    ".config",
    ".mcp",
    ".middleware",
    ".policy",
    ".sandboxes",
    ".testing",
    ".workspaces",
)
"""The packages whose names are described; `deepfs.errors` is described whole."""


def _described() -> list[str]:
    return [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def _object(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return import_module(name) if name == "deepfs.errors" else getattr(import_module(module), attribute)


def test_the_reference_describes_every_public_name_once() -> None:
    described = _described()
    assert sorted(set(described)) == sorted(described)
    known = [_object(name) for name in described]
    packages = [f"deepfs{name}" for name in PACKAGES]
    public = {f"{package}.{name}" for package in packages for name in import_module(package).__all__}
    assert [name for name in public if not any(_object(name) is each for each in known)] == ["deepfs.__version__"]


def test_every_page_is_in_the_navigation() -> None:
    pages = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert written - pages == set()


def test_the_readme_on_the_package_index_has_no_relative_links() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shown = (ROOT / "README.md").read_text()
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert [target for target in targets if not target.startswith("https://")] == []
    site, source = project["project"]["urls"]["Documentation"], project["project"]["urls"]["Source"]
    ours = [target for target in targets if "deepfs" in target]
    assert [target for target in ours if not target.startswith((site, f"{source}/"))] == []
    pages = {target.removeprefix(site).partition("#")[0].strip("/") for target in ours if target.startswith(site)}
    assert [page for page in pages - {""} if not (ROOT / "docs" / f"{page}.md").exists()] == []


def test_the_version_has_a_date_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert released is not None
    assert changelog.index("## [Unreleased]") < released.start()
