"""The JSON schema of a run's configuration, by which editors complete and check it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dart_train.config.run_config import RunConfig


def config_schema() -> dict[str, Any]:
    """Return the schema of a run's configuration."""
    found = RunConfig.model_json_schema()
    task = found["$defs"]["TaskEntry"]
    found["$defs"]["TaskEntry"] = {"anyOf": [{"type": "string"}, task]}  # a name alone is an entry as well
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": made_with(), **found}


def made_with() -> str:
    """Versions of transformers, whose `TrainingArguments` the section `trainer` inherits, and of pydantic."""
    return ", ".join(f"{name} {version(name)}" for name in ("transformers", "pydantic"))
