"""A tiny model's directory, for its tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from dart_agent.models.tiny_model import TinyModelConfig, write_processing


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and processor files, no weights."""
    directory = tmp_path_factory.mktemp("tokens")
    write_processing(directory, TinyModelConfig())
    return directory
