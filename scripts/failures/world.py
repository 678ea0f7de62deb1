"""The files that commands are given: made once, by the programs themselves, and copied for each cell."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

CONFIG = """name: mine
model: {path: tiny, tiny: {hidden_size: 32, layers: 1, vision_hidden_size: 32, vision_layers: 1}}
rollout: {tasks: [fake/click-button], workers: 1}
cluster: {desktops: 1}
demonstrations: {per_task: 1}
"""
PROGRAMS = Path(sysconfig.get_path("scripts"))
_BEFORE = {"run": ("config",), "prepared": ("run",), "archive": ("run",), "items": (), "results": ("evals",)}
_TINY = "--set hidden_size=32 --set layers=1 --set vision_hidden_size=32 --set vision_layers=1"
_COMMANDS = {
    "tasks": ["dart-gym init tasks"],
    "evals": [
        f"dart-agent eval fake/two-steps --n 2 --policy oracle --out evals/{name}"
        for name in ("a", "b")
    ],
    "model": [f"dart-agent init tiny {_TINY}"],
    "run": ["dart-train data check mine.yaml --migrate"],
    "prepared": ["dart-train process mine.yaml prepare"],
    "archive": ["dart-train data export mine.yaml run.tar"],
    "results": ["dart-agent export evals/a results"],
}  # fmt: skip
PARTS = ("config", "items", *_COMMANDS)


class World:
    """A directory that is filled with what is asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self._made = root, set[str]()
        root.mkdir(parents=True, exist_ok=True)

    def need(self, *parts: str) -> None:
        """Make parts that are not there yet."""
        for part in parts:
            if part in self._made:
                continue
            self._made.add(part)
            self.need(*_BEFORE.get(part, ()))
            if part == "config":
                (self.root / "mine.yaml").write_text(CONFIG)
            if part == "items":
                _write_items(self.root / "items")
            for line in _COMMANDS.get(part, ()):
                program, *words = line.split()
                there = {**os.environ, "HOME": str(self.root.parent)}
                done = subprocess.run(
                    [str(PROGRAMS / program), *words], cwd=self.root, env=there, capture_output=True, text=True
                )
                if done.returncode:
                    raise RuntimeError(f"{line} failed, without which there is nothing to try:\n{done.stderr}")


def write_fetch(folder: Path, url: str, files: int) -> None:
    """Write a directory of tasks that need files of a server."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        wanted = {"url": f"{url}/{number}.txt", "path": "/home/user/file.txt"}
        task = {
            "id": f"{number:08d}-0000-4000-8000-000000000000",
            "instruction": "Look at it.",
            "snapshot": "os",
            "related_apps": ["os"],
            "config": [{"type": "download", "parameters": {"files": [wanted]}}],
            "evaluator": {"func": "infeasible"},
        }
        (folder / f"{number}.json").write_text(json.dumps(task))


def spoil(results: Path, *, every: bool) -> None:
    """Cut the screenshots of one result short, or of every one."""
    episodes = sorted(path.parent for path in results.rglob("traj.jsonl"))
    for folder in episodes if every else episodes[:1]:
        for image in folder.glob("*.png"):
            image.write_bytes(image.read_bytes()[:40])


def _write_items(folder: Path) -> None:
    from PIL import Image

    (folder / "images").mkdir(parents=True)
    Image.new("RGB", (168, 224), "white").save(folder / "images" / "one.png")
    item = {"img_filename": "one.png", "instruction": "the button", "bbox": [10, 10, 40, 40],
            "data_type": "text", "data_source": "web"}  # fmt: skip
    (folder / "items.json").write_text(json.dumps([item]))
