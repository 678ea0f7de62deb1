"""The trained models that a configuration may name: directories of the package `dart-gym-demo-models`.

A checkout has that package in `integrations/demo_models`, and needs no installation of it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dart_gym.core.errors import MissingDependencyError
from dart_gym.core.project_pages import integration

PACKAGE = "dart_gym_demo_models"
NAMES = ("tiny-base", "tiny-copier", "tiny-actor", "tiny-multiturn-start", "tiny-multiturn")
DEMO_MODELS = {name: name.replace("-", "_") for name in NAMES}
"""Names that `model.path` and a teacher's `model` may have, and the directories in the package."""

_CHECKOUT = Path(__file__).resolve().parents[2] / "integrations" / "demo_models" / PACKAGE


def demo_models() -> Path:
    """Return the directory of the models.

    Raises:
        MissingDependencyError: if the package is not installed, and this is no checkout.
    """
    found = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
    for place in (*places, _CHECKOUT):
        if (place / "__init__.py").is_file():
            return place
    raise MissingDependencyError(
        f"the models {', '.join(DEMO_MODELS)} are in the package dart-gym-demo-models, which is not installed; next "
        f'step: {integration("demo_models")}, or model.path "tiny", which is built in place'
    )


def demo_model(name: str) -> Path:
    """Return the directory of a model by its name in `DEMO_MODELS`; errors as of `demo_models`."""
    return demo_models() / DEMO_MODELS[name]


def model_place(path: str) -> Path:
    """Return the directory of a model that is a demo model's name or a directory; errors as of `demo_models`."""
    return demo_model(path) if path in DEMO_MODELS else Path(path)
