"""ScreenSpot's layout on the disk: annotations in JSON, screenshots beside them. Reader and writer.

Two spellings are read: ScreenSpot and v2 (`data_type`, `data_source`, boxes as left, top, width, height) and Pro
(`ui_type`, `application`, `platform`, boxes as left, top, right, bottom), which is what is written, with all boxes of
an item under `bboxes` where it has several.

Invariant: an item that cannot be used is named with the reason, and the others are read on.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from dart_agent.grounding.candidate import Box
from dart_gym.core.errors import ConfigurationError

_IMAGES = ("images", "screenspot_imgs", "screenspotv2_image", "screenspotv2_imgs", ".")


@dataclass(frozen=True, slots=True)
class GroundingItem:
    """A description and the boxes that it may mean, any of which is right, on a `screen` of (width, height) pixels.

    `name` says which it is in messages; `image` is (H, W, 3) uint8, or the file that holds it; `kind` text or icon.
    """

    name: str
    description: str
    boxes: tuple[Box, ...]
    image: Path | NDArray[np.uint8]
    screen: tuple[int, int]
    kind: str = "text"
    application: str = ""
    platform: str = ""

    def screenshot(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8, read now where it lies in a file."""
        return np.asarray(Image.open(self.image).convert("RGB")) if isinstance(self.image, Path) else self.image


def box_of(values: Any, screen: tuple[int, int], *, corners: bool) -> Box | str:
    """The box in pixels of a screen of (width, height) that four numbers are, or what is wrong with them. Pure."""
    try:
        left, top, right, bottom = map(float, values)
    except (TypeError, ValueError):
        return "the box is not four numbers"
    if not corners:
        right, bottom = left + right, top + bottom
    if not (left < right and top < bottom):
        return "the box has no area"
    if max(right, bottom) <= 1:
        return "the box is in fractions of the screen, not in pixels"
    if left < 0 or top < 0 or right > screen[0] + 1 or bottom > screen[1] + 1:
        return f"the box reaches off the screen of {screen[0]}x{screen[1]}: it may be in other units"
    return Box(left, top, right, bottom)


def read_screenspot(path: str | Path) -> tuple[list[GroundingItem], list[str]]:
    """The items of a file or directory, and what is wrong with others, a line each. Raises `ConfigurationError`."""
    path = Path(path)
    files = [path] if path.is_file() else sorted([*path.glob("*.json"), *path.glob("annotations/*.json")])
    root = path.parent if path.is_file() else path
    roots = [base / name for base in (root, root.parent) for name in _IMAGES]
    items: list[GroundingItem] = []
    problems: list[str] = []
    for file in files:
        try:
            rows = TypeAdapter(list[Any]).validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigurationError(f"{file} is no set of ScreenSpot's layout: {error}") from None
        for number, row in enumerate(rows):
            item = _item(f"{file.name}:{number}", row, roots, file.stem)
            if isinstance(item, str):
                problems.append(item)
            else:
                items.append(item)
    if not files:
        raise ConfigurationError(f"{path} has no annotations (*.json) of ScreenSpot's layout")
    return items, problems


def _item(name: str, row: Any, roots: list[Path], stem: str) -> GroundingItem | str:
    """An item, or what is wrong with it."""
    if not isinstance(row, dict) or not isinstance(row.get("instruction"), str) or not row["instruction"].strip():
        return f"{name}: there is no instruction"
    file = str(row.get("img_filename"))
    places = (base / file for base in roots if (base / file).resolve().is_relative_to(base.resolve()))
    if (found := next((place for place in places if place.is_file()), None)) is None:
        return f"{name}: there is no screenshot {file}"
    try:
        with Image.open(found) as image:
            screen = image.size
    except OSError as error:
        return f"{name}: {file} cannot be read: {error}"
    listed = several if isinstance(several := row.get("bboxes"), list) and several else [row.get("bbox")]
    boxes = [box_of(values, screen, corners="ui_type" in row) for values in listed]
    if fault := next((box for box in boxes if isinstance(box, str)), ""):
        return f"{name}: {fault}"
    platform = str(row.get("platform") or row.get("data_source") or "")
    kind, application = row.get("ui_type") or row.get("data_type") or "text", row.get("application") or platform or stem
    right = tuple(box for box in boxes if isinstance(box, Box))
    return GroundingItem(name, row["instruction"], right, found, screen, str(kind), str(application), platform)


def write_screenspot(directory: str | Path, items: Iterable[GroundingItem]) -> None:
    """Write items with their screenshots in Pro's spelling, one file an application."""
    root = Path(directory)
    rows: dict[str, list[dict[str, Any]]] = {}
    written: dict[tuple[str, int], tuple[str, Any]] = {}  # with the image, so that no other one gets its id
    for number, item in enumerate(items):
        application = item.application.replace("/", "_").lstrip(".") or "screen"
        file, _ = written.get((application, id(item.image)), ("", None))
        if not file:
            file = f"{application}/{number:06d}.png"
            written[application, id(item.image)] = file, item.image
            (root / "images" / application).mkdir(parents=True, exist_ok=True)
            Image.fromarray(item.screenshot()).save(root / "images" / file)
        boxes = [[box.left, box.top, box.right, box.bottom] for box in item.boxes]
        rows.setdefault(application, []).append(
            {
                "img_filename": file,
                "bbox": boxes[0],
                **({"bboxes": boxes} if len(boxes) > 1 else {}),
                "instruction": item.description,
                "ui_type": item.kind,
                "application": item.application,
                "platform": item.platform,
                "img_size": list(item.screen),
                "id": item.name,
            }
        )
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for application, found in rows.items():
        (root / "annotations" / f"{application}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
