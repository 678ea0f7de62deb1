"""What a teacher says reaches the loss as its formulas say, and makes learnable what rewards leave at 0."""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.prompting.conversation import Conversation, ConversationConfig
from dart_gym.core.outcomes import TerminalState
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.data.manager.leasing import Group
from dart_train.trainer.batches import lease_source
from dart_train.trainer.batches.demonstrations import Demonstration, encode
from dart_train.trainer.batches.lease_source import Lease
from dart_train.trainer.batches.members import lessons_of
from dart_train.trainer.batches.optimizer_batch import build_batch
from dart_train.trainer.grpo_trainer import DartGRPOTrainer, step_settings
from dart_train.trainer.losses import taught_advantages
from dart_train.trainer.supervised import SupervisedConfig, train_supervised

pytestmark = pytest.mark.train

# --- the formula --------------------------------------------------------------------------------------------------

numbers = st.floats(-12, 0)


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=6), st.floats(-2, 2), st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_advantages_of_tokens_are_the_steps_and_the_log_ratio(rows, advantage, coef):
    old, teacher, known = (torch.tensor([column]) for column in zip(*rows, strict=True))
    found = taught_advantages(torch.tensor([advantage]), old, teacher, known, coef)
    expected = [advantage + coef * (q - p) if judged else advantage for p, q, judged in rows]
    assert found.expand(1, len(rows))[0].tolist() == pytest.approx(expected, abs=1e-5) if found.ndim == 2 else True
    assert found.ndim == (2 if coef and any(judged for *_, judged in rows) else 1)


def test_its_gradient_is_that_of_the_reverse_kl():
    """Over all tokens, each as often as the student samples it: autograd's gradient of the divergence itself."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    student = logits.log_softmax(0)
    (student.exp() * (student - teacher)).sum().backward()
    expected, logits.grad = logits.grad, None
    student = logits.log_softmax(0)
    old = student.detach()[:, None]
    known = torch.ones_like(old, dtype=torch.bool)
    advantages = taught_advantages(torch.zeros(7, dtype=torch.float64), old, teacher[:, None], known, 1.0)
    ratio = (student[:, None] - old).exp()
    (-(advantages * ratio)[:, 0] * student.detach().exp()).sum().backward()
    assert torch.allclose(logits.grad, expected, atol=1e-12)


# --- the batch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def taught_group(make_prompt, tokens, screens):
    image = next(iter(screens))

    def make(rewards: tuple[float, ...], *, targets: bool = False, judged: bool = False) -> Group:
        """A group of one-step rollouts; what a teacher said of each."""
        members = []
        for number, reward in enumerate(rewards):
            response = tuple(tokens.response(f"Action: click(start_box='({number},9)')"))
            step = Step(make_prompt("Click", image), (image,), response, (-1.0,) * len(response))
            if targets:
                step = replace(step, target_ids=tuple(tokens.response("Action: wait()")))
            if judged:
                step = replace(step, teacher_logprobs=tuple(-0.25 * place for place in range(len(response))))
            members.append(
                Trajectory(
                    "t", number, "Click", trajectory_id=uuid.uuid4().hex, run_id="run", group_key="g",
                    terminal=TerminalState.DONE, score=reward, steps=(step,),
                )
            )  # fmt: skip
        return Group("g", "t", tuple(members))

    return make


def built(groups, collator, config):
    chosen = step_settings(config)
    return build_batch(
        groups, collator, chosen.batch, version=0, rng=random.Random(0), max_tokens=chosen.micro_batch_tokens
    )


@pytest.mark.parametrize(
    ("when", "rewards", "taught"),
    [("never", (0.0, 0.0), 0), ("failed", (0.0, 0.0), 2), ("failed", (0.0, 1.0), 0), ("always", (0.0, 1.0), 2)],
)
def test_lessons_count_in_the_groups_that_they_are_for(taught_group, collator, make_config, when, rewards, taught):
    batch = built([taught_group(rewards, targets=True, judged=True)], collator, make_config(teacher_when=when))
    (part,) = batch.parts
    targets = [sample for sample in part.samples if sample.taught]
    assert len(targets) == taught and all(sample.supervised for sample in targets)
    assert part.normalizer.taught_tokens == sum(len(sample.response_ids) for sample in targets)
    assert part.normalizer.samples == 2 and part.normalizer.supervised_tokens == 0  # not among the reinforced ones
    assert sum(bool(sample.teacher_logprobs) for sample in part.samples) == taught
    assert batch.metrics["frac_no_signal"] == (0.0 if taught or any(rewards) else 1.0)
    assert batch.metrics.get("teacher/steps", 0.0) == 2 * taught


def test_a_success_from_the_pool_does_not_silence_the_teacher(taught_group, collator, make_config):
    """A group that failed as a whole gets one where there is any, and is still one in which no rollout got a reward."""
    group = taught_group((0.0, 0.0, 1.0), targets=True)
    joined = replace(group, injected=frozenset({group.trajectories[2].trajectory_id}))
    for found, taught in ((group, 0), (joined, 3)):
        (part,) = built([found], collator, make_config(teacher_when="failed")).parts
        assert sum(sample.taught for sample in part.samples) == taught


@pytest.mark.parametrize("rehearsed", [False, True])
def test_the_loss_of_a_step_is_that_of_an_independent_reference(
    taught_group, data, make_config, model_dir, screens, rehearsed
):
    """By the forward pass of the library over each sample alone, and the formulas in plain Python."""
    data.files.write_images(dict(screens))
    config = make_config(teacher_when="always", teacher_coef=0.7, loss_type="dapo", scale_rewards="none")
    groups = (taught_group((0.0, 1.0), judged=True), taught_group((0.0, 0.0), targets=True, judged=True))
    trainer = DartGRPOTrainer(model_dir, config, data)
    trainer.model.eval()
    earlier = taught_group((0.0, 0.0, 0.0), targets=True).trajectories if rehearsed else ()
    imitated = tuple(sample for item in earlier for sample in lessons_of(item))
    trainer.steps.begin(Lease(groups, 1, imitated=imitated), step=0, version=0, unpublished=0)
    found = sum(float(trainer.steps.loss(micro).detach()) for micro in trainer.steps.batch.micro_batches)
    total = cross = 0.0
    tokens = answers = 0
    for group in groups:
        mean = sum(group.rewards) / len(group.rewards)
        for item in group.trajectories:
            (step,) = item.steps
            own = reference_logprobs(trainer.model, step, step.response_ids, screens, trainer)
            for logprob, behaviour, teacher in zip(own, step.logprobs, step.teacher_logprobs, strict=True):
                advantage = (item.score - mean) + 0.7 * max(-20.0, min(20.0, teacher - logprob))
                total -= min(math.exp(logprob - behaviour), 1.0) * advantage  # the ratio is 1, the weight truncated
                tokens += 1
            if step.target_ids:
                cross -= sum(reference_logprobs(trainer.model, step, step.target_ids, screens, trainer))
                answers += len(step.target_ids)
    for item in earlier:
        (step,) = item.steps
        cross -= sum(reference_logprobs(trainer.model, step, step.target_ids, screens, trainer))
        answers += len(step.target_ids)
    assert found == pytest.approx(total / tokens + 0.7 * cross / answers, abs=1e-6)


def test_an_earlier_lesson_that_cannot_be_trained_on_is_left_out_and_counted(taught_group, collator, make_config):
    (item, _) = taught_group((0.0, 0.0), targets=True).trajectories
    (good,) = lessons_of(item)
    chosen = step_settings(make_config(teacher_when="failed"))
    batch = build_batch(
        [taught_group((0.0, 1.0))],
        collator,
        chosen.batch,
        version=0,
        rng=random.Random(0),
        max_tokens=chosen.micro_batch_tokens,
        demonstrations=[replace(good, response_ids=(10**6,)), good],
    )
    (part,) = batch.parts
    assert [sample.response_ids for sample in part.samples if sample.taught] == [good.response_ids]
    assert batch.metrics["dropped/unknown_token"] == 1


def reference_logprobs(model, step: Step, response: tuple[int, ...], screens, trainer) -> list[float]:
    from dart_agent.models.image_patches import VisionSpec
    from dart_agent.models.model_tokens import ModelTokens

    vision, tokens = VisionSpec.from_dir(trainer.model_dir), ModelTokens.load(trainer.model_dir)
    images = [screens[name] for name in step.image_hashes]
    ids = torch.tensor([[*step.prompt_ids, *response]])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.from_numpy(np.concatenate([vision.patchify(image) for image in images])),
            image_grid_thw=torch.tensor([vision.grid(image) for image in images]),
            mm_token_type_ids=(ids == tokens.image_pad_id).int(),
        ).logits[0].float()  # fmt: skip
    logits[:, list(tokens.suppressed_ids)] = -torch.inf
    start = len(step.prompt_ids)
    rows = logits[start - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


# --- learning -----------------------------------------------------------------------------------------------------

INSTRUCTIONS = ("Yes", "No", "OK")
ANSWERS = tuple(f"Action: click(start_box='({place},9)')" for place in (10, 40, 70))
GROUP_SIZE = 8


@pytest.fixture(scope="module")
def conversation(tokens, vision) -> Conversation:
    return Conversation(tokens, vision, ConversationConfig(style="short", screenshots=1))


def shown(model_dir: Path, target: Path, answers: tuple[str, ...], conversation, tokens, screens, steps: int) -> Path:
    """A model that was shown an answer to each instruction."""
    image = next(iter(screens))
    demonstrations = [
        Demonstration("bandit", instruction, (image,), (answer,))
        for instruction, answer in zip(INSTRUCTIONS, answers, strict=True)
    ]
    samples = encode(demonstrations * 6, conversation, tokens, screens.__getitem__)
    config = SupervisedConfig(max_steps=steps, learning_rate=5e-3, warmup_steps=5, threads=1)
    train_supervised(model_dir, samples, screens.__getitem__, target, config)
    return target


@pytest.fixture(scope="module")
def wrong_dir(tmp_path_factory, model_dir, conversation, tokens, screens) -> Path:
    """A student that knows how actions are written and always clicks on the wrong one."""
    target = tmp_path_factory.mktemp("taught") / "student"
    return shown(model_dir, target, (ANSWERS[1], ANSWERS[2], ANSWERS[0]), conversation, tokens, screens, 30)


class Failing:
    """Plays one group of each instruction with the trainer's weights whenever a lease is wanted, and has it taught."""

    def __init__(self, data: DataManager, conversation, tokens, vision, screens, teach) -> None:
        self.data = data
        self.conversation = conversation
        self.tokens = tokens
        self.vision = vision
        self.screens = screens
        self.teach = teach
        self.rewards: list[float] = []
        self.trainer: DartGRPOTrainer

    def play(self) -> bool:
        image = next(iter(self.screens))
        sampling = Sampling(max_tokens=12, stop_ids=self.tokens.stop_ids, suppressed_ids=self.tokens.suppressed_ids)
        cases = [(text, uuid.uuid4().hex) for text in INSTRUCTIONS] * GROUP_SIZE
        prompts = []
        for text, _ in cases:
            self.conversation.begin(text)
            self.conversation.observe(self.screens[image])
            prompts.append(self.conversation.prompt())
        rows = QwenRunner(self.trainer.model, self.vision).sample(prompts, [sampling] * len(prompts))
        answers = [ANSWERS[INSTRUCTIONS.index(text)] for text, _ in cases]
        lessons = self.teach(prompts, rows, sampling, answers)
        version = self.trainer.publisher.version
        rewards = []
        for (text, key), prompt, row, answer, lesson in zip(cases, prompts, rows, answers, lessons, strict=True):
            reward = float(self.tokens.decode(row.response_ids) == answer)
            step = Step(prompt.token_ids, (image,), row.response_ids, row.logprobs, (version, version), **lesson)
            names = {"trajectory_id": uuid.uuid4().hex, "run_id": "run", "group_key": key, "score": reward}
            item = Trajectory(f"bandit/{text}", 0, text, terminal=TerminalState.DONE, steps=(step,), **names)
            self.data.record(item, {image: self.screens[image]})
            rewards.append(reward)
        self.rewards.append(float(np.mean(rewards)))
        return len(self.rewards) >= 40 or (len(self.rewards) > 4 and not self.data.ready()[0])


def flat(prompts: list[Prompt], rows, sampling, answers) -> list[dict]:
    return [{}] * len(prompts)


@pytest.mark.thorough
@pytest.mark.parametrize("teacher", ["none", "dagger"])
def test_a_teacher_makes_learnable_what_flat_groups_leave_at_0(
    teacher, wrong_dir, tmp_path, conversation, tokens, vision, screens, make_config, monkeypatch
):
    monkeypatch.setattr(lease_source, "POLL_S", 0.01)
    curation = CurationConfig(group_size=GROUP_SIZE)
    data = DataManager.open(f"sqlite:///{tmp_path}/data/dart.sqlite", tmp_path / "data", "run", config=curation)

    def answer(prompts, rows, sampling, answers):
        return [{"target_ids": tuple(tokens.response(text)), "advice": text} for text in answers]

    teach = {"none": flat, "dagger": answer}[teacher]
    bandit = Failing(data, conversation, tokens, vision, screens, teach)
    config = make_config(
        learning_rate=6e-3, loss_type="dapo", scale_rewards="none", groups_per_step=3, min_groups_per_step=1,
        max_steps=40, save_steps=99, teacher_when="never" if teacher == "none" else "failed",
    )  # fmt: skip
    bandit.trainer = DartGRPOTrainer(wrong_dir, config, data, stop=bandit.play)
    bandit.trainer.run()
    counts = data.read(statistics.taught)
    assert np.mean(bandit.rewards[:3]) < 0.05
    if teacher == "none":
        assert max(bandit.rewards) < 0.1 and counts == statistics.TaughtCounts()
        return
    assert np.mean(bandit.rewards[-6:]) > 0.2
    assert counts.groups > 0 and counts.steps == sum(counts.episodes.values())
