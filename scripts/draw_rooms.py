"""Draws the map of the packages: rooms as boxes, imports as lines, from the code itself.

`python scripts/draw_rooms.py` writes `docs/images/rooms-<package>.svg`. A box is a folder below the package, with what
its `__init__` says of it; a line leads from the room that imports down to the room that is imported, unless another
room already leads there.
"""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PRODUCT = ("dart_gym", "dart_agent", "dart_train")
PACKAGES = (*PRODUCT, "dart_lab")
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 224, 92, 22, 54, 24
STYLE = """
  svg { font-family: "DejaVu Sans", "Helvetica Neue", Arial, sans-serif; }
  .room { fill: #ffffff; stroke: #5c6bc0; stroke-width: 1.4; }
  .face { fill: #e8eaf6; stroke: #3949ab; stroke-width: 1.8; }
  .name { font-size: 15px; font-weight: bold; fill: #1a237e; }
  .says { font-size: 10.5px; fill: #37474f; }
  .arrow { fill: none; stroke: #90a4ae; stroke-width: 1.3; }
"""


def name_of(path: Path) -> str:
    """The dotted name of a file of a package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {
    name_of(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "assets" not in path.parts  # files that `init` writes for users
}


def targets_of(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            raise ValueError("a relative import hides where it leads: name the package")
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    found = []
    for name in names:
        while name and name not in MODULES and f"{name}.__init__" not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            found.append(name if name in MODULES else f"{name}.__init__")
    return found


def module_graph() -> dict[str, set[str]]:
    """For each module the modules that it imports, wherever the statement stands."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        graph[name] = {target for node in nodes for target in targets_of(node)} - {name}
    return graph


def room_of(module: str) -> str:
    """The room that a module counts to on the map: the first folder below its package ("" is the package itself)."""
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else ""


def imports(package: str) -> dict[str, set[str]]:
    """For each room of a package the rooms of the same package that it imports."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, targets in module_graph().items():
        if module.startswith(f"{package}."):
            inside = {room_of(target) for target in targets if target.startswith(f"{package}.")}
            rooms[room_of(module)] |= inside - {room_of(module), ""}
    return dict(rooms)


def ranks(graph: dict[str, set[str]]) -> dict[str, int]:
    """How far each room is from the bottom: the longest way down."""
    found: dict[str, int] = {}

    def rank(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((rank(target) for target in graph[room]), default=-1)
        return found[room]

    for room in graph:
        rank(room)
    return found


def direct(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that no longer way stands for."""

    def below(room: str) -> set[str]:
        return {further for target in graph[room] for further in {target, *below(target)}}

    return [
        (room, target)
        for room, targets in sorted(graph.items())
        for target in sorted(targets)
        if not any(target in below(other) for other in targets if other != target)
    ]


def purpose(package: str, room: str) -> str:
    """The first sentence of a room's docstring."""
    path = ROOT / package / room / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".").replace("`", "")


def places(graph: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Where the boxes stand: a row for each rank, ordered so that arrows cross little."""
    rows: dict[int, list[str]] = defaultdict(list)
    for room, rank in sorted(ranks(graph).items()):
        rows[rank].append(room)
    top, widest = max(rows), max(len(row) for row in rows.values())
    width = widest * (BOX_WIDTH + GAP_X) - GAP_X
    found: dict[str, tuple[float, float]] = {}
    for rank in range(top, -1, -1):
        users = {room: [found[user][0] for user, targets in graph.items() if room in targets] for room in rows[rank]}
        row = sorted(rows[rank], key=lambda room: (sum(users[room]) / len(users[room]) if users[room] else 0, room))
        start = MARGIN + (width - (len(row) * (BOX_WIDTH + GAP_X) - GAP_X)) / 2
        for index, room in enumerate(row):
            found[room] = (start + index * (BOX_WIDTH + GAP_X), MARGIN + (top - rank) * (BOX_HEIGHT + GAP_Y))
    return found


def draw(package: str) -> str:
    """The map of one package as SVG."""
    graph = imports(package)
    where = places(graph)
    width = max(x for x, _ in where.values()) + BOX_WIDTH + MARGIN
    height = max(y for _, y in where.values()) + BOX_HEIGHT + MARGIN
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">']
    out.append(f"<style>{STYLE}</style>")
    out.append(f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fafafa"/>')
    for room, target in direct(graph):
        (x1, y1), (x2, y2) = where[room], where[target]
        x1, x2, y1 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2, y1 + BOX_HEIGHT
        bend = (y2 - y1) / 2
        curve = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
        out.append(f'<path class="arrow" d="{curve}"/>')
    for room, (x, y) in sorted(where.items()):
        kind = "room" if room else "face"
        out.append(f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>')
        name = f"{room}/" if room else f"import {package}"
        out.append(f'<text class="name" x="{x + 12:.0f}" y="{y + 22:.0f}">{escape(name)}</text>')
        for index, line in enumerate(textwrap.wrap(purpose(package, room), 33, max_lines=4, placeholder=" ...")):
            out.append(f'<text class="says" x="{x + 12:.0f}" y="{y + 40 + 14 * index:.0f}">{escape(line)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name in PACKAGES:
        (ROOT / "docs" / "images" / f"rooms-{name.removeprefix('dart_')}.svg").write_text(draw(name), encoding="utf-8")
