"""The house: rooms of a size that one can survey, imports that point one way, basenames that are nouns of their own.

A room is a folder. An import counts wherever it stands: at the top of a module, in a function, or for types only.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import draw_rooms

ROOT = Path(__file__).parents[1]
PACKAGES = draw_rooms.PACKAGES  # each may import those before it
LARGEST_ROOM = 16
LONGEST_MODULE = 600
LISTS = {"dart_agent.formats", "dart_agent.presets"}  # rooms that are lists of one kind
SPECIAL = {"__init__", "__main__"}
MODULES = draw_rooms.MODULES


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """What each module imports; reading them all takes seconds, which a worker without these tests is spared."""
    return draw_rooms.module_graph()


def _room(module: str) -> str:
    return module.rpartition(".")[0]


def _circle(imported: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_over_others(graph):
    assert not _circle(graph)


def test_no_room_imports_itself_over_others(graph):
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph.items():
        rooms[_room(module)] |= {_room(target) for target in targets} - {_room(module)}
    assert not _circle(rooms)


@pytest.mark.thorough
@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_of_a_package_has_no_circle(package: str):
    """Rooms with all that is below them, as they stand on the map in docs/project/design.md."""
    assert not _circle(draw_rooms.imports(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_pictures_of_the_map_are_up_to_date(package: str):
    picture = ROOT / "docs" / "images" / f"rooms-{package.removeprefix('dart_')}.svg"
    assert picture.read_text(encoding="utf-8") == draw_rooms.draw(package), "run: python scripts/draw_rooms.py"


def test_imports_point_from_the_face_to_the_parts(graph):
    back = [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if _room(module).startswith(_room(target) + ".")
    ]
    assert not back, "a part imports the room that it is a part of"


def test_packages_import_only_those_below(graph):
    for module, targets in graph.items():
        package = PACKAGES.index(module.split(".")[0])
        for target in targets:
            assert PACKAGES.index(target.split(".")[0]) <= package, f"{module} imports {target}"


def test_rooms_can_be_surveyed():
    sizes = Counter(_room(module) for module in MODULES if module.rpartition(".")[2] not in SPECIAL)
    heaps = {room: size for room, size in sizes.items() if size > LARGEST_ROOM and room not in LISTS}
    assert not heaps


def test_modules_can_be_surveyed():
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module: length for module, length in lengths.items() if length > LONGEST_MODULE}


def test_basenames_say_their_noun_without_the_folder():
    names = Counter(module.rpartition(".")[2] for module in MODULES if _room(module) not in LISTS)
    assert not {name for name, count in names.items() if count > 1} - SPECIAL


def _defined(tree: ast.Module) -> set[str]:
    """The names that a module defines or imports at its top level, in branches and for types only included."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


@pytest.mark.thorough
def test_what_is_imported_from_our_modules_is_there():
    """Imports inside of functions as well, in the packages and in whatever uses them: a moved name is found at once."""
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    known = {name: _defined(tree) for name, tree in trees.items()}
    users = [
        path for place in ("tests", "examples", "integrations", "scripts") for path in (ROOT / place).rglob("*.py")
    ]
    missing = []
    for path in [*MODULES.values(), *users]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in PACKAGES:
                continue
            module = node.module if node.module in MODULES else f"{node.module}.__init__"
            for alias in node.names:
                inside = {f"{node.module}.{alias.name}", f"{node.module}.{alias.name}.__init__"} & MODULES.keys()
                if not inside and alias.name not in known.get(module, ()):
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.module} has no {alias.name}")
    assert not missing


@pytest.mark.parametrize("room", sorted({_room(module) for module in MODULES}))
def test_every_room_says_what_lives_there(room: str):
    path = MODULES.get(f"{room}.__init__")
    assert path is not None, f"{room} has no __init__.py"
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_no_two_files_of_tests_share_a_name():
    """pytest imports them by it, and a part that collects all of them stops at the second one."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in names.items() if count > 1]


def test_no_expression_is_possessive_over_a_group():
    """CPython 3.11.0 to 3.11.4 finds no match for many `(...)*+`, Debian 12's is one: `(?>(...)*)` is right."""
    possessive = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\})\+")
    found = []
    for path in (file for name in (*PACKAGES, "integrations") for file in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and possessive.search(node.value):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:60]!r}")
    assert not found


def _statements() -> Iterator[tuple[str, Path, ast.stmt, ast.stmt | None]]:
    """Every statement of the packages with its place, its file and the statement after it."""
    for path in (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list) and body:
                    for statement, after in zip(body, [*body[1:], None], strict=True):
                        yield f"{path.relative_to(ROOT)}:{statement.lineno}", path, statement, after


@pytest.mark.thorough
def test_no_assignment_is_packed():
    """One line for each name, from three names on; values that one docstring describes may share a line."""
    found = []
    for place, _, statement, after in _statements():
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
            several = isinstance(statement.value, ast.Tuple) and len(statement.value.elts) > 2
            described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if several and not described and len(statement.targets) == 1:
                found.append(place)
    assert not found


@pytest.mark.thorough
def test_no_conditional_expression_is_nested():
    nested = [
        place
        for place, _, statement, _ in _statements()
        for node in ast.walk(statement)
        if isinstance(node, ast.IfExp) and any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse))
    ]
    assert not nested


def test_only_tables_are_formatted_by_hand():
    tables: dict[Path, set[int]] = defaultdict(set)
    for _, path, statement, _ in _statements():
        value = getattr(statement, "value", None)
        inner = value.args[0] if isinstance(value, ast.Call) and value.args else value
        if isinstance(inner, ast.Dict | ast.Tuple | ast.List | ast.Set) and statement.col_offset == 0:
            tables[path].add(statement.end_lineno or 0)
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if text.endswith("# fmt: skip") and line not in tables[path]
    ]
    assert not found
