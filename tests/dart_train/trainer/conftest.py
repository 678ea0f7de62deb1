"""A tiny untrained model, screenshots, and a run with recorded groups."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pytest
from training_lives import open_run

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.outcomes import TerminalState
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.files.trajectory_files import image_hash
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample

if TYPE_CHECKING:
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig

GROUP_SIZE = 4


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smaller even than the default tiny model, so that tests take seconds."""
    config = TinyModelConfig(hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
    return build_tiny_model(tmp_path_factory.mktemp("model"), seed=1, config=config)


@pytest.fixture(scope="session")
def tokens(model_dir: Path) -> ModelTokens:
    return ModelTokens.load(model_dir)


@pytest.fixture(scope="session")
def vision(model_dir: Path) -> VisionSpec:
    return VisionSpec.from_dir(model_dir)


@pytest.fixture(scope="session")
def screens() -> Mapping[str, np.ndarray]:
    """Screenshots of three sizes by content hash; all tests share them, so nobody can change them."""
    rng = np.random.default_rng(0)
    shapes = [(56, 84, 3), (56, 84, 3), (84, 56, 3), (28, 28, 3)]
    images = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    return MappingProxyType({image_hash(image): image for image in images})


@pytest.fixture
def collator(tokens: ModelTokens, vision: VisionSpec, screens: Mapping[str, np.ndarray]) -> Collator:
    return Collator(tokens, vision, ImageCache(screens.__getitem__))


@pytest.fixture(scope="session")
def make_prompt(
    tokens: ModelTokens, vision: VisionSpec, screens: Mapping[str, np.ndarray]
) -> Callable[..., tuple[int, ...]]:
    """Prompt ids of an instruction and the screenshots with these hashes, in the short layout."""

    def make(instruction: str, *hashes: str) -> tuple[int, ...]:
        ids = [tokens.im_start_id, *tokens.encode(f"user\n{instruction}")]
        for image in hashes:
            pads = [tokens.image_pad_id] * vision.num_tokens(screens[image])
            ids += [tokens.vision_start_id, *pads, tokens.vision_end_id]
        return (*ids, tokens.im_end_id, tokens.im_start_id, *tokens.encode("assistant\n"))

    return make


@pytest.fixture(scope="session")
def samples(
    tokens: ModelTokens, screens: Mapping[str, np.ndarray], make_prompt: Callable[..., tuple[int, ...]]
) -> list[Sample]:
    """Samples of all kinds: shared prompts, two images, none, responses of several lengths, unknown behaviour."""
    first, second, third, fourth = screens
    prompts = [
        (make_prompt("Click on the tab", first), (first,)),
        (make_prompt("Close the dialog", second, third), (second, third)),
        (make_prompt("no picture"), ()),
        (make_prompt("Click", fourth), (fourth,)),
    ]
    texts = ["Action: wait()", "Action: click(start_box='(12,34)')", "Action: click(start_box='(7,80)') and more"]
    made = []
    for index in range(10):
        prompt, hashes = prompts[index % 4]
        response = tuple(tokens.response(texts[index % 3]))
        logprobs = () if index == 3 else tuple(-0.1 * (place + index) for place in range(len(response)))
        advantage = float((-1) ** index * (1 + index))
        made.append(Sample(prompt, hashes, response, logprobs, advantage, group=index % 4, trajectory=index))
    return made


@pytest.fixture
def data(tmp_path: Path) -> DataManager:
    """An empty run."""
    curation = CurationConfig(group_size=GROUP_SIZE, max_staleness=None)
    return DataManager.open(f"sqlite:///{tmp_path}/data/dart.sqlite", tmp_path / "data", "run", config=curation)


def make_trajectory(steps: tuple[Step, ...], reward: float, group: str, **values: object) -> Trajectory:
    """A finished rollout."""
    fields = {
        "trajectory_id": uuid.uuid4().hex,
        "run_id": "run",
        "task_id": "fake/click",
        "task_hash": "0" * 16,
        "instruction": "Click on the tab",
        "seed": 0,
        "group_key": group,
        "terminal": TerminalState.DONE,
        "score": reward,
        "steps": steps,
    }
    return Trajectory(**(fields | values))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def record_into(
    screens: Mapping[str, np.ndarray], make_prompt: Callable[..., tuple[int, ...]], tokens: ModelTokens
) -> Callable[..., None]:
    """Record a group of one-step rollouts with the given rewards and prompts (ids, image hashes); the first of them
    may end unreadable, and a teacher may have answered each step."""

    def record(
        data: DataManager,
        key: str,
        rewards: tuple[float, ...] = (1.0, 0.0, 0.0, 1.0),
        logprob: float = -1.0,
        version: int = 0,
        prompts: Sequence[tuple[tuple[int, ...], tuple[str, ...]]] = (),
        unreadable: int = 0,
        target_ids: tuple[int, ...] = (),
    ) -> None:
        image = next(iter(screens))
        usual = (make_prompt("Click on the tab", image), (image,))
        for number, reward in enumerate(rewards):
            prompt, hashes = prompts[number] if prompts else usual
            response = tuple(tokens.response(f"Action: click(start_box='({number},9)')"))
            logprobs = (logprob,) * len(response)
            step = Step(prompt, hashes, response, logprobs, (version, version), target_ids=target_ids)
            terminal = TerminalState.PARSE_ERROR if number < unreadable else TerminalState.DONE
            trajectory = make_trajectory((step,), reward, key, terminal=terminal)
            data.record(trajectory, {name: screens[name] for name in hashes})

    return record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, record_into: Callable[..., None]) -> Path:
    """A run with six groups of unlike rewards; tests take copies of it (`training_lives.copy_run`)."""
    root = tmp_path_factory.mktemp("recorded")
    with open_run(root) as data:
        for number in range(6):
            rewards = tuple((float((number + place) % 4 < 2) + 0.1 * number * place) / 2.5 for place in range(4))
            record_into(data, f"g{number}", rewards, -6.0 - number / 4)
    return root


@pytest.fixture
def record_group(data: DataManager, record_into: Callable[..., None]) -> Callable[..., None]:
    """The same into the test's own run."""
    return functools.partial(record_into, data)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., DartGRPOConfig]:
    """A configuration for a CPU test."""
    from dart_train.trainer.settings.grpo_config import DartGRPOConfig  # takes seconds, and not every test needs it

    def make(**values: object) -> DartGRPOConfig:
        defaults = {
            "output_dir": str(tmp_path / "trainer"),
            "use_cpu": True,
            "beta": 0.0,
            "top_entropy_quantile": 1.0,
            "learning_rate": 1e-3,
            "groups_per_step": 2,
            "max_steps": 2,
            "torch_threads": 1,
            "report_to": "none",
        }
        return DartGRPOConfig(**(defaults | values))  # type: ignore[arg-type]

    return make
