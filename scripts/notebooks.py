"""Run notebooks, and keep in them what they print and show: `python scripts/notebooks.py examples/notebooks/*.ipynb`.

It does what Jupyter would, without a kernel and its thirty packages: the cells run in order in one namespace, `await`
stands where it likes, and what a cell shows is what it printed and the value of its last expression, an image as PNG.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import inspect
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def outputs(printed: str, value: object) -> list[dict[str, Any]]:
    """A cell's outputs as notebooks have them. Pure."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [type(value).__name__]}
        if (drawn := getattr(value, "_repr_png_", None)) is not None:
            data["image/png"] = base64.b64encode(drawn()).decode()
        else:
            data["text/plain"] = repr(value).splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return found


async def _value(code: types.CodeType, namespace: dict[str, Any]) -> object:
    result = eval(code, namespace)  # a notebook of this project, not what a model wrote
    return await result if code.co_flags & inspect.CO_COROUTINE else result


async def _cell(source: str, name: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tree, last = ast.parse(source, name), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        await _value(compile(tree, name, "exec", AWAIT), namespace)
        if last is not None:
            value = await _value(compile(last, name, "eval", AWAIT), namespace)
    return outputs(printed.getvalue(), value)


async def _run(notebook: dict[str, Any], name: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # where classes of the notebook are looked for
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        found = await _cell("".join(cell["source"]), f"{name}, cell {number}", module.__dict__)
        for output in found:
            if "execution_count" in output:
                output["execution_count"] = number
        cell["execution_count"], cell["outputs"] = number, found


def run(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run of its own, in a directory of its own. Raises what a cell raises."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    before = sys.modules["__main__"]
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        try:
            asyncio.run(_run(notebook, path.name))
        finally:
            sys.modules["__main__"] = before
    return notebook


if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the commands of this environment
    for path in map(Path, sys.argv[1:]):
        text = json.dumps(run(path.resolve()), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{path}: {len(text) / 1024:.0f} KiB")
