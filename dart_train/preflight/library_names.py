"""Names that the installed transformers knows, read off its source: importing it takes seconds, and torch."""

import ast
import functools
import importlib.util
from pathlib import Path


def _source(module: str) -> ast.Module:
    package = importlib.util.find_spec("transformers")
    if package is None or not package.submodule_search_locations:
        return ast.Module([], [])
    return ast.parse(Path(package.submodule_search_locations[0], module).read_text(encoding="utf-8"))


def _members(module: str, name: str) -> frozenset[str]:
    """Values of an enumeration."""
    body = next(
        (node.body for node in _source(module).body if isinstance(node, ast.ClassDef) and node.name == name), []
    )
    values = (
        node.value.value for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    )
    return frozenset(map(str, values))


@functools.cache
def optimizers() -> frozenset[str]:
    """Names of optimizers; empty where transformers is not installed or has another layout."""
    return _members("training_args.py", "OptimizerNames")


@functools.cache
def schedules() -> frozenset[str]:
    """Names of learning rate schedules; empty as `optimizers`."""
    return _members("trainer_utils.py", "SchedulerType")


@functools.cache
def trackers() -> frozenset[str]:
    """Names of trackers of metrics; empty as `optimizers`."""
    for node in _source("integrations/integration_utils.py").body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if any(isinstance(target, ast.Name) and target.id == "INTEGRATION_TO_CALLBACK" for target in node.targets):
                return frozenset(str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
    return frozenset()
