"""A picture of hits and misses: one HTML file that opens from disk, misses first; no scripts, no network.

Invariant: what a set holds is data: every text of it is escaped.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from dart_agent.grounding.candidate import Candidate
from dart_agent.grounding.grounding_scores import Answer, accuracies, is_hit, size_of
from dart_agent.grounding.screenspot import GroundingItem

_WIDTH = 640  # most pixels of a thumbnail: more than is shown, for fine screens
_LEGEND = "".join(f'<i class="{kind}"></i> {kind}' for kind in ("meant", "hit", "miss", "later candidates"))


def hits_page(heading: str, answers: Sequence[Answer]) -> str:
    """The page of what a grounder answered: scores, then every item with its boxes and candidates."""
    shots, figures = dict[Any, str](), list[str]()  # a screen that several items share is in the page once
    for item, places in sorted(answers, key=is_hit):
        key = item.image if isinstance(item.image, Path) else id(item.image)
        if key not in shots:
            shots[key] = _shot(f"s{len(shots)}", item)
        figures.append(_figure(f"s{list(shots).index(key)}", item, places))
    rows = [("", "", "items", "accuracy", "95 %", "any candidate"), *(row.cells for row in accuracies(answers))]
    table = "".join("<tr><td>" + "<td>".join(map(escape, cells)) for cells in rows)
    style = files(__package__).joinpath("hits_page.css").read_text()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(heading)}</title><style>{style}</style>'
        f'<main><h1>{escape(heading)}</h1><table>{table}</table><p>{_LEGEND}</p><svg width="0" height="0"><defs>'
        f"{''.join(shots.values())}</defs></svg><section>{''.join(figures)}</section></main></html>\n"
    )


def _shot(name: str, item: GroundingItem) -> str:
    """A thumbnail, stretched to the size of the screen it is of."""
    picture = Image.fromarray(item.screenshot())
    picture.thumbnail((_WIDTH, _WIDTH))
    picture.save(file := io.BytesIO(), "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return '<image id="{}" width="{}" height="{}" href="data:image/png;base64,{}"/>'.format(name, *item.screen, data)


def _figure(shot: str, item: GroundingItem, places: Sequence[Candidate]) -> str:
    said = "miss" if places else "nothing found"
    if is_hit((item, places)):
        said = "hit"
    radius = max(item.screen) / 40
    sides = [(at.left, at.top, at.right - at.left, at.bottom - at.top) for at in item.boxes]
    marks = ['<rect class="meant" x="{}" y="{}" width="{}" height="{}"/>'.format(*four) for four in sides]
    marks += [f'<circle class="later" cx="{at.x}" cy="{at.y}" r="{radius}"/>' for at in places[1:]]
    marks += [f'<circle class="{said}" cx="{at.x}" cy="{at.y}" r="{radius}"/>' for at in places[:1]]
    facts = " · ".join(filter(None, (item.name, item.application, item.platform, item.kind, size_of(item))))
    return (
        '<figure><svg viewBox="0 0 {} {}">'.format(*item.screen) + f'<use href="#{shot}"/>{"".join(marks)}</svg>'
        f'<figcaption><b class="{said}">{said}</b> {escape(item.description)}<small>{escape(facts)}</small>'
        "</figcaption></figure>"
    )
