"""The same numbers as TRL's `AsyncGRPOTrainer`, loss and gradients, and what its page says that it cannot do.

TRL's own code runs from its queue to the loss: its batches, prefix trees, head and clip. `dart_lab.train.trl_async`
says which parts that need CUDA or vLLM are replaced.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_lab.train.trl_async import GivenRows, make_trainer, row_of, samples_of, without_gpu
from dart_train.trainer import losses
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch, Sample
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.weights.model_loading import load_model

pytestmark = pytest.mark.train

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
ADVANTAGES = (1.2, -0.7, 0.4, -0.9)
EPSILON = {"epsilon": 0.05, "epsilon_high": 0.1}
FIRST = ("Action: wait()", "Action: wait() and more", "Action: click(start_box='(12,34)')", "Action: finished()")


def build(directory: Path, family: str) -> Path:
    """A tiny model whose answers are not all as likely."""
    shape = TinyModelConfig(
        family, hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1, edge_std=0.5
    )
    return build_tiny_model(directory, seed=1, config=shape)


def play(tokens: ModelTokens) -> list[list[Sample]]:
    """Three groups of four: single replies, conversations of three turns, and conversations cut short by a rewrite."""

    def ask(text: str) -> tuple[int, ...]:
        return tuple((tokens.im_start_id, *tokens.encode(f"user\n{text}"), tokens.im_end_id, *tokens.encode("\n")))

    answer = (tokens.im_start_id, *tokens.encode("assistant\n"))
    episodes: list[list[Sample]] = []
    for group, turns in ((0, 1), (1, 3), (2, 2)):
        for member in range(4):
            history, found = ask("Click on the tab"), []
            for turn in range(turns):
                text = FIRST[member] if turn == turns - 1 else FIRST[(member // 2 + turn) % 4]  # pairs begin alike
                reply = tuple(tokens.response(text))
                found.append(Sample((*history, *answer), (), reply, (), ADVANTAGES[member], group, len(episodes)))
                history = (*history, *answer, *reply, *tokens.encode("\n"), *ask("and then"))
                if group == 2:
                    history = ask("Close the dialog")
            episodes.append(found)
    return episodes


class Scene:
    """A model and what was sampled of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokens = ModelTokens.load(directory)
        self.model = load_model(directory, dtype=torch.float64)
        self.model.set_experts_implementation("eager")  # the grouped product takes no float64
        images = ImageCache({}.__getitem__)
        self.collator = Collator(self.tokens, VisionSpec.from_dir(directory), images)
        self.episodes = self._sampled(play(self.tokens))

    def _sampled(self, episodes: list[list[Sample]]) -> list[list[Sample]]:
        """The same with log-probabilities: some near the model, some not so near."""
        flat = [turn for episode in episodes for turn in episode]
        batch = self.collator(flat)
        with torch.no_grad():
            logprobs = response_logprobs(self.model, batch, ())[0][batch.sample_index.argsort()]
        noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(3))
        noise *= torch.tensor([0.02, 0.4])[torch.arange(len(flat)) % 2, None]
        rows = iter((logprobs + noise).clamp(max=0.0))
        return [
            [dataclasses.replace(turn, logprobs=tuple(next(rows)[: len(turn.response_ids)].tolist())) for turn in one]
            for one in episodes
        ]

    def trls_rows(self) -> list[Any]:
        """Rows as TRL's worker hands them over: one for a conversation, two where its history was rewritten."""
        whole = [[one] if one[0].group != 2 else [[turn] for turn in one] for one in self.episodes]
        return [row_of(part) for parts in whole for part in parts]


@pytest.fixture(scope="module", params=FAMILIES)
def scene(request, tmp_path_factory) -> Scene:
    return Scene(build(tmp_path_factory.mktemp(request.param) / "model", request.param))


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with without_gpu():
        yield


def trl_batches(scene: Scene, place: Path, rows: list[Any], size: int, **settings: Any) -> tuple[Any, list[Any]]:
    """TRL's trainer, and batches of `size` rows that came through its queue."""
    settings = EPSILON | {"per_device_train_batch_size": size, "router_aux_loss_coef": None, "max_steps": 1} | settings
    if "moe" in scene.model.config.model_type:
        settings["router_aux_loss_coef"] = 0.0  # off by default in ours
        settings["model_init_kwargs"] = {"dtype": torch.float64, "experts_implementation": "eager"}
    ahead = rows[:size]  # its loader looks one batch ahead
    worker = GivenRows([*rows, *ahead])
    trainer = make_trainer(scene.directory, place, dtype=torch.float64, rollout_worker=worker, **settings)
    loader = iter(trainer.get_train_dataloader())
    batches = [next(loader) for _ in range(len(rows) // size)]
    trainer.model.train()
    return trainer, batches


def ours(model: Any, batch: MicroBatch, config: losses.ObjectiveConfig) -> losses.Objective:
    logprobs, entropies = response_logprobs(model, batch, ())
    scored = losses.Scored(
        logprobs, entropies, batch.behaviour_logprobs, batch.mask, batch.advantages,
        batch.behaviour_logprobs, batch.behaviour_known, weights=batch.weights,
    )  # fmt: skip
    return losses.objective(scored, config, losses.Normalizer(batch.num_tokens, len(batch.mask)))


def our_config(place: Path) -> losses.ObjectiveConfig:
    """The objective of the settings that the documentation names for this."""
    settings = DartGRPOConfig(
        output_dir=str(place), use_cpu=True, report_to="none", loss_type="dapo", old_logprobs="behaviour", beta=0.0,
        advantage="trajectory", delta=None, **EPSILON,
    )  # fmt: skip
    return settings.objective()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }


def test_loss_and_gradients_equal_those_of_trls_asynchronous_trainer(scene, tmp_path, on_cpu):
    rows = scene.trls_rows()
    trainer, (inputs,) = trl_batches(scene, tmp_path / "trl", rows, len(rows))
    trainer.current_gradient_accumulation_steps = 1  # set by the training loop of transformers
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    expected = float(loss.detach())
    batch = scene.collator([turn for episode in scene.episodes for turn in episode])
    model = copy.deepcopy(scene.model).train()
    objective = ours(model, batch, our_config(tmp_path))
    objective.loss.backward()
    assert abs(expected) > 1e-3
    assert float(objective.loss.detach()) == pytest.approx(expected, abs=1e-6)
    own, others = gradients(model), gradients(trainer.model)
    assert own.keys() == others.keys() and len(own) > 10
    norm = float(torch.nn.utils.get_total_norm(list(others.values())))
    assert norm > 1e-2
    for name, gradient in own.items():
        assert float((gradient - others[name]).abs().max()) <= 1e-6 * max(norm, 1.0), name
    clipped = float(objective.statistics["clip_ratio/region_mean"][batch.mask].float().mean())
    assert 0.05 < clipped < 0.95, "the clip has nothing to do, or nothing else has"
    # TRL's rows are prefix trees over everything, ours share the first prompt and what one episode repeats.
    assert int(inputs["attention_mask"].sum()) < batch.input_ids.numel() < sum(len(row.input_ids) for row in rows)


@pytest.mark.parametrize("scene", ["qwen2_5_vl"], indirect=True)
def test_micro_batches_of_trls_weigh_alike_and_ours_by_their_tokens(scene, tmp_path, on_cpu):
    rows = [row for row in scene.trls_rows() if row.group_id < 2]
    trainer, batches = trl_batches(scene, tmp_path / "trl", rows, 4, gradient_accumulation_steps=2)
    trainer.current_gradient_accumulation_steps = 2
    theirs = sum(float(trainer.compute_loss(trainer.model, inputs).detach()) for inputs in batches)
    config, model = our_config(tmp_path), scene.model
    groups = [[turn for one in scene.episodes[start : start + 4] for turn in one] for start in (0, 4)]
    with torch.no_grad():
        parts = [float(ours(model, scene.collator(group), config).loss) for group in groups]
        whole = float(ours(model, scene.collator(sum(groups, [])), config).loss)
    assert theirs == pytest.approx(sum(parts) / 2, abs=1e-6)
    assert abs(theirs - whole) > 1e-3


@pytest.mark.parametrize("scene", ["qwen2_5_vl"], indirect=True)
def test_a_row_comes_back_as_the_samples_that_it_was_made_of(scene):
    for episode in scene.episodes[:8]:
        found = samples_of(row_of(episode), episode[0].trajectory)
        assert [(one.prompt_ids, one.response_ids) for one in found] == [
            (one.prompt_ids, one.response_ids) for one in episode
        ]
        for one, other in zip(found, episode, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)


@pytest.mark.parametrize("scene", ["qwen2_5_vl"], indirect=True)
def test_trls_asynchronous_trainer_trains_the_text_model_alone_on_rows_without_images(scene, tmp_path, on_cpu):
    trainer, (inputs,) = trl_batches(scene, tmp_path, scene.trls_rows()[:4], 4)
    assert not [name for name in inputs if "pixel" in name or "image" in name]
    trained = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert trained and not [name for name in trained if "visual" in name]


def test_trls_asynchronous_trainer_refuses_recurrent_layers(tmp_path, on_cpu):
    directory = build(tmp_path / "model", "qwen3_5")
    with pytest.raises(ValueError, match="a recurrent or convolutional layer would scan across samples"):
        make_trainer(directory, tmp_path / "trl", rollout_worker=GivenRows([]), max_steps=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("scene", ["qwen2_5_vl"], indirect=True)
def test_trls_asynchronous_trainer_cannot_be_made_without_a_gpu(scene, tmp_path):
    with pytest.raises((AssertionError, RuntimeError), match="(?i)cuda"):
        make_trainer(scene.directory, tmp_path, rollout_worker=GivenRows([]), max_steps=1)


def test_what_is_replaced_are_parts_of_this_version():
    """`without_gpu` names parts inside TRL; look at them again with another version."""
    assert version("trl") == "1.16.0"
