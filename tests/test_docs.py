"""The documentation is true: its code runs and prints what it says, its commands, settings, links and files exist."""

import json
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import dart_agent.commands.agent_cli
import dart_gym.commands.gym_cli
import dart_train.commands.train_cli
from dart_gym.sessions.session import Session
from dart_train.config.run_config import RunConfig
from scripts import draw_concepts, notebooks
from tests.helpers.parameters import slow_but

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMANDS = {
    "dart-gym": typer.main.get_command(dart_gym.commands.gym_cli.app),
    "dart-agent": typer.main.get_command(dart_agent.commands.agent_cli.app),
    "dart-train": typer.main.get_command(dart_train.commands.train_cli.app),
}
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
REAL_DESKTOP = re.compile(r"(miniwob|dialogs)[/\"]|OSWorld-v0")
REAL_MODEL = re.compile(r"tiny_model|TransformersEngine|Trainer")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)")
SECTIONS = "model|cluster|agent|demonstrations|warmup|rollout|teacher|rewards|data|trainer|evaluation|controls"
SETTING = re.compile(rf"`((?:{SECTIONS})(?:\.\w+)+)`")
FILE = re.compile(r"`((?:dart_gym|dart_agent|dart_train|configs|examples|scripts|sql|docker)/[\w./-]+)`")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block of a page, and the line that it begins in."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{_name(self.page)}:{self.line}"


def _blocks(*languages: str) -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[1] in languages:
                yield Block(page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2])


def _marked(name: str, text: str, *values: object) -> object:
    marks = [pytest.mark.desktop] if REAL_DESKTOP.search(text) else []
    marks += [pytest.mark.train] if REAL_MODEL.search(text) else []
    return pytest.param(*values, id=name, marks=marks)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.usefixtures("one_private_cluster")
@pytest.mark.parametrize("block", [_marked(block.name, block.text, block) for block in _blocks("python")])
def test_code_runs_and_prints_what_it_says(block: Block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # what a page writes lies there; it reads task files of the repository
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")  # an error shows the page's line
    exec(code, module.__dict__)
    printed = capsys.readouterr().out
    for line in PRINTED.findall(block.text):
        assert line in printed, f"{block.name} should print {line!r}, but printed:\n{printed}"


@pytest.mark.thorough
@pytest.mark.desktop
@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in _blocks("json")])
async def test_tasks_can_be_solved(block: Block):
    async with Session() as session:
        task = json.loads(block.text)
        for seed in range(2):
            result = await session.reset(task, seed=seed)
            while result.terminal is None:
                result = await session.step(await session.oracle())
            assert result.evaluation is not None
            assert result.evaluation.score == 1.0, result.evaluation


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in _blocks("bash", "console")])
def test_commands_exist_with_their_options(block: Block):
    for words in map(lambda line: shlex.split(line, comments=True), block.text.replace("\\\n", " ").splitlines()):
        if words and words[0] in COMMANDS:
            for name in words[1].split("|"):
                _check_command(COMMANDS[words[0]], name, words[2:])


def _check_command(group: Any, name: str, arguments: list[str]) -> None:
    command = group.commands.get(name)
    assert command is not None, f"there is no {group.name} {name}; known: {', '.join(group.commands)}"
    if arguments and arguments[0] in getattr(command, "commands", {}):  # a group, such as `dart-gym tasks`
        _check_command(command, arguments[0], arguments[1:])
        return
    options = {option for parameter in command.params for option in parameter.opts}
    for word in arguments:
        assert not word.startswith("-") or word in options, f"{group.name} {name} has no {word}"


@pytest.mark.parametrize("page", [pytest.param(page, id=_name(page)) for page in PAGES])
def test_links_files_and_settings_exist(page: Path):
    text = page.read_text()
    for target, anchor in LINK.findall(text):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in _anchors(path), f"{page.name} links to {target}#{anchor}, which does not exist"
    for name in FILE.findall(text):
        assert (ROOT / name).exists(), f"{page.name} names {name}, which does not exist"
    for name in SETTING.findall(text):
        _check_setting(name)


@pytest.mark.parametrize("name", draw_concepts.DIAGRAMS)
def test_diagrams_are_those_of_their_source(name: str):
    kept = (draw_concepts.IMAGES / f"concept-{name}.svg").read_text(encoding="utf-8")
    assert kept == draw_concepts.draw(name), "run: python scripts/draw_concepts.py"
    assert f"images/concept-{name}.svg" in (ROOT / "docs/concepts" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [pytest.param(page, id=page.stem) for page in PAGES if "tutorials" in page.parts])
def test_tutorials_say_what_to_see_and_show_it(page: Path):
    text = page.read_text(encoding="utf-8")
    assert "should see" in text and "![" in text


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _check_setting(name: str) -> None:
    section, *fields = name.split(".")
    model: object = RunConfig.model_fields[section].annotation
    for field in fields:
        known = getattr(model, "model_fields", {})
        assert field in known, f"there is no setting {name}"
        model = known[field].annotation


def _run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'integrations/gymnasium'}"}
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=environment).stdout


IN_ONE_FILE = {"dart_in_one_file.py": 350, "ppo_in_one_file.py": 220}
"""Methods as a whole, longer than the others, and the most lines of each."""


@pytest.mark.process
def test_every_example_is_documented_and_short():
    pages = "".join(page.read_text() for page in PAGES)
    for path in sorted((ROOT / "examples").glob("*.py")):
        assert path.name in pages
        assert len(path.read_text().splitlines()) <= IN_ONE_FILE.get(path.name, 60)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.desktop
@pytest.mark.parametrize("task", slow_but(["miniwob/click-test"], ["fake/two-steps", "miniwob/click-test"]))
def test_random_agent(task):
    printed = _run_example("random_agent.py", task, "--episodes", "2")
    assert "seed 0: Click" in printed
    assert printed.count(" steps, score ") == 2


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.desktop
@pytest.mark.parametrize("task", slow_but(["miniwob/click-test"], ["fake/click-button", "miniwob/click-test"]))
def test_vector_send_recv(task):
    printed = _run_example("vector_send_recv.py", task, "--envs", "2", "--episodes", "6")
    assert re.match(r"[67] episodes in ", printed)  # both desktops may end the last one


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.desktop
@pytest.mark.parametrize("task", slow_but(["miniwob/click-test"], ["fake/click-button", "miniwob/click-test"]))
def test_own_policy(task):
    printed = _run_example("own_policy.py", task, "--episodes", "4")
    assert re.match(rf"{task}: [1-4] of 4 episodes", printed)


def _told(notebook: dict[str, Any]) -> list[list[str]]:
    """What the cells print and show, images by their kind; nothing of cells whose output varies."""
    told = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "varies" not in cell["metadata"].get("tags", ()):
            outputs = [output.get("text") or sorted(output["data"]) for output in cell["outputs"]]
            told.append(["".join(output) for output in outputs])
    return told


@pytest.mark.process
@pytest.mark.desktop
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",  # training takes minutes, and runs with the other long trainings
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem == "training")) for path in NOTEBOOKS],
)
def test_a_notebook_shows_what_its_cells_do(path: Path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert path.stat().st_size < 64_000 and path.stem in ROOT.joinpath("scripts/site_pages.py").read_text()
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert _told(notebooks.run(path)) == _told(kept)
    assert all(cell["outputs"] for cell in kept["cells"] if "varies" in cell["metadata"].get("tags", ()))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.train
def test_ppo_in_one_file_makes_updates_and_films(tmp_path):
    """That it learns is shown by tests/hubs/test_gymnasium_hub.py."""
    few = ("--total-steps", "128", "--num-envs", "2", "--num-steps", "32", "--test-episodes", "2")
    printed = _run_example("ppo_in_one_file.py", *few, "--video", str(tmp_path))
    assert re.search(r"^ +128 steps .* mean return of 400 episodes [01]\.\d\d$", printed, re.MULTILINE)
    assert printed.endswith("on 2 other screens\n") and list(tmp_path.glob("*.mp4"))
