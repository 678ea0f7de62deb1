"""Pages of the documentation site that are made from other files, and its navigation; mkdocs calls the functions here.

The README is the start page. Notebooks are pages with the outputs that are kept in them. Every room of the packages is
a page of the reference: its public names, as documented in the code. A link to a file that is no page stays as text.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGES = ("dart_gym", "dart_agent", "dart_train")
START = {"README.md": "index.md"}
NOTEBOOKS = ("first_episode", "own_policy", "reading_trajectories", "training")
NOTEBOOK_PAGES = {f"examples/notebooks/{name}.ipynb": f"notebooks/{name}.md" for name in NOTEBOOKS}
PROJECT = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
NAVIGATION = {
    "Tutorials": [
        "first_episode",
        "own_task",
        "own_policy",
        "own_model",
        "with_pip",
        "first_training",
        "multiturn",
        "cluster",
    ],
    "Concepts": ["environment", "desktop", "modules", "group", "staleness"],
    "Guides": {
        "Environments": ["environments", "tasks", "osworld", "sites", "cluster", "docker", "hubs", "security"],
        "Agents": ["policies", "engines", "presets", "grounding", "open_data"],
        "Training": ["training", "one_node", "ray", "rollouts", "data", "curation", "teachers", "rewards", "plugins"],
    },
    "Reference": ["settings_that_matter", "configuration", "formats", "losses", "protocol", "failures", "glossary"],
    "Results": ["quickstart", "multiturn", "efficiency", "ablations", "performance", "capacity"],
    "Project": ["design", "testing"],
}
"""Pages by part of the site, in the order of reading; the folder is the part's name."""

FETCHED = re.compile(r"<(?:script|img|link(?! rel=.canonical))[^>]*(?:src|href)=.(?:https?:)?//[^>]*>|class=.mermaid")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Make the navigation. A page that is not named comes last in the part of its folder."""
    navigation: list[Any] = [{"Start": ["index.md", {"Notebooks": list(NOTEBOOK_PAGES.values())}]}]
    for part, named in NAVIGATION.items():
        groups = named if isinstance(named, dict) else {"": named}
        pages: list[Any] = [{group: _pages(part, names)} for group, names in groups.items() if group]
        pages += _pages(part, groups.get("", []))
        listed = {name for names in groups.values() for name in names}
        rest = {path.stem for path in (ROOT / "docs" / part.lower()).glob("*.md")} - listed
        pages += _pages(part, sorted(rest))
        if part == "Project":
            pages += [page for name, page in PROJECT.items() if (ROOT / name).exists()]
        if part == "Reference":
            pages += [{package: sorted(_reference(package))} for package in PACKAGES]
        navigation.append({part: pages})
    config["nav"] = navigation
    return config


def _pages(part: str, names: list[str]) -> list[str]:
    """The pages of a part of the site."""
    return [f"{part.lower()}/{name}.md" for name in names]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for name, page in {**START, **PROJECT}.items():
        if (ROOT / name).exists():
            files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for name in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{name}.md", content=_notebook(name)))
    for package in PACKAGES:
        for page, content in _reference(package).items():
            files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links lead to pages of the site."""
    source = {made: name for name, made in {**START, **PROJECT}.items()}.get(page.file.src_uri)
    folder = "" if source else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def led(match: re.Match[str]) -> str:
        picture, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        made = {**START, **PROJECT, **NOTEBOOK_PAGES}.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else None
        )
        if made is None or files.get_file_from_path(made) is None:
            return label
        return f"{picture}[{label}]({posixpath.relpath(made, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return LINK.sub(led, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would fetch something when it is read (diagrams of Mermaid do: draw them as SVG)."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch from elsewhere: {found[0]}")
    return output


def _notebook(name: str) -> str:
    """A notebook as a page: its cells, and below them what they printed and showed."""
    page = []
    for cell in json.loads((ROOT / "examples/notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        page.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                page.append(f'<img alt="{name}" src="data:image/png;base64,{data["image/png"]}">')
            else:
                page.append(f"```text\n{''.join(output.get('text') or data['text/plain'])}\n```")
    return "\n\n".join(page)


def _reference(package: str) -> dict[str, str]:
    """The pages of a package's rooms: path and content."""
    pages = {}
    for init in sorted((ROOT / package).rglob("__init__.py")):
        room = ".".join(init.parent.relative_to(ROOT).parts)
        modules = [path for path in sorted(init.parent.glob("[!_]*.py")) if _public(path)]
        exports = room == package and "__all__" in init.read_text(encoding="utf-8")
        if not modules and not exports:
            continue
        name = "index" if room == package else room.removeprefix(f"{package}.")
        content = f"---\ntitle: {room.removeprefix(package + '.')}\n---\n# `{room}`\n\n::: {room}\n    options:\n"
        content += "      show_root_heading: false\n      show_root_toc_entry: false\n      heading_level: 2\n"
        content += f"      members{'_order: __all__' if exports else ': false'}\n\n"
        for path in modules:
            content += f"## {path.stem}\n\n::: {room}.{path.stem}\n    options:\n      show_root_heading: false\n"
            content += "      show_root_toc_entry: false\n\n"
        pages[f"reference/{package}/{name}.md"] = content
    return pages


def _public(path: Path) -> bool:
    """Whether a module has a class or function that is documented for others."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and not node.name.startswith("_") and ast.get_docstring(node) for node in nodes)
