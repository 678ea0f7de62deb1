"""Real parts for the rollout service: a tiny model, replica processes, a cluster of drawn desktops, a database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from pool_builders import make_weights

from dart_agent.engines.base.engine import Engine, Prompt, Sampling
from dart_agent.formats import get_format
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model, build_tokenizer
from dart_agent.policies.policy import Policy
from dart_agent.policies.vlm_policy import VLMPolicy
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.cluster.server.cluster_server import ClusterServer, ServerSettings
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager

SHORT = ConversationConfig(style="short", screenshots=1, texts=2)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smaller even than the default tiny model."""
    config = TinyModelConfig(hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
    return build_tiny_model(tmp_path_factory.mktemp("model"), seed=1, config=config)


@pytest.fixture
def weights_dir(tmp_path: Path) -> Path:
    """For engines that only echo."""
    return make_weights(tmp_path / "weights")


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> ModelTokens:
    """Those of the tiny model, made without importing torch."""
    directory = tmp_path_factory.mktemp("tokens")
    build_tokenizer(TinyModelConfig()).save(str(directory / "tokenizer.json"))
    return ModelTokens.load(directory)


@pytest.fixture(scope="session")
def vision() -> VisionSpec:
    """That of the tiny model."""
    return VisionSpec(temporal_patch_size=1, min_pixels=784, image_mean=(1.0,) * 3, image_std=(0.25,) * 3)


@pytest.fixture
def short() -> ConversationConfig:
    return SHORT


@pytest.fixture
def prompt(tokens: ModelTokens, vision: VisionSpec) -> Prompt:
    conversation = Conversation(tokens, vision, SHORT)
    conversation.begin("Click on the tab")
    conversation.observe(np.full((56, 84, 3), 255, np.uint8))
    return conversation.prompt()


@pytest.fixture
def sampling(tokens: ModelTokens) -> Sampling:
    return Sampling(max_tokens=8, seed=1, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids)


@pytest.fixture
def make_policy(tokens: ModelTokens, vision: VisionSpec) -> Callable[[Engine], Policy]:
    def build(engine: Engine) -> Policy:
        return VLMPolicy(
            engine,
            tokens=tokens,
            vision=vision,
            action_format=get_format("ui_tars"),
            conversation=SHORT,
            sampling=Sampling(max_tokens=8),
        )

    return build


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path."""
    path = Path(tempfile.mkdtemp(prefix="dart-test-"))
    yield path
    shutil.rmtree(path)


@pytest_asyncio.fixture
async def cluster_url(sockets: Path) -> AsyncIterator[str]:
    """Four drawn desktops."""
    url = f"ws+unix://{sockets / 'gym.sock'}"
    async with ClusterServer(ServerSettings(listen=url, desktops=4, suites=("*",))):
        yield url


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataManager]:
    config = CurationConfig(group_size=4, drop_no_signal=False, batches_ahead=None, max_staleness=None)
    url = f"sqlite:///{tmp_path / 'data' / 'dart.sqlite'}"
    with DataManager.open(url, tmp_path / "data", "run", config=config) as manager:
        yield manager
