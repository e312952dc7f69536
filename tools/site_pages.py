"""Hooks of MkDocs: adds the pages and plots outside of docs/ to the site, makes links lead to them, writes llms.txt.

The README is the home page.
"""

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""The pages outside of docs/, and their names on the site."""
PLOTS: Final = "benchmarks/results"

_URLS: Final[dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]

_link: Final = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from `project.urls`."""
    config.site_url = _URLS["Documentation"]
    # Not `repo_url`: the theme would have readers' browsers ask the host of the repository for its stars.
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": _URLS["Source"], "name": "Source"}]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and plots outside of docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for plot in sorted((ROOT / PLOTS).rglob("*.png")):
        files.append(File.generated(config, plot.relative_to(ROOT).as_posix(), abs_src_path=str(plot)))
    return files


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> Navigation:
    """Add llms.txt (llmstxt.org): the pages in the order of the navigation, each with its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in nav.items:
        lines += ["", f"## {section.title}", ""]
        lines += [f"- [{page.title}]({page.canonical_url}): {_first_sentence(page)}" for page in _pages_of(section)]
    files.append(File.generated(config, "llms.txt", content="\n".join(lines) + "\n"))
    return nav


def _pages_of(item: Section | Page | Any) -> Iterator[Page]:
    if isinstance(item, Page):
        yield item
    for child in item.children or ():
        yield from _pages_of(child)


def _first_sentence(page: Page) -> str:
    text = re.sub(r"^```.*?^```$", "", Path(page.file.abs_src_path or "").read_text("utf-8"), flags=re.M | re.S)
    paragraph = next(part for part in text.split("\n\n")[1:] if re.match(r"\n*[\w`]", part))
    sentence = re.split(r"(?<=\.)\s", " ".join(paragraph.split()))[0]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages of the site."""
    name = page.file.src_uri
    source = next((each for each, known in PAGES.items() if known == name), f"docs/{name}")
    return _linked(markdown, source, name, files)


def _linked(text: str, source: str, name: str, files: Files) -> str:
    """`text`, written in the file `source` of the project, with the links of the page `name` of the site."""

    def target(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        known = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(known):
            return f"]({posixpath.relpath(known, posixpath.dirname(name) or '.')}{found[2] or ''})"
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: a link to {found[1]}, which does not exist")
        return f"]({_URLS['Source']}/blob/main/{path}{found[2] or ''})"

    return _link.sub(target, text)
