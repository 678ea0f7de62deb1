"""CUA-Gym's bundles: a directory for each task, in the layout of its data set or in the newer one of its pipeline.

    data set:  task.json  reward.py  initial_setup.{py,sh,xlsx,docx,pptx}      data/tasks.parquet: labels, by id
    newer:     instruction.md  meta.json  setup.sh  check.sh  exec/  hidden/  gt/

Both become OSWorld's JSON: the set-up as steps inside the desktop, the evaluator a program of the bundle. Read from its
public repository and data card; the layout of 2026-08.

Invariants:
    - A bundle that lacks a part, or names a file outside of it, is refused with the reason.
    - What a bundle needs besides (a mock site, an LLM as judge, an unsupported step) is its `needs`, not an error.
"""

import json
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from dart_gym.sites.site_catalog import FOLDERS_VARIABLE, site_folders
from dart_gym.tasks.setup.setup_runner import HANDLERS
from dart_gym_task_sources.source_files import table_rows
from dart_gym_task_sources.source_formats import Imported

WORKSPACE = "/tmp/tmp_workspace"  # what /tmp_workspace leads to
SETUP = "/tmp/uda_setup.sh"
_PARTS = ("task.json", "reward.py", "instruction.md", "check.sh", "setup.sh")
_TEXTS = (".json", ".md", ".py", ".sh", ".txt", ".yaml", ".yml")
_SITE = re.compile(r"__CUA_GYM_([A-Z0-9_]+?)(?:_MOCK)?_(?:URL|HOST)__|https://cua-gym-([a-z0-9-]+)\.xlang\.ai")
_LABELS = {"app_type": "app", "platform": "platform", "difficulty": "difficulty", "split": "split"}


class Refused(Exception):
    """Why a bundle is no task."""


class CUAGymFormat:
    """See the module."""

    def recognises(self, paths: Collection[str]) -> bool:
        """Whether there is a bundle, or a part of one."""
        return any(path.rpartition("/")[2] in ("task.json", "reward.py", "check.sh") for path in paths)

    def read(self, files: Mapping[str, bytes]) -> Iterator[Imported]:
        """One task for each bundle."""
        labels: dict[str, dict[str, Any]] = {}
        for path in (path for path in files if path.endswith("/tasks.parquet")):
            labels |= {str(row.get("id")): row for row in table_rows(files[path])}
        for folder, parts in _bundles(files).items():
            bundle = {part: f"{folder}/{part}" for part in parts}
            name = folder.rpartition("/")[2] or "bundle"
            try:
                name, raw, needs, fields = _task({part: files[path] for part, path in bundle.items()}, name)
            except Refused as reason:
                yield Imported(name, None, folder, reason=str(reason))
                continue
            row = {**fields, **labels.get(name, {})}
            known = {ours: str(row[theirs]) for theirs, ours in _LABELS.items() if row.get(theirs)}
            yield Imported(name, raw, folder, {**known, "needs": "; ".join(needs)})


def _bundles(paths: Collection[str]) -> dict[str, list[str]]:
    """Paths within each bundle, by the bundle's: the topmost directories that hold a part of one. Pure."""
    marked = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] in _PARTS}
    found: dict[str, list[str]] = {}
    for path in paths:
        end = -1
        while (end := path.find("/", end + 1)) >= 0:
            if path[:end] in marked:
                found.setdefault(path[:end], []).append(path[end + 1 :])
                break
    return found


def _task(parts: Mapping[str, bytes], name: str) -> tuple[str, dict[str, Any], list[str], dict[str, Any]]:
    newer = "check.sh" in parts or "instruction.md" in parts
    name, raw, fields = _newer(parts, name) if newer else _of_data_set(parts)
    text = "\n".join(data.decode(errors="replace") for path, data in parts.items() if path.endswith(_TEXTS))
    addresses = {found[0]: (found[1] or found[2]).lower().replace("_", "-") for found in _SITE.finditer(text)}
    if addresses:
        raw["dart"]["addresses"] = addresses
        raw["dart"]["desktop"] = {**raw["dart"]["desktop"], "sites": sorted({*addresses.values()})}
    return name, raw, _needs(text, raw["config"], {*addresses.values()}), fields


def _of_data_set(parts: Mapping[str, bytes]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    task = _json(parts, "task.json")
    for key in ("id", "instruction"):
        if not isinstance(task.get(key), str) or not task[key].strip():
            raise Refused(f"its task.json has no text {key!r}")
    evaluator = task.get("evaluator") or {"type": "python", "url": "./reward.py"}
    steps = task.get("config") or []
    if not isinstance(evaluator, dict) or not isinstance(steps, list):
        raise Refused("'evaluator' must be an object and 'config' a list in its task.json")
    if "func" not in evaluator:
        if evaluator.get("type") != "python":
            raise Refused(f"its evaluator is of the type {evaluator.get('type')!r}, not 'python'")
        _python(parts, _inside(parts, evaluator.get("url", "./reward.py"), "the evaluator"))
    config = [*_steps(parts, steps)]
    dart = _on_osworlds_machine(task.get("dart"))
    if "golden_patch.py" in parts:
        dart["golden"] = [_staged({"golden_patch.py": "/tmp/golden_patch.py"}), _script("python3 /tmp/golden_patch.py")]
    raw = {**task, "config": config, "evaluator": evaluator, "dart": dart}
    return task["id"], raw, task


def _steps(parts: Mapping[str, bytes], steps: list[Any]) -> Iterator[dict[str, Any]]:
    """The steps, those that run a program of the bundle such that its failure is one."""
    programs: set[str] = set()
    for step in steps:
        if not isinstance(step, dict) or not isinstance(step.get("parameters") or {}, dict):
            raise Refused(f"a step of its config is no object with parameters: {step!r:.100}")
        values = step.get("parameters") or {}
        if step.get("type") == "download":
            for entry in values.get("files") or []:
                url, path = str(entry.get("url")), str(entry.get("path"))
                if "://" not in url:
                    programs |= {path} if _inside(parts, url, "a download") and path.endswith((".py", ".sh")) else set()
        command = values.get("command")
        words = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        runs = step.get("type") in ("execute", "command") and any(program in words for program in programs)
        yield {**step, "type": "run_script"} if runs else step


def _newer(parts: Mapping[str, bytes], name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    for part in ("instruction.md", "meta.json", "setup.sh", "check.sh"):
        if not parts.get(part, b"").strip():
            raise Refused(f"it has no {part}, or an empty one")
    meta = _json(parts, "meta.json")
    name = meta["id"] if isinstance(meta.get("id"), str) and meta["id"] else name
    visible = {path: f"{WORKSPACE}/{path.removeprefix('exec/')}" for path in parts if path.startswith("exec/")}
    hidden = {path: f"{WORKSPACE}/.uda_{path}" for path in parts if path.startswith("hidden/")}
    raw = {
        "id": name,
        "instruction": parts["instruction.md"].decode(errors="replace").strip(),
        "config": [
            _script(f"mkdir -p {WORKSPACE}/results"),
            _staged({**visible, **hidden, "setup.sh": SETUP}),
            {"type": "run_script", "parameters": {"command": f"bash {SETUP}", "seconds": 600}},
            _script(f"rm -rf {WORKSPACE}/.uda_hidden {SETUP}"),
        ],
        "evaluator": {"type": "bash", "url": "./check.sh"},
        "dart": _on_osworlds_machine(meta.get("dart")),
        "meta": meta,
    }
    runtime = meta.get("runtime") if isinstance(meta.get("runtime"), dict) else {}
    return name, raw, {"app_type": runtime.get("profile"), "difficulty": meta.get("difficulty")}


def _on_osworlds_machine(given: Any) -> dict[str, Any]:
    """The key "dart" of a task, by which a bundle may bring its oracle, its steps and its screen's size."""
    dart = given if isinstance(given, dict) else {}
    desktop = dart.get("desktop") or {}
    return {**dart, "desktop": {"profile": "osworld", **desktop} if isinstance(desktop, dict) else desktop}


def _staged(files: Mapping[str, str]) -> dict[str, Any]:
    entries = [{"url": f"./{path}", "path": target} for path, target in files.items()]
    return {"type": "download", "parameters": {"files": entries}}


def _script(command: str) -> dict[str, Any]:
    return {"type": "run_script", "parameters": {"command": command}}


def _json(parts: Mapping[str, bytes], part: str) -> dict[str, Any]:
    if part not in parts:
        raise Refused(f"it has no {part}")
    try:
        values = json.loads(parts[part])
    except (ValueError, RecursionError) as error:
        raise Refused(f"its {part} is not JSON: {str(error)[:120]}") from None
    if not isinstance(values, dict):
        raise Refused(f"its {part} is no JSON object")
    return values


def _inside(parts: Mapping[str, bytes], url: Any, what: str) -> str:
    path = PurePosixPath(str(url))
    if path.is_absolute() or ".." in path.parts:
        raise Refused(f"{what} names a file outside of the bundle: {str(url)!r}")
    if str(path) not in parts:
        raise Refused(f"it has no {path}, which {what} names")
    return str(path)


def _python(parts: Mapping[str, bytes], part: str) -> None:
    if not parts[part].strip():
        raise Refused(f"its {part} is empty")
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(parts[part], part, "exec", dont_inherit=True)  # nothing is executed
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"its {part} is not Python: {str(error)[:120]}") from None


def _needs(text: str, steps: list[dict[str, Any]], sites: set[str]) -> list[str]:
    """What a bundle needs that is not here."""
    absent = sorted(sites - site_folders(os.environ.get(FOLDERS_VARIABLE, "")).keys()) if sites else []
    found = [f"the mock sites {', '.join(absent)} (let {FOLDERS_VARIABLE} name them)"] if absent else []
    if "CUA_GYM_ADMIN_TOKEN" in text:
        found.append("a mock site and its CUA_GYM_ADMIN_TOKEN")
    if "UDA_GYM_HARNESS_STATE_DIR" in text and not found:
        found.append("a web application of its own (UDA_GYM_HARNESS_STATE_DIR)")
    if "reward_judge" in text:
        found.append("an LLM as judge (reward_judge)")
    kinds = sorted({str(step.get("type")) for step in steps} - HANDLERS.keys())
    return found + [f"set-up steps that are not supported: {', '.join(kinds)}"] * bool(kinds)
