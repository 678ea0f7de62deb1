"""One tiny model for all tests of the package; its tokenizer and image processing need no torch."""

from pathlib import Path

import pytest

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model, write_processing

CONFIG = TinyModelConfig(vision_layers=2)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny"), seed=1, config=CONFIG)


@pytest.fixture(scope="session")
def processing_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("processing")
    write_processing(directory, CONFIG)
    return directory


@pytest.fixture(scope="session")
def tokens(processing_dir: Path) -> ModelTokens:
    return ModelTokens.load(processing_dir)


@pytest.fixture(scope="session")
def vision(processing_dir: Path) -> VisionSpec:
    return VisionSpec.from_dir(processing_dir)
