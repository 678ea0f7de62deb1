"""Counts the files that a reader enters on five ways through the code: `python scripts/count_ways.py [CHECKOUT]`.

A way is a list of functions and classes, from where something begins to where it ends. Each is found by its name alone,
wherever it is defined, so that the same ways can be counted in another checkout. Between two of them lie the modules of
the shortest chain of imports, from the first to the second or, where the first is called back, from the second to the
first. All modules on the way count once; of chains of equal length the alphabet decides. Files named `__init__` do not
count.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("dart_gym", "dart_agent", "dart_train")
WAYS = {
    "task id -> desktop": (
        "DesktopEnv.reset", "Prefetch.fill", "Dispatcher.submit", "ClientSession.reset", "Operations.execute",
        "make_scenario", "Pool.acquire", "make_desktop", "KeptDesktop.start", "ForkClient.prepare", "ForkServer.serve",
        "DesktopKeeper.do_start", "Sandbox.listen_inside", "Stage.arguments", "confine", "Guest.boot",
    ),
    "action -> X": (
        "DesktopEnv.step", "Dispatcher.submit", "ClientSession.step", "Operations.execute", "KeptDesktop.perform",
        "encode_message", "DesktopKeeper.do_perform", "input_events", "Keyboard.next_batch",
    ),
    "trajectory -> store": (
        "Workers.run", "Rollout.step", "Recorder.put", "Recording.record", "checked_trajectory",
        "TrajectoryFiles.write_trajectory", "Storage.write", "insert_trajectory", "Store.write",
    ),
    "lease -> loss": (
        "DartGRPOTrainer.training_step", "LeaseSource.take", "Leasing.lease", "take", "build_batch", "member_of",
        "MiniBatch.split", "rows", "Collator.micro_batches", "ImageCache.get", "StepRunner.run", "response_logprobs",
        "Objective", "GRPO", "importance_ratio",
    ),
    "version -> engine": (
        "Publisher.publish", "write_version", "complete", "WeightSync.run", "EnginePool.start", "ReplicaLife.update",
        "UpdateLocks.held", "Wakeup.wake", "Replica.path_of", "why_unfit", "VLLMEngine.update_weights",
        "VLLMControl.update_weight_version", "Sender.send",
    ),
}  # fmt: skip
"""By way its stops: `function`, `Class` or `Class.method`."""
WHERE = {"take": "lease_rows", "complete": "checkpoint_rows", "rows": "samples"}
"""The module of a name that several modules define."""


def modules_of(root: Path) -> dict[str, ast.Module]:
    """Return the modules of the packages in a checkout, parsed, by dotted name."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        if "assets" not in path.parts
    }


def imports_of(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return by module the modules that it imports, wherever the statement stands, in the order of the alphabet."""
    found: dict[str, list[str]] = {}
    for name, tree in modules.items():
        targets: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                targets |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        found[name] = sorted((targets & modules.keys()) - {name})
    return found


def places_of(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the modules that define a function, a class, or a method as `Class.method`."""
    found: dict[str, list[str]] = {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for module, tree in modules.items():
        for node in tree.body:
            if isinstance(node, (*functions, ast.ClassDef)):
                found.setdefault(node.name, []).append(module)
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, functions):
                        found.setdefault(f"{node.name}.{method.name}", []).append(module)
    return found


def module_of(stop: str, places: Mapping[str, list[str]]) -> str:
    """Return the module of a stop.

    Raises:
        LookupError: if no module defines the name, or several do.
    """
    found = places.get(stop, [])
    if len(found) > 1 and stop in WHERE:
        found = [module for module in found if module.rpartition(".")[2] == WHERE[stop]]
    if len(found) != 1:
        raise LookupError(f"{stop} is defined in {', '.join(found) or 'no module'}: name the stops of WAYS anew")
    return found[0]


def _known(stop: str, places: Mapping[str, list[str]]) -> bool:
    try:
        return bool(module_of(stop, places))
    except LookupError:
        return False


def chain(graph: Mapping[str, list[str]], start: str, end: str) -> list[str] | None:
    """Return the shortest chain of imports between two modules, both included; None if there is none."""
    before: dict[str, str] = {start: ""}
    waiting = deque([start])
    while waiting and end not in before:
        module = waiting.popleft()
        for target in graph[module]:
            if target not in before:
                before[target] = module
                waiting.append(target)
    if end not in before:
        return None
    found = [end]
    while before[found[-1]]:
        found.append(before[found[-1]])
    return found[::-1]


def files_of(stops: tuple[str, ...], graph: Mapping[str, list[str]], places: Mapping[str, list[str]]) -> list[str]:
    """Return the modules that are entered from the first stop to the last, in their order."""
    known = [module_of(stop, places) for stop in stops]
    entered = dict.fromkeys(known[:1])
    for start, end in zip(known, known[1:], strict=False):
        entered |= dict.fromkeys(chain(graph, start, end) or (chain(graph, end, start) or [])[::-1] or [end])
    return [module for module in entered if not module.endswith("__init__")]


def counts(root: Path = ROOT, *, strict: bool = True) -> dict[str, list[str]]:
    """Return the files of each way in a checkout; unless `strict`, stops that it does not define are left out."""
    modules = modules_of(root)
    graph, places = imports_of(modules), places_of(modules)
    ways = (
        WAYS if strict else {way: tuple(stop for stop in stops if _known(stop, places)) for way, stops in WAYS.items()}
    )
    return {way: files_of(stops, graph, places) for way, stops in ways.items()}


def main(arguments: list[str]) -> None:
    """Print the table, and below it the files."""
    found = counts(Path(arguments[0]) if arguments else ROOT, strict=not arguments)
    print("| way | stops | files |\n|---|---|---|")
    for way, files in found.items():
        print(f"| {way} | {len(WAYS[way])} | {len(files)} |")
    for way, files in found.items():
        print(f"\n{way}: {', '.join(files)}")


if __name__ == "__main__":
    main(sys.argv[1:])
