"""The house of the tests: they lie as the rooms do, are short, and use what modules offer to everybody."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts import draw_rooms

TESTS = Path(__file__).parent
PACKAGES = [*draw_rooms.PACKAGES, "dart_lab"]
LONGEST = 600

NO_ROOMS = {
    "dart_gym/solved": "solutions and wrong solutions of OSWorld's tasks, beside a suite that plays both",
    "dart_gym/solved/files": "stand-ins for files of the hub",
    "dart_agent/grounding_data": "the package of that name in integrations",
    "dart_train/overnight": "parts of tests/dart_train/test_overnight.py",
}
"""Folders that hold no tests of a room of their package."""

ELSEWHERE = {
    "dart_agent/engines/test_vllm_engine.py": "a folder `vllm` on the path of imports would look like the package",
    "dart_agent/engines/test_vllm_environment.py": "as above",
    "dart_agent/engines/test_vllm_wire.py": "as above",
    "dart_agent/engines/test_server_images.py": "as above",
    "dart_agent/judging/test_judging.py": "judges of all kinds; `ended/judging` asks them",
    "dart_gym/envs/test_env.py": "DesktopEnv; Alembic's file is named env",
    "dart_train/data/store/test_data_states.py": "random orders of operations on the store",
    "dart_train/nodes/test_shared_directories.py": "needs the nodes",
    "dart_train/nodes/test_shared_states.py": "needs the nodes",
    "dart_train/report/test_report.py": "the whole room",
    "dart_train/rollout/play/test_demonstrate.py": "the player, which the process starts",
    "dart_train/trainer/test_teaching.py": "the loss of what teachers say",
    "dart_train/trainer/test_warmup.py": "the supervised trainer, which the process starts",
    "security/test_web_source.py": "an attack",
}
"""Tests with the name of a module whose room is another, and why."""

DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_exit", "_getframe"}

PRIVATE_NAMES = {
    "dart_agent/viewer/test_episode_tree.py": 1,  # an episode that cannot be read
    "dart_agent/engines/test_vllm_real.py": 1,  # a version is set back
    "dart_gym/cluster/server/test_openenv_environment.py": 2,  # OpenEnv: its connection
    "dart_gym/envs/test_prefetch.py": 1,  # a generator that has drawn already
    "dart_gym/stock_osworld_main.py": 3,  # OSWorld: it has no other way to a task
    "dart_train/preflight/test_preflight.py": 1,  # shutil: the type of its result
    "dart_train/trainer/memory/test_planned_memory.py": 1,  # torch: a storage that is known weakly
    "dart_train/trainer/attention/test_attention.py": 2,  # transformers: which kernel a model uses
    "dart_train/trainer/memory/test_chunked_head.py": 1,  # PyTorch: an operator
    "dart_train/trainer/test_trl_parity.py": 5,  # TRL: its trainer's parts
    "dart_train/trainer/weights/test_trainer_sharded.py": 1,  # PyTorch: FSDP's groups
    "helpers/counted_operations.py": 3,  # PyTorch: operators
    "helpers/vllm_options.py": 2,  # argparse: the options of a parser
    "hubs/seeing_oracle.py": 1,  # aiohttp: the port of a site
    "hubs/test_nemo_hub.py": 1,  # NeMo Gym: its client
    "hubs/test_trl_hub.py": 2,  # what TRL's environment saw last; public methods are tools of the model
    "security/test_hostile_evaluation.py": 1,  # the evaluator's process
    "security/test_hostile_machines.py": 1,  # the default of a time limit
}
"""Uses of private names of other modules, by file: a ratchet. Test through what is public, or make it public."""


def _files(pattern: str = "*.py") -> list[Path]:
    return sorted(TESTS.rglob(pattern))


def test_no_file_of_tests_is_too_long_to_survey():
    lengths = {path.relative_to(TESTS): len(path.read_text(encoding="utf-8").splitlines()) for path in _files()}
    assert not {path: length for path, length in lengths.items() if length > LONGEST}


def test_folders_of_tests_are_those_of_the_rooms():
    folders = {str(path.parent.relative_to(TESTS)) for package in PACKAGES for path in (TESTS / package).rglob("*.py")}
    unknown = {folder for folder in folders if not (TESTS.parent / folder).is_dir()}
    assert unknown == NO_ROOMS.keys()


def test_the_tests_of_a_module_lie_in_its_room():
    rooms: dict[str, str] = {}
    for package in PACKAGES:
        for path in (TESTS.parent / package).rglob("*.py"):
            rooms[path.stem] = str(path.parent.relative_to(TESTS.parent))
    found = {str(path.relative_to(TESTS)): rooms.get(path.stem.removeprefix("test_")) for path in _files("test_*.py")}
    elsewhere = {path for path, room in found.items() if room not in (None, str(Path(path).parent))}
    assert elsewhere == ELSEWHERE.keys()


def _private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def private_names(source: str) -> Iterator[str]:
    """The private names that a file uses and does not define: attributes, imports, and those that it replaces."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    selves = [node for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")]
    own |= {node.attr for node in selves}
    used: list[object] = [node.attr for node in attributes if node not in selves]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            used += [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("setattr", "getattr", "delattr")):
            values = [part.value for part in node.args[:2] if isinstance(part, ast.Constant)]
            used += [value.rpartition(".")[2] for value in values if isinstance(value, str)]
    yield from (str(name) for name in used if _private(name) and name not in own)


def test_private_names_of_other_modules_become_fewer():
    found = {str(path.relative_to(TESTS)): len(list(private_names(path.read_text("utf-8")))) for path in _files()}
    assert {path: count for path, count in found.items() if count} == PRIVATE_NAMES


def test_private_names_are_found_wherever_they_are_used():
    source = """
from somewhere import _helper, public
class Own:
    def __init__(self):
        self._mine = 1
def test(monkeypatch, thing, row):
    thing._hidden.call(Own()._mine, row._replace(a=1), thing.__dict__)
    monkeypatch.setattr("package.module._CONSTANT", 1)
    monkeypatch.setattr(thing, "_method", None)
"""
    assert Counter(private_names(source)) == Counter(["_helper", "_hidden", "_CONSTANT", "_method"])
