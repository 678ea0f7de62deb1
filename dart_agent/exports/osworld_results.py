"""A recorded evaluation in the layout of OSWorld's results, so that its own scripts sum it up and continue it.

    <out>/<action_space>/<observation_type>/<model>/<domain>/<example id>/
        traj.jsonl                    one line per action: step_num, action_timestamp, action, reward, done, info, ...
        step_<n>_<timestamp>.png      what was to be seen after it; step_0 before the first
        result.txt                    the score

As OSWorld's `run.py` and `show_result.py` read them: an example is finished exactly when its `result.txt` holds a
number. So an episode that was lost gets none, never a 0. OSWorld knows one run per example: further seeds become models
of their own (`<model>-s1`), and further episodes of one seed, such as the members of a group, too (`<model>-m1`).

Invariant: no result replaces another. A directory that exists is left as it is, and the episode is counted as left out.

Differences: actions are typed actions as JSON objects, not Python source; the reward is 0 until the last line; times
between the actions and the end of the episode are as measured, so that file names are in order.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dart_agent.episodes.episode_files import RecordError, read_episode, read_image
from dart_agent.episodes.trajectory import Trajectory
from dart_agent.exports.fresh_directories import unfinished_beside
from dart_gym.utils.png import encode_png

ACTION_SPACE = "dart"
OBSERVATION_TYPE = "screenshot"
_ABOUT = ("task_id", "seed", "instruction", "source", "policy", "app", "terminal", "evaluator")
"""Facts about the episode in the first line, for `dart-agent import`; OSWorld ignores them."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Layout of the files below `root` after an export.

    Attributes:
        episodes: episodes with a `result.txt`.
        lost: lost episodes, without one.
        left_out: episodes that were not written, because their directory held something already.
        damaged: why others were not written.
    """

    root: Path
    episodes: int
    lost: int
    left_out: int = 0
    damaged: tuple[str, ...] = ()


def export_results(episodes: Iterable[str | Path], out: str | Path) -> str:
    """The exporter "osworld".

    Raises:
        RecordError: if not a single result was written.
    """
    exported = export_osworld(episodes, out)
    said = f"{exported.episodes} results" + (f", {exported.lost} lost ones without result.txt" * (exported.lost > 0))
    if exported.left_out:
        said += f"; {exported.left_out} left out, whose directories exist already: choose another directory for them"
    if exported.damaged:
        said += f"; {len(exported.damaged)} damaged ones left out ({exported.damaged[0]})"
    if not exported.episodes:
        raise RecordError(f"{out}: {said}")
    return said


def export_osworld(directories: Iterable[str | Path], out: str | Path) -> Exported:
    """Write recorded episodes in OSWorld's layout.

    Raises:
        RecordError: if the export cannot be written.
    """
    out = Path(out)
    first: dict[str, int] = {}
    made: set[Path] = set()
    there: list[tuple[Path, bool]] = []
    damaged: list[str] = []
    left_out = 0
    found = []
    for path in map(Path, directories):
        try:
            outcome = read_episode(path, steps=False)
            found.append((outcome.task_id, outcome.seed, str(path), path))
        except RecordError as error:
            damaged.append(str(error))
    for _, _, _, path in sorted(found):
        try:
            record = read_episode(path)
        except RecordError as error:
            damaged.append(str(error))
            continue
        first.setdefault(record.task_id, record.seed)
        member = 0
        while (place := example_path(record, first[record.task_id], member)) in made:
            member += 1
        made.add(place)
        directory = out / ACTION_SPACE / OBSERVATION_TYPE / place
        if directory.exists():
            left_out += 1
            continue
        try:
            _write(record, path, directory)
        except OSError as error:
            raise RecordError(f"cannot write {directory} ({error}): check space, owner and rights") from error
        except RecordError as error:
            damaged.append(str(error))
            continue
        there.append((directory, bool(record.lost_by)))
    written = sum((directory / "result.txt").is_file() for directory, _ in there)
    lost = sum(lost and directory.is_dir() for directory, lost in there)
    return Exported(out, written, lost, left_out, tuple(damaged))


def example_path(record: Trajectory, first_seed: int, member: int = 0) -> Path:
    """`<model>/<domain>/<example id>` of an episode; what a record says leads nowhere else. Pure.

    Args:
        record: the episode.
        first_seed: lowest seed of its task.
        member: number of the episode among episodes with the same path.
    """
    extra = record.seed - first_seed
    model = _name(record.policy or "policy") + (f"-s{extra}" if extra else "") + (f"-m{member}" if member else "")
    return Path(model, _name(record.app or "none"), _name(Path(record.task_id).stem))


def _name(text: str) -> str:
    """A text as the name of a directory."""
    name = text.replace("/", "_").replace(":", ".").replace("\0", "_")
    return f"_{name}" if name in ("", ".", "..") else name


def trajectory_lines(record: Trajectory) -> list[dict[str, Any]]:
    """The lines of `traj.jsonl`: one for every action that was decided on. Pure."""
    lines: list[dict[str, Any]] = []
    for decision, (stamp, step) in enumerate(zip(_timestamps(record), record.steps, strict=True), 1):
        for action in step.actions or ({"kind": step.terminal or "none"},):
            number = len(lines) + 1
            lines.append(
                {
                    "step_num": number,
                    "decision": decision,
                    "action_timestamp": stamp,
                    "action": action,
                    "reward": 0.0,
                    "done": False,
                    "info": {"error": step.error or step.action_error} if step.error or step.action_error else {},
                    "response": step.text,
                    "screenshot_file": f"step_{number}_{stamp}.png",
                }
            )
    if lines:
        lines[0]["episode"] = {name: getattr(record, name) for name in _ABOUT}
        lines[-1] |= {"done": True, "reward": record.score or 0.0}
    return lines


def _timestamps(record: Trajectory) -> list[str]:
    """When each decision was made, counted back from the end of the episode."""
    moment, found = record.ended_at, []
    for step in reversed(record.steps):
        moment -= max(1e-6, step.timings.get("generate", 0.0) + step.timings.get("total", 0.0))
        found.append(datetime.fromtimestamp(moment, UTC).strftime("%Y%m%d@%H%M%S%f"))
    return found[::-1]


def _write(record: Trajectory, source: Path, directory: Path) -> None:
    with unfinished_beside(directory) as partial:  # a killed export leaves no half of a result
        _fill(record, source, partial)
        partial.rename(directory)


def _fill(record: Trajectory, source: Path, directory: Path) -> None:
    lines = trajectory_lines(record)
    shots = [step.screenshot for step in record.steps]
    if shots:
        _copy(source, shots[0], directory / f"step_0_{lines[0]['action_timestamp']}.png")
    number = 0
    for index, step in enumerate(record.steps):
        # Nothing was captured between the actions of one decision: each shows the result of all of them.
        after = shots[index + 1] if index + 1 < len(shots) else step.screenshot_after
        for _ in step.actions or (None,):
            if after:
                _copy(source, after, directory / lines[number]["screenshot_file"])
            else:
                lines[number]["screenshot_file"] = ""  # nothing was captured
            number += 1
    with (directory / "traj.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if not record.lost_by:
        (directory / "result.txt").write_text(f"{record.score}\n", encoding="utf-8")


def _copy(source: Path, image_id: str, target: Path) -> None:
    """Copy a screenshot of an episode, as PNG."""
    if not image_id:
        return
    image = read_image(source, image_id)
    if image is None:
        raise RecordError(f"{source} shows the screenshot {image_id}, which is missing")
    target.write_bytes(image.data if image.is_png else encode_png(image.pixels))
