"""The whole of it learns: supervised training on any clicks gives a policy that clicks anywhere,
then its own rollouts are graded, recorded, leased and trained until it clicks where it should.
"""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import numpy as np
import pytest

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.outcomes import TerminalState
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer.batches import lease_source
from dart_train.trainer.batches.demonstrations import Demonstration, encode
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.supervised import SupervisedConfig, train_supervised

pytestmark = pytest.mark.train

INSTRUCTIONS = ("Yes", "No", "OK")
ANSWERS = tuple(f"Action: click(start_box='({place},9)')" for place in (10, 40, 70))
GROUP_SIZE = 16


@pytest.fixture(scope="module")
def conversation(tokens, vision) -> Conversation:
    return Conversation(tokens, vision, ConversationConfig(style="short", screenshots=1))


@pytest.fixture(scope="module")
def warm_dir(tmp_path_factory, model_dir, conversation, tokens, screens) -> Path:
    """A model that clicks well, but mostly not where it was asked to."""
    image = next(iter(screens))
    pairs = [*itertools.product(INSTRUCTIONS, ANSWERS), *zip(INSTRUCTIONS, ANSWERS, strict=True)]
    demonstrations = [Demonstration("bandit", text, (image,), (answer,)) for text, answer in pairs] * 3
    samples = encode(demonstrations, conversation, tokens, screens.__getitem__)
    target = tmp_path_factory.mktemp("warm") / "model"
    config = SupervisedConfig(max_steps=100, learning_rate=5e-3, warmup_steps=5, threads=1)
    progress = train_supervised(model_dir, samples, screens.__getitem__, target, config)
    assert progress.steps == 100 and progress.loss < 0.5
    return target


@pytest.fixture
def data(tmp_path: Path) -> DataManager:
    curation = CurationConfig(group_size=GROUP_SIZE)
    return DataManager.open(f"sqlite:///{tmp_path}/data/dart.sqlite", tmp_path / "data", "run", config=curation)


class Bandit:
    """Plays one group of each instruction with the trainer's own weights whenever a lease is wanted."""

    def __init__(self, data: DataManager, conversation, tokens, vision, screens) -> None:
        self.data, self.conversation, self.tokens, self.vision, self.screens = (
            data, conversation, tokens, vision, screens,
        )  # fmt: skip
        self.rewards: list[float] = []
        self.trainer: DartGRPOTrainer

    def play(self) -> bool:
        image = next(iter(self.screens))
        sampling = Sampling(max_tokens=8, stop_ids=self.tokens.stop_ids, suppressed_ids=self.tokens.suppressed_ids)
        cases = [(text, uuid.uuid4().hex) for text in INSTRUCTIONS] * GROUP_SIZE
        prompts = [self.prompt(text, image) for text, _ in cases]
        rows = QwenRunner(self.trainer.model, self.vision).sample(prompts, [sampling] * len(prompts))
        version = self.trainer.publisher.version
        rewards = []
        for (text, key), prompt, row in zip(cases, prompts, rows, strict=True):
            reward = float(self.tokens.decode(row.response_ids) == ANSWERS[INSTRUCTIONS.index(text)])
            step = Step(prompt.token_ids, (image,), row.response_ids, row.logprobs, (version, version))
            trajectory = Trajectory(
                f"bandit/{text}",
                0,
                text,
                "0",
                uuid.uuid4().hex,
                "run",
                key,
                terminal=TerminalState.DONE,
                score=reward,
                steps=(step,),
            )
            self.data.record(trajectory, {image: self.screens[image]})
            rewards.append(reward)
        self.rewards.append(float(np.mean(rewards)))
        return len(self.rewards) >= 60

    def prompt(self, text: str, image: str) -> Prompt:
        self.conversation.begin(text)
        self.conversation.observe(self.screens[image])
        return self.conversation.prompt()


def learn(bandit: Bandit, warm_dir: Path, **values: object) -> list[float]:
    bandit.trainer = DartGRPOTrainer(warm_dir, values.pop("config"), bandit.data, stop=bandit.play)
    bandit.trainer.run()
    return bandit.rewards


@pytest.fixture
def bandit(data, conversation, tokens, vision, screens, monkeypatch) -> Bandit:
    monkeypatch.setattr(lease_source, "POLL_S", 0.01)
    return Bandit(data, conversation, tokens, vision, screens)


SETTINGS = {
    "learning_rate": 3e-3, "loss_type": "dapo", "scale_rewards": "none", "groups_per_step": 3,
    "min_groups_per_step": 1, "max_steps": 50, "save_steps": 50,
}  # fmt: skip


@pytest.mark.thorough
def test_learns_what_is_rewarded(bandit, make_config, warm_dir):
    rewards = learn(bandit, warm_dir, config=make_config(**SETTINGS))
    assert np.mean(rewards[:5]) < 0.5
    assert np.mean(rewards[-8:]) > 0.85


@pytest.mark.slow
def test_learns_nothing_from_shuffled_rewards(bandit, make_config, warm_dir):
    rewards = learn(bandit, warm_dir, config=make_config(**SETTINGS, shuffle_rewards=True))
    assert np.mean(rewards[-10:]) < 0.6
