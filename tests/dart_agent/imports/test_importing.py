"""Data of others as recorded episodes: OSWorld's results, AgentNet, our own exports, and what is wrong with them."""

from __future__ import annotations

import io
import json
import re
import resource
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import RecordError, episode_directory, find_episodes, read_episode, read_image
from dart_agent.exports.chat_rows import export_chat, export_chat_inline
from dart_agent.exports.osworld_results import export_osworld
from dart_agent.imports.found_episodes import RefusedError, image_size
from dart_agent.imports.importers import ImportReport, import_episodes

WIDTH, HEIGHT = 200, 100


def png(value: int, size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(data, "PNG")
    return data.getvalue()


def osworld_example(
    root: Path, name: str = "94d95f96", model: str = "m", score: str = "1.0", **changed: object
) -> Path:
    """An example as OSWorld's `lib_run_single` writes it: two decisions, of which the first has two actions."""
    path = root / "pyautogui" / "screenshot" / model / "os" / name
    path.mkdir(parents=True)
    code = "import pyautogui\nimport time\npyautogui.click(20, 30)"
    lines = [
        {"step_num": 1, "action_timestamp": "t1", "action": code, "response": "I click."},
        {"step_num": 1, "action_timestamp": "t2", "action": "pyautogui.write('ls\\n')", "response": "I click."},
        {"step_num": 2, "action_timestamp": "t3", "action": "DONE", "response": "Done.", "done": True, "reward": 1.0},
    ]  # fmt: skip
    lines[0].update(changed)
    (path / "traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for value, shot in enumerate(("step_0_t0.png", "step_1_t1.png", "step_1_t2.png", "step_2_t3.png"), 1):
        (path / shot).write_bytes(png(value))
    if score:
        (path / "result.txt").write_text(score)
    return path


def agentnet_line(name: str = "20240927_a", code: str = "pyautogui.click(x=0.5, y=0.25)", **changed: object) -> dict:
    value = {"observation": "A page.", "thought": "The button.", "action": "Click it.", "code": code, "reflection": ""}
    end = {"thought": "", "action": "", "code": "computer.terminate(status='success')"}
    traj = [{"index": 0, "image": "a.png", "value": value}, {"index": 1, "image": "b.png", "value": end}]
    return {"task_id": name, "instruction": "Sort the table", "task_completed": True, "traj": traj, **changed}


def agentnet(root: Path, *lines: dict) -> Path:
    (root / "ubuntu_images").mkdir(parents=True)
    for value, name in enumerate(("a.png", "b.png"), 1):
        (root / "ubuntu_images" / name).write_bytes(png(value))
    path = root / "agentnet_ubuntu_5k.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def counts(report: ImportReport) -> tuple[int, int, int]:
    return report.imported, report.known, report.refused


def test_results_of_osworld(tmp_path):
    osworld_example(tmp_path / "results")
    osworld_example(tmp_path / "results", model="other", score="0.0\n")
    osworld_example(tmp_path / "results", name="unfinished", score="")
    task = tmp_path / "evaluation_examples" / "examples" / "os" / "94d95f96.json"
    task.parent.mkdir(parents=True)
    task.write_text(json.dumps({"instruction": "Install it"}))
    report = import_episodes(tmp_path / "results", tmp_path / "out", examples=tmp_path / "evaluation_examples")
    assert counts(report) == (2, 0, 1) and "was not finished" in report.problems[0] and report.unseen == 0
    root = tmp_path / "out" / "pyautogui" / "screenshot" / "m"
    directory = episode_directory(root, "osworld/94d95f96", 0)
    record = read_episode(directory)
    assert (record.score, record.instruction, record.policy, record.app, record.terminal) == (
        1.0, "Install it", "m", "os", "done"
    )  # fmt: skip
    first, last = record.steps
    assert [action["kind"] for action in first.actions] == ["click", "type"] and first.actions[0]["x"] == 20
    assert (first.text, first.screen, [action["kind"] for action in last.actions]) == ("I click.", (200, 100), ["done"])
    shown = [read_image(directory, name) for name in (first.screenshot, last.screenshot, last.screenshot_after)]
    assert [image and image.pixels[0, 0, 0] for image in shown] == [1, 3, 4], "before each decision, and at the end"
    assert counts(import_episodes(tmp_path / "results", tmp_path / "out")) == (0, 2, 1), "nothing is replaced"


def test_a_result_without_its_first_screenshot_says_so(tmp_path):
    (osworld_example(tmp_path / "results") / "step_0_t0.png").unlink()
    report = import_episodes(tmp_path / "results", tmp_path / "out")
    assert (report.imported, report.unseen) == (1, 1)


def test_computer_13(tmp_path):
    osworld_example(tmp_path / "r", action={"action_type": "CLICK", "parameters": {"x": 1, "y": 2}})
    assert import_episodes(tmp_path / "r", tmp_path / "out").imported == 1


def test_imported_results_can_be_compared(tmp_path):
    for model, score in (("m1", "1"), ("m2", "0")):
        for name in ("a", "b"):
            osworld_example(tmp_path / "r", name, model, score)
    import_episodes(tmp_path / "r", tmp_path / "out")
    both = [str(tmp_path / "out/pyautogui/screenshot" / model) for model in ("m1", "m2")]
    result = CliRunner().invoke(agent_cli.app, ["compare", *both])
    assert result.exit_code == 0 and "how the episodes of" in result.output, (result.output, result.exception)
    assert "m1" in result.output and "m2" in result.output
    several = CliRunner().invoke(agent_cli.app, ["compare", str(tmp_path / "out"), both[1]])
    assert several.exit_code == 1 and "2 sets of episodes: name one of them, such as" in str(several.exception)


def test_calls_of_tools(tmp_path):
    """As OSWorld's agent of Claude records them: the call of a tool, and the code that was run for it."""
    call = {"name": "computer", "id": "toolu_1", "action_type": "tool_use", "raw_response": "I click."}
    click = {**call, "input": {"action": "left_click", "coordinate": [2, 3]}, "command": "pyautogui.click(20, 30)\n"}
    osworld_example(tmp_path / "r", action=click)
    osworld_example(tmp_path / "r", "looks", action={**call, "input": {"action": "screenshot"}, "command": ""})
    osworld_example(tmp_path / "r", "ends", action={"action_type": "DONE", "raw_response": "Done."})
    osworld_example(tmp_path / "r", "without", action={**call, "input": {"action": "left_click"}})
    report = import_episodes(tmp_path / "r", tmp_path / "out")
    assert counts(report) == (3, 0, 1) and "neither code nor an object that is known" in report.problems[0]
    kinds = {
        record.task_id: [action["kind"] for action in record.steps[0].actions]
        for record in map(read_episode, find_episodes(tmp_path / "out"))
    }
    assert kinds == {"osworld/94d95f96": ["click", "type"], "osworld/looks": ["type"], "osworld/ends": ["done", "type"]}


def test_agentnet(tmp_path):
    path = agentnet(tmp_path / "data", agentnet_line(), agentnet_line("failed", task_completed=False))
    assert counts(import_episodes(path, tmp_path / "out")) == (2, 0, 0)
    records = {record.task_id: record for record in map(read_episode, find_episodes(tmp_path / "out"))}
    record = records["agentnet/20240927_a"]
    assert (record.source, record.score, record.instruction) == ("human", 1.0, "Sort the table")
    assert (record.steps[0].actions[0]["x"], record.steps[0].actions[0]["y"]) == (100, 25), "fractions are pixels"
    assert record.steps[0].text.startswith("## Thought:\nThe button.\n\n## Action:\nClick it.\n\n## Code:\n```python")
    assert records["agentnet/failed"].score == 0.0


AGENTNET_CODES = {
    "pyautogui.click(x=0.1632, y=0.2711)": ["click"],
    "pyautogui.rightClick(x=0.304, y=0.684)": ["click"],
    "pyautogui.middleClick(x=0.4661, y=0.575)": ["click"],
    "pyautogui.doubleClick(x=0.153, y=0.283)": ["click"],
    "computer.tripleClick(x=0.226, y=0.311)": ["click"],
    "pyautogui.click(x=1.0, y=0.0)": ["click"],
    "pyautogui.moveTo(x=0.394, y=0.604)": ["move"],
    "pyautogui.moveTo(x=0.267, y=0.5831)\npyautogui.dragTo(x=0.1196, y=0.5838, button='left')": ["drag"],
    "pyautogui.dragTo(x=0.085, y=0.361, button='left')": ["mouse_down", "move", "mouse_up"],
    "pyautogui.scroll(-4)": ["scroll"],
    "pyautogui.hscroll(13)": ["scroll"],
    "pyautogui.write(message='example.org')\npyautogui.press('enter')": ["type", "press"],
    "pyautogui.press('pagedown')": ["press"],
    "pyautogui.hotkey(['Ctrl', 'O'])": ["press"],
    "pyautogui.hotkey(['cmd', 'c'])": ["press"],
    "computer.wait()": ["wait"],
    "computer.terminate(status='success')": ["done"],
}
"""Every form of code that readers of the published files describe, by the kinds of its actions."""


def test_agentnet_as_it_is_published(tmp_path):
    """All fields of a published line and every form of code; a task done twice; archives unpacked beside the file."""
    folder = tmp_path / "AgentNet"
    images = folder / "ubuntu_images" / "ubuntu_images_raw"
    images.mkdir(parents=True)
    lines = []
    for attempt in range(2):
        traj = []
        for index, code in enumerate(AGENTNET_CODES):
            image = f"ea83c4aa-a4b1-48af-b439-{attempt:06}{index:06}.png"
            (images / image).write_bytes(png(index + 1))
            value = {
                "observation": "I'm looking at a spreadsheet...",
                "thought": "Since this is the first action...",
                "action": "Click on cell C2.",
                "code": code,
                "last_step_correct": True,
                "last_step_redundant": False,
                "reflection": "The action has selected cell C2.",
            }
            traj.append({"index": index, "image": image, "value": value})
        lines.append(
            {
                "task_id": "20240927235321_5855063d-3f37-47a4-ab45-5247adfdb6f7",
                "instruction": "sort the table in ascending order",
                "task_completed": attempt == 0,
                "alignment_score": 7,
                "efficiency_score": 6,
                "task_difficulty": 3,
                "reason": "The table is sorted.",
                "natural_language_task": "Could you help me sort this table?",
                "actual_task": "Sort a table.",
                "domain": "office",
                "traj": traj,
            }
        )
    (folder / "agentnet_ubuntu_5k.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "meta_data_merged.jsonl").write_text('{"task_id": "20240927235321_5855063d", "system": "ubuntu"}\n')
    report = import_episodes(folder, tmp_path / "out")
    assert counts(report) == (2, 0, 1) and "meta_data_merged.jsonl: it holds no trajectories" in report.problems[0]
    records = [read_episode(path) for path in find_episodes(tmp_path / "out")]
    assert {record.score for record in records} == {0.0, 1.0}
    for record in records:
        found = [[action["kind"] for action in step.actions] for step in record.steps]
        assert found == list(AGENTNET_CODES.values()) and record.terminal == "done"
    assert counts(import_episodes(folder, tmp_path / "out")) == (0, 2, 1), "both are known again"


@pytest.mark.parametrize("export", [export_osworld, export_chat, export_chat_inline])
def test_there_and_back(tmp_path, export):
    import_episodes(agentnet(tmp_path / "data", agentnet_line()), tmp_path / "one")
    [path] = find_episodes(tmp_path / "one")
    export([path], tmp_path / "exported")
    assert counts(import_episodes(tmp_path / "exported", tmp_path / "two")) == (1, 0, 0)
    [again] = find_episodes(tmp_path / "two")
    before, after = read_episode(path), read_episode(again)
    for name in ("task_id", "seed", "instruction", "source", "policy", "app", "score", "terminal"):
        assert getattr(before, name) == getattr(after, name), name
    assert [(step.text, step.actions, step.screenshot, step.screen) for step in before.steps] == [
        (step.text, step.actions, step.screenshot, step.screen) for step in after.steps
    ]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"screenshot_file": "step_9.png"}, "'step_9.png' is missing"),
        ({"screenshot_file": "../../../../../secret.png"}, "lies outside"),
        ({"screenshot_file": "/etc/passwd"}, "lies outside"),
        ({"screenshot_file": "a\0.png"}, "is no name of a file"),
        ({"screenshot_file": "\ud800.png"}, "is no name of a file"),
        ({"screenshot_file": "a" * 5000}, "is no name of a file"),
        ({"episode": {"seed": 2**63}}, "no integer of 64 bits"),
        ({"action": "pyautogui.click(900, 30)"}, r"points at \(900, 30\), off its screen of 200x100"),
        ({"action": "pyautogui.click(-5, 30)"}, "off its screen"),
        ({"action": "pyautogui.dragTo(5, 300)"}, "off its screen"),
        ({"action": "import os\nos.system('id')"}, "cannot be read"),
        ({"action": 7}, "neither code nor an object"),
        ({"action": {"kind": "teleport"}}, "unknown action"),
    ],
)  # fmt: skip
def test_a_wrong_result_is_refused_and_the_others_are_imported(tmp_path, changed, why):
    (tmp_path / "secret.png").write_bytes(png(9))
    osworld_example(tmp_path / "results", **changed)
    osworld_example(tmp_path / "results", name="sound")
    report = import_episodes(tmp_path / "results", tmp_path / "out")
    assert counts(report) == (1, 0, 1)
    assert re.search(why, report.problems[0]), report.problems
    assert [path.name for path in (tmp_path / "out").rglob("*s0*")] == ["osworld+sound.s0"]


@pytest.mark.parametrize("score", ["nan", "inf", "2", "-1", "one"])
def test_a_score_that_is_none_is_refused(tmp_path, score):
    osworld_example(tmp_path / "results", score=score)
    assert counts(import_episodes(tmp_path / "results", tmp_path / "out")) == (0, 0, 1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (agentnet_line(code="pyautogui.click(x=1.5, y=0.1)"), "off its screen"),
        (agentnet_line(code="for i in range(9): pass"), "cannot be read"),
        (agentnet_line(task_completed=None), "neither true nor false"),
        (agentnet_line(traj=[]), "no list of 1 to"),
        (agentnet_line(traj=[{"image": "gone.png", "value": {"code": "WAIT"}}]), "'gone.png' is missing"),
        (agentnet_line(traj=[{"image": "../../secret.png", "value": {"code": "WAIT"}}]), "lies outside"),
        (agentnet_line(traj=[{"image": "a\0.png", "value": {"code": "WAIT"}}]), "is no name of a file"),
        (agentnet_line(traj=[{"image": "a" * 5000, "value": {"code": "WAIT"}}]), "is no name of a file"),
        (agentnet_line(traj=[3]), "it has no value"),
        ({"task_id": "a"}, "instruction is missing"),
    ],
)
def test_a_wrong_line_of_agentnet(tmp_path, line, why):
    (tmp_path / "secret.png").write_bytes(png(9))
    report = import_episodes(agentnet(tmp_path / "data", line, agentnet_line("sound")), tmp_path / "out")
    assert counts(report) == (1, 0, 1) and why in report.problems[0], report.problems


def test_a_damaged_image_leaves_nothing(tmp_path):
    path = agentnet(tmp_path / "data", agentnet_line())
    shot = path.parent / "ubuntu_images" / "b.png"
    shot.write_bytes(shot.read_bytes()[:60])
    report = import_episodes(path, tmp_path / "out")
    assert counts(report) == (0, 0, 1) and "cannot be read" in report.problems[0]
    assert not list((tmp_path / "out").rglob("*.msgpack"))


def test_a_link_out_of_a_data_set_is_not_followed(tmp_path):
    (tmp_path / "secret.png").write_bytes(png(9))
    path = agentnet(tmp_path / "data", agentnet_line())
    shot = path.parent / "ubuntu_images" / "a.png"
    shot.unlink()
    shot.symlink_to(tmp_path / "secret.png")
    report = import_episodes(path, tmp_path / "out")
    assert counts(report) == (0, 0, 1) and "lies outside" in report.problems[0]


def archive(path: Path, names: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, data in names.items():
                packed.writestr(name, data)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, data in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_archives(tmp_path, suffix):
    source = agentnet(tmp_path / "data", agentnet_line()).parent
    files = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    assert import_episodes(archive(tmp_path / f"good{suffix}", files), tmp_path / "out").imported == 1
    nothing = archive(tmp_path / f"nothing{suffix}", {"a.txt": b"x"})
    with pytest.raises(RecordError, match=f"nothing{re.escape(suffix)} holds no traj.jsonl"):
        import_episodes(nothing, tmp_path / "other")
    for name in ("../outside.txt", "/outside.txt", "a/../../outside.txt", "..\\outside.txt"):
        with pytest.raises(RecordError, match="leads outside: nothing was unpacked"):
            import_episodes(archive(tmp_path / f"bad{suffix}", {**files, name: b"x"}), tmp_path / "other")
    assert not list(tmp_path.rglob("outside.txt")) and not (tmp_path / "other").exists()


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_an_archive_whose_file_is_a_directory_too_is_refused(tmp_path, suffix):
    with pytest.raises(RecordError, match="cannot unpack"):
        import_episodes(archive(tmp_path / f"bad{suffix}", {"a": b"x", "a/b": b"y"}), tmp_path / "out")


def test_an_archive_with_a_link_or_of_zeros_is_refused(tmp_path):
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        link = tarfile.TarInfo("images")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
    with pytest.raises(RecordError, match="which is no file"):
        import_episodes(tmp_path / "link.tar", tmp_path / "out")
    with (
        zipfile.ZipFile(tmp_path / "zeros.zip", "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("a.jsonl", "w") as file,
    ):
        for _ in range(100):
            file.write(bytes(1 << 20))
    with pytest.raises(RecordError, match="unpacks to more than"):
        import_episodes(tmp_path / "zeros.zip", tmp_path / "out")


@pytest.mark.slow
def test_a_million_lines_in_bounded_memory(tmp_path):
    """Each is refused with its reason; the report keeps the first ones and counts the rest."""
    path = agentnet(tmp_path / "data", agentnet_line("sound"))
    with path.open("a") as file:
        file.writelines('{"task_id": "a"}\n' for _ in range(1_000_000))
        file.write(json.dumps(agentnet_line("last")) + "\n")
    import_episodes(agentnet(tmp_path / "first", agentnet_line()), tmp_path / "warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = import_episodes(path, tmp_path / "out")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert counts(report) == (2, 0, 1_000_000) and len(report.problems) == 20
    assert grown < 30_000, f"{grown} KiB"


def test_the_command(tmp_path):
    def invoke(*arguments: object):
        return CliRunner().invoke(agent_cli.app, ["import", *map(str, arguments)])

    path = agentnet(tmp_path / "data", agentnet_line(), {"task_id": "a"})
    result = invoke(path, tmp_path / "out")
    assert result.exit_code == 0 and "line 2 of agentnet_ubuntu_5k.jsonl: instruction is missing" in result.output
    assert "1 imported; 0 there already; 1 refused" in result.output
    assert invoke(path, tmp_path / "few", "--max-lost", 0).exit_code == 1
    assert invoke(path, tmp_path / "more", "--max-lost", 1).exit_code == 0
    path.write_text("no JSON\n")
    nothing = invoke(path, tmp_path / "none")
    assert nothing.exit_code == 1 and "is no JSONL file, no Parquet file and no archive" in str(nothing.exception)
    with pytest.raises(RecordError, match="holds no traj.jsonl"):
        import_episodes(tmp_path / "data" / "ubuntu_images", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_long_line_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr("dart_agent.imports.found_episodes.LONGEST_LINE", 4000)
    path = agentnet(tmp_path / "data", agentnet_line(instruction="x" * 20_000), agentnet_line("sound"))
    report = import_episodes(path, tmp_path / "out")
    assert counts(report) == (1, 0, 1) and "more than 4000 bytes" in report.problems[0]


def test_pixels_are_those_of_the_file(tmp_path):
    import_episodes(agentnet(tmp_path / "data", agentnet_line()), tmp_path / "out")
    [path] = find_episodes(tmp_path / "out")
    image = read_image(path, read_episode(path).steps[0].screenshot)
    assert image is not None and np.array_equal(image.pixels, np.full((HEIGHT, WIDTH, 3), (1, 0, 0), np.uint8))


def test_an_image_in_a_line_that_is_none_refuses_its_episode():
    with pytest.raises(RefusedError, match="the image in the line cannot be read"):
        image_size(b"no image")
