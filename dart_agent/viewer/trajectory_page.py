"""The page of a trajectory: one file with everything in it, screenshots too, that opens from `file://`.

Invariants:
    - The page loads nothing and sends nothing: its content policy forbids both.
    - All that was recorded is data to it (a JSON block and `textContent`), never markup or script.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from dart_agent.episodes.records import EpisodeRecord, RecordError, StepRecord

MAX_WIDTH = 1600
QUALITY = 88
_EPISODE = (
    "task_id", "seed", "instruction", "terminal", "score", "status", "evaluator", "detail", "lost_by", "steps", "error",
    "timings", "task_hash", "app", "policy", "attempts", "ended_at",
)  # fmt: skip


def render_page(record: EpisodeRecord) -> str:
    """The HTML of an episode.

    Raises:
        RecordError: a screenshot is damaged.
    """
    data = page_data(record)
    html = files("dart_agent").joinpath("assets/trajectory.html").read_text(encoding="utf-8")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{content_policy(html)}">'
    html = html.replace("<!--POLICY-->", policy)
    return html.replace("<!--DATA-->", f'<script type="application/json" id="data">{text}</script>')


def page_data(record: EpisodeRecord) -> dict[str, Any]:
    """What the page shows, as JSON values; screenshots as data URLs."""
    shown = {name: getattr(record, name) for name in _EPISODE}
    steps = [{**asdict(step), **_image(record.directory, step.screenshot, step)} for step in record.decisions]
    final = _image(record.directory, record.final_screenshot, record.decisions[-1] if record.decisions else None)
    return {"episode": shown, "steps": steps, "final": final if record.final_screenshot else None}


def content_policy(html: str) -> str:
    """The Content-Security-Policy of the page: its own script and style by their hashes, images in it, nothing else."""
    script, style = (_hashes(html, element) for element in ("script", "style"))
    own = f"script-src {script}; style-src {style}; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hashes(html: str, element: str) -> str:
    contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _image(directory: Path, name: str, step: StepRecord | None) -> dict[str, Any]:
    """The data URL of a screenshot, and the size of the screen that it shows; no URL where its file is missing."""
    width, height = step.screen if step else (0, 0)
    path = directory / name
    if not name or not path.exists():
        return {"image": "", "screen": [width, height]}
    try:
        with Image.open(path) as picture:
            image = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise RecordError(f"cannot read {path}: {error}") from error
    screen = [width or image.width, height or image.height]
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, max(1, round(image.height * MAX_WIDTH / image.width))))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=QUALITY, method=2)
    return {"image": "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode(), "screen": screen}
