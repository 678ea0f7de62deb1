"""What an exploration leaves in a directory: its graph as a page with thumbnails, and the data of every deed.

`graph.html` needs nothing else; `deeds.jsonl` holds before, action, element, query and after, its screens are in
`screens/`.
"""

import base64
import importlib.resources
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from dart_gym_grounding_data.exploration_graph import Edge, Graph
from dart_gym_grounding_data.pairs import phrases

_WIDTH = 320  # pixels of a thumbnail


def write_exploration(directory: Path, graph: Graph, heading: str) -> None:
    """Write the page and the data of a graph."""
    (directory / "screens").mkdir(parents=True, exist_ok=True)
    for node in graph.nodes:
        Image.fromarray(node.screen.image).save(directory / f"screens/{node.number:04d}.png")
    rows = [_row(graph, edge) for edge in graph.edges]
    (directory / "deeds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page = importlib.resources.files(__package__).joinpath("assets/exploration.html").read_text(encoding="utf-8")
    shown = {"heading": heading, "edges": rows, "nodes": [
        {"title": node.title, "depth": node.depth, "visits": node.visits, "image": _thumbnail(node.screen.image),
         "untried": len(node.deeds.keys() - node.tried.keys())} for node in graph.nodes
    ]}  # fmt: skip
    data = json.dumps(shown).replace("<", "\\u003c")  # a title may hold what ends a script
    (directory / "graph.html").write_text(page.replace("/*DATA*/null", data), encoding="utf-8")


def _row(graph: Graph, edge: Edge) -> dict[str, Any]:
    element, (height, width) = edge.deed.element, graph.nodes[edge.before].screen.image.shape[:2]
    return {
        "before": edge.before, "action": edge.deed.kind, "element": asdict(element) if element else None,
        "query": next(iter(phrases(element, (width, height))), None) if element else None,
        "after": edge.after, "reward": round(edge.reward, 3), "trouble": edge.trouble,
    }  # fmt: skip


def _thumbnail(image: Any) -> str:
    file, picture = io.BytesIO(), Image.fromarray(image)
    picture.resize((_WIDTH, max(1, round(picture.height * _WIDTH / picture.width)))).save(file, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
