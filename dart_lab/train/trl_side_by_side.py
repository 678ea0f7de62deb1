"""The same tiny task trained by TRL's `AsyncGRPOTrainer`, and by ours: alone, and on the rows that TRL trained.

The task has no images, since TRL's asynchronous trainer takes none: a question in text, and as reward the share of
sampled tokens that are numbers. TRL plays it with its own worker, on weights that are sent after each update. Then ours
takes the very rows, in the same batches, from the same first weights: each loss must be the same. At last ours plays
and trains by itself with the same settings. `trl_async` says what of TRL is replaced on this machine.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dart_agent.engines.base.engine import Prompt, Sampling
from dart_agent.engines.embedded.qwen_runner import QwenRunner
from dart_agent.engines.embedded.transformers_engine import TransformersEngine
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.outcomes import TerminalState
from dart_lab.reporting.report import Aim, Report
from dart_lab.train.trl_async import CompletionServer, EngineTransfer, make_trainer, samples_of, without_gpu
from dart_train.core.train_errors import DartTrainError
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.manager.data_manager import DataManager
from dart_train.trainer import losses
from dart_train.trainer.batches import lease_source
from dart_train.trainer.batches.collator import Collator, ImageCache
from dart_train.trainer.grpo_trainer import DartGRPOTrainer
from dart_train.trainer.losses.surrogates import DAPO
from dart_train.trainer.policy_logprobs import response_logprobs
from dart_train.trainer.settings.grpo_config import DartGRPOConfig
from dart_train.trainer.weights.model_loading import load_model, trainable

QUESTIONS = ("Click on the tab", "Close the dialog", "Select the button", "Enter the number")
GROUP, GROUPS = 8, 2
ROWS = GROUP * GROUPS
LENGTH = 8
"""Most tokens of a reply."""
RATE = 3e-3
EPSILON = 0.2
STALENESS = 4
SHAPE = TinyModelConfig(hidden_size=32, layers=2, intermediate_size=64, vision_hidden_size=32, vision_layers=1)
AIMS = {
    "loss_difference": Aim(1e-6, at_most=True),
    "weights_difference": Aim(1e-3, at_most=True),
}


@dataclass
class Training:
    """What a trainer did.

    Attributes:
        losses: of each update.
        rewards: mean of each batch that was trained, or played.
        rows: TRL's, in batches of `ROWS`; empty for ours.
        weights: at the end, by name, of what was trained.
    """

    losses: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def share_of_numbers(
    numbers: Collection[int], completions: Any, completion_ids: Sequence[Sequence[int]], **others: Any
) -> list[float]:
    """Return the share of each reply's tokens that are numbers; at module level, for TRL's child process."""
    return [sum(one in numbers for one in ids) / max(len(ids), 1) for ids in completion_ids]


class Task:
    """The task, and the model that both begin with."""

    def __init__(self, directory: Path) -> None:
        self.dir = build_tiny_model(directory, seed=1, config=SHAPE)
        self.tokens, self.vision = ModelTokens.load(self.dir), VisionSpec.from_dir(self.dir)
        self.numbers = frozenset(self.tokens.encode(str(number))[0] for number in range(SHAPE.numbers))
        self.reward = partial(share_of_numbers, self.numbers)

    def theirs(self, place: Path, updates: int) -> Training:
        """TRL's trainer, with its own worker as a process."""
        engine = TransformersEngine(self.dir)
        done = Training()
        with without_gpu(), CompletionServer(engine, self.tokens) as server:
            trainer = make_trainer(
                self.dir,
                place / "trl",
                dtype=torch.float64,
                prompts=[[{"role": "user", "content": question}] for question in QUESTIONS],
                weight_transfer=EngineTransfer(engine, place / "weights"),
                reward_funcs=self.reward,
                vllm_server_base_url=server.url,
                per_device_train_batch_size=ROWS,
                num_generations=GROUP,
                max_completion_length=LENGTH,
                max_steps=updates,
                learning_rate=RATE,
                epsilon=EPSILON,
                max_staleness=STALENESS,
            )
            taken = _Taken(trainer)
            trainer.rollout_queue = taken
            trainer.train()
        asyncio.run(engine.close())
        done.losses = trainer.losses
        done.rows = taken.rows[: ROWS * updates]  # its loader looks one batch ahead
        done.rewards = [
            sum(row.metrics["reward"] for row in done.rows[start : start + ROWS]) / ROWS
            for start in range(0, len(done.rows), ROWS)
        ]
        done.weights = _trained(trainer.model)
        return done

    def on_their_rows(self, rows: Sequence[Any]) -> Training:
        """Our rows, loss and AdamW on the batches that TRL trained."""
        model = trainable(load_model(self.dir, dtype=torch.float64), freeze_vision=True, lora=None).train()
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
        collator = Collator(self.tokens, self.vision, ImageCache(dict[str, Any]().__getitem__), pack_rows=True)
        loss_of = DAPO(epsilon=EPSILON, epsilon_high=EPSILON, delta=None)
        config = losses.ObjectiveConfig(loss_of, beta=0.0, tis_clip_max=None)
        done = Training()
        for start in range(0, len(rows), ROWS):
            numbered = enumerate(rows[start : start + ROWS])
            batch = collator([sample for number, row in numbered for sample in samples_of(row, number)])
            logprobs, entropies = response_logprobs(model, batch, ())
            sampled = batch.behaviour_logprobs
            scored = losses.Scored(
                logprobs, entropies, sampled, batch.mask, batch.advantages, sampled, batch.behaviour_known
            )
            loss = losses.objective(scored, config, losses.Normalizer(batch.num_tokens, len(batch.mask))).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done.losses.append(float(loss.detach()))
        done.weights = _trained(model)
        return done

    def ours(self, place: Path, updates: int) -> Training:
        """Our trainer, which plays two groups with its own weights whenever it waits for a lease."""
        curation = CurationConfig(group_size=GROUP, drop_no_signal=False)  # as TRL, which trains them with 0
        data = DataManager.open(f"sqlite:///{place}/data.sqlite", place / "data", "run", config=curation)
        arguments = DartGRPOConfig(
            output_dir=str(place / "ours"),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            loss_type="dapo",
            old_logprobs="behaviour",
            advantage="trajectory",
            beta=0.0,
            delta=None,
            epsilon=EPSILON,
            epsilon_high=EPSILON,
            top_entropy_quantile=1.0,
            freeze_vision=True,
            learning_rate=RATE,
            groups_per_step=GROUPS,
            max_steps=updates,
            save_steps=updates,
            publish_steps=updates,  # nobody else plays
        )
        done = Training()
        prompts = self._prompts()
        with patch.object(lease_source, "POLL_S", 0.01):
            trainer = DartGRPOTrainer(
                self.dir, arguments, data, stop=lambda: self._play(trainer, data, prompts, done.rewards)
            )
            trainer.run()
        done.weights = _trained(trainer.model)
        return done

    def _prompts(self) -> list[Prompt]:
        """The questions as TRL's worker asks them."""
        from transformers import AutoTokenizer
        from trl.chat_template_utils import qwen3_vl_chat_template

        reader: Any = AutoTokenizer.from_pretrained(self.dir)
        asked = [[{"role": "user", "content": question}] for question in QUESTIONS]
        options: dict[str, Any] = {
            "chat_template": qwen3_vl_chat_template,
            "add_generation_prompt": True,
            "return_dict": False,
        }
        return [Prompt(tuple(reader.apply_chat_template(messages, **options))) for messages in asked]

    def _play(self, trainer: DartGRPOTrainer, data: DataManager, prompts: list[Prompt], rewards: list[float]) -> bool:
        """Play a batch unless one is ahead already; returns that nothing is to be stopped."""
        played = len(rewards)
        if played > trainer.state.global_step + trainer.leases.passed:
            return False
        asked = [prompts[(GROUPS * played + group) % len(prompts)] for group in range(GROUPS) for _ in range(GROUP)]
        keys = [uuid.uuid4().hex for _ in range(GROUPS)]
        sampling = Sampling(LENGTH, training=True).completed(self.tokens)
        sampled = QwenRunner(trainer.model, self.vision).sample(asked, [sampling] * ROWS)
        version = trainer.publisher.version
        scores = share_of_numbers(self.numbers, None, [row.response_ids for row in sampled])
        for place, (prompt, row, score) in enumerate(zip(asked, sampled, scores, strict=True)):
            step = Step(prompt.token_ids, (), row.response_ids, row.logprobs, (version, version))
            trajectory = Trajectory(
                "numbers",
                0,
                "",
                "0",
                uuid.uuid4().hex,
                "run",
                keys[place // GROUP],
                terminal=TerminalState.DONE,
                score=score,
                steps=(step,),
            )
            data.record(trajectory, {})
        rewards.append(sum(scores) / ROWS)
        return False


class _Taken:
    """TRL's queue of rows, which remembers those that are trained."""

    def __init__(self, trainer: Any) -> None:
        self._queue, self._trainer = trainer.rollout_queue, trainer
        self.rows: list[Any] = []

    def get(self, timeout: float) -> Any:
        row = self._queue.get(timeout=timeout)
        if self._trainer.model_version - row.model_version <= STALENESS:  # TRL drops the others
            self.rows.append(row)
        return row

    def qsize(self) -> int:
        size: int = self._queue.qsize()
        return size


def measure(updates: int, progress: Callable[[str], None]) -> Report:
    """Both trainers on the task.

    Args:
        updates: of each trainer.
        progress: is told what runs.

    Raises:
        DartTrainError: if TRL trained fewer batches than it was asked to.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        task = Task(place / "model")
        progress("TRL")
        theirs = task.theirs(place, updates)
        if len(theirs.losses) != updates or len(theirs.rows) != ROWS * updates:
            raise DartTrainError(f"TRL made {len(theirs.losses)} updates of {len(theirs.rows)} rows, not {updates}")
        progress("ours, on TRL's rows")
        same = task.on_their_rows(theirs.rows)
        progress("ours")
        ours = task.ours(place, updates)
        start = _trained(load_model(task.dir, dtype=torch.float64))
    keys = {
        "updates": float(updates),
        "loss_difference": max(abs(a - b) for a, b in zip(theirs.losses, same.losses, strict=True)),
        "weights_difference": _distance(theirs.weights, same.weights) / _distance(theirs.weights, start),
        "reward_first_trl": _mean(theirs.rewards[:5]),
        "reward_last_trl": _mean(theirs.rewards[-5:]),
        "reward_first": _mean(ours.rewards[:5]),
        "reward_last": _mean(ours.rewards[-5:]),
    }
    import trl

    notes = [
        f"TRL {trl.__version__}; a tiny Qwen2.5-VL, the text model in float64; {GROUPS} groups of {GROUP} replies of "
        f"at most {LENGTH} tokens an update, AdamW at {RATE:g}; reward: the share of tokens that are numbers.",
        "loss_difference: the largest of all updates, ours on TRL's rows from the same first weights; "
        "weights_difference: how far apart both end, over how far they came. reward_first and reward_last: the first "
        "and last five batches. No GPU, no vLLM: dart_lab.train.trl_async says what stands in for them.",
    ]
    return Report("trl_async", keys, AIMS, notes)


def _trained(model: Any) -> dict[str, Tensor]:
    """The weights of the text part, by name."""
    return {name: item.detach().double() for name, item in model.named_parameters() if "visual" not in name}


def _distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Norm of the difference of all weights."""
    return float(torch.nn.utils.get_total_norm([left[name] - right[name] for name in left]))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
