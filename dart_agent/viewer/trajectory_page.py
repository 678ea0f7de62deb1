"""The page of a trajectory: one file with everything in it, screenshots too, that opens from `file://`.

Invariants:
    - The page loads nothing and sends nothing: its content policy forbids both.
    - All that was recorded is data to it (a JSON block and `textContent`), never markup or script.
"""

import base64
import io
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from dart_agent.episodes.episode_files import RecordError, find_episodes, read_image
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.cluster.server.http_routes import inline_hashes

MAX_WIDTH = 1600
QUALITY = 88
NAMED = 5
"""So many episodes are named where one is to be chosen."""

_EPISODE = (
    "task_id", "seed", "instruction", "terminal", "score", "status", "evaluator", "detail", "lost_by", "num_actions",
    "error", "timings", "task_hash", "app", "attempts", "ended_at",
)  # fmt: skip
_STEP = (
    "text", "thought", "actions", "error", "action_error", "actor", "timings", "tokens", "version", "engine",
    "finish_reason",
)  # fmt: skip


def find_one(directory: Path) -> Path:
    """The one episode in a directory, or alone below it. Raises `RecordError`: none, or several."""
    found = list(find_episodes(directory, partial=True))
    if not found:
        raise RecordError(f"{directory} holds no recorded episode: play one with dart-agent run --out, or eval --out")
    if len(found) > 1:
        names = "\n".join(f"  {path}" for path in found[:NAMED])
        more = f"\n  ... and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise RecordError(f"{directory} holds {len(found)} episodes, name one of them:\n{names}{more}")
    return found[0]


def render_page(trajectory: Trajectory, directory: Path) -> str:
    """The HTML of an episode. Raises `RecordError`: a screenshot is damaged."""
    data = page_data(trajectory, directory)
    html = files("dart_agent").joinpath("assets/trajectory.html").read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(html)}">'
    html = html.replace("<!--POLICY-->", policy)
    return html.replace("<!--DATA-->", f'<script type="application/json" id="data">{text}</script>')


def page_data(trajectory: Trajectory, directory: Path) -> dict[str, Any]:
    """What the page shows, as JSON values; screenshots as data URLs."""
    shown = {name: getattr(trajectory, name) for name in _EPISODE}
    steps = [_step_data(step, directory) for step in trajectory.steps]
    last = trajectory.steps[-1] if trajectory.steps else Step()
    final = _image(directory, last.screenshot_after, last) if last.screenshot_after else None
    return {"episode": {**shown, "policy": trajectory.policy or trajectory.source}, "steps": steps, "final": final}


def _step_data(step: Step, directory: Path) -> dict[str, Any]:
    return {
        **{name: getattr(step, name) for name in _STEP},
        "prompt_tokens": len(step.prompt_ids),
        "prompt_images": len(step.image_hashes),
        "response_ids": step.response_ids,
        "logprobs": [value if math.isfinite(value) else None for value in step.logprobs],
        **_image(directory, step.screenshot, step),
    }


def content_policy(html: str) -> str:
    """The Content-Security-Policy of the page: its own script and style by their hashes, images in it, nothing else."""
    script, style = (inline_hashes(html, element) for element in ("script", "style"))
    own = f"script-src {script}; style-src {style}; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _image(directory: Path, image_id: str, step: Step) -> dict[str, Any]:
    """The data URL of a screenshot, and the size of the screen that it shows; no URL where its file is missing."""
    width, height = step.screen
    stored = read_image(directory, image_id)
    if stored is None:
        return {"image": "", "screen": [width, height]}
    image = Image.fromarray(stored.pixels)
    screen = [width or image.width, height or image.height]
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, max(1, round(image.height * MAX_WIDTH / image.width))))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY, method=2)
    return {"image": "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode(), "screen": screen}
