"""One optimizer step on the same 64 completions with several images: TRL's `GRPOTrainer` and ours, in one process.

TRL's own trainer runs: its loop, its splitting of a generation batch into micro-batches, its forward pass and loss,
its optimizer step. Only what it would generate is given: prompts, completions, advantages, and patches that are cut as
its processor cuts them, once for each place of an image, within the measured time. Ours is given the same samples. Both
take micro-batches of as many tokens, on the same model, with the same loss; their gradient norms are compared.

Time is processor time: other processes do not lengthen it.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import build_tiny_model
from dart_lab.reporting.report import Aim, Report, median
from dart_lab.train.bench_models import TINY
from dart_lab.train.made_up_steps import Window, record_steps
from dart_lab.train.trainer_bench import peak_mb, reset_peak
from dart_train.core.train_errors import DartTrainError
from dart_train.trainer import losses
from dart_train.trainer.batches.collator import Collator, ImageCache, Sample
from dart_train.trainer.image_features import ImageFeatures, cut_ahead, features_pay
from dart_train.trainer.policy_logprobs import response_logprobs, tower_features
from dart_train.trainer.weights.model_loading import load_model

ROLLOUTS = 8
STEPS = 8
RESPONSE = 24
SCREEN = (224, 168)
TRL_ROWS = 8
"""Samples of one of TRL's micro-batches: eight of them are a step."""
WINDOWS = {"separate": Window(3), "merged": Window(6, block=5)}
"""Screenshots of a sliding window, each step in a row of its own; and of a block window, steps merged into rows."""
AIMS = {"vs_trl_separate": Aim(1.5, at_most=False), "vs_trl_merged": Aim(1.5, at_most=False)}
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step.

    Attributes:
        seconds: of the processor.
        peak_mb: most memory that the process had meanwhile above what it had before, in MiB.
        norm: of the gradient, before it was clipped.
    """

    seconds: float
    peak_mb: float
    norm: float


class Workbench:
    """A tiny Qwen2.5-VL and completions to train it on."""

    def __init__(self, directory: Path) -> None:
        self.dir = build_tiny_model(directory, config=TINY)
        self.tokens, self.vision = ModelTokens.load(self.dir), VisionSpec.from_dir(self.dir)
        rng = np.random.default_rng(0)
        names = [f"{rollout}-{step}" for rollout in range(ROLLOUTS) for step in range(STEPS)]
        width, height = SCREEN
        self.screens: dict[str, NDArray[np.uint8]] = {
            name: rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for name in names
        }

    def samples(self, window: Window) -> list[Sample]:
        """64 completions under a window."""
        words, found = self.tokens.encode("abcdefghijklmnopqrstuvwxyz"), []
        for rollout in range(ROLLOUTS):
            hashes = [f"{rollout}-{step}" for step in range(STEPS)]
            pads = [self.vision.num_tokens(self.screens[name]) for name in hashes]
            drawn = np.random.default_rng(rollout).choice(words, (STEPS, RESPONSE - 1)).tolist()
            responses = [[*ids, self.tokens.im_end_id] for ids in drawn]
            steps = record_steps(self.tokens, "Click on the tab", hashes, pads, responses, window)
            found += [
                Sample.from_step(step, advantage=(-1.0) ** rollout * (1 + rollout / 8), trajectory=rollout)
                for step in steps
            ]
        return found

    def ours(self, samples: Sequence[Sample], repeat: int, *, merged: bool) -> list[Step]:
        """Steps of this trainer's parts: rows, image features, loss, clip, AdamW."""
        model = load_model(self.dir).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        longest = max(sample.length for sample in samples)
        found = []
        for _ in range(repeat):
            before = _begin()
            started = time.process_time()
            images = ImageCache(self.screens.__getitem__, size=lambda name: self.screens[name].shape[:2])
            collator = Collator(
                self.tokens, self.vision, images, share_prompts=merged, merge_prefixes=merged, pack_rows=True
            )
            batches = collator.micro_batches(samples, TRL_ROWS * longest)
            features = None
            if features_pay(batches, trainable=True):
                features = ImageFeatures(partial(tower_features, model), trainable=True)
            for batch in cut_ahead(batches, features):
                logprobs, entropies = response_logprobs(model, batch, (), features=features)
                scored = losses.Scored(
                    logprobs,
                    entropies,
                    logprobs.detach(),
                    batch.mask,
                    batch.advantages,
                    batch.behaviour_logprobs,
                    batch.behaviour_known,
                )
                config = losses.ObjectiveConfig(losses.GRPO(epsilon=0.2, epsilon_high=0.2, delta=None), beta=0.0)
                normalizer = losses.Normalizer(sum(len(each.response_ids) for each in samples), len(samples))
                losses.objective(scored, config, normalizer).loss.backward()
            if features is not None:
                features.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            found.append(Step(time.process_time() - started, peak_mb(CPU) - before, norm))
        return found

    def trls(self, samples: Sequence[Sample], repeat: int) -> list[Step]:
        """Steps of TRL's trainer."""
        from datasets import Dataset
        from transformers import AutoModelForImageTextToText, AutoTokenizer, PrinterCallback
        from trl import GRPOConfig, GRPOTrainer

        with tempfile.TemporaryDirectory() as place:
            arguments = GRPOConfig(
                output_dir=place,
                use_cpu=True,
                bf16=False,
                beta=0.0,
                report_to="none",
                loss_type="grpo",
                epsilon=0.2,
                per_device_train_batch_size=TRL_ROWS,
                gradient_accumulation_steps=len(samples) // TRL_ROWS,
                num_generations=STEPS,
                max_completion_length=RESPONSE,
                gradient_checkpointing=False,
                max_steps=repeat,
                learning_rate=1e-6,
                lr_scheduler_type="constant",
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
                max_grad_norm=1.0,
                shuffle_dataset=False,
            )
            trainer = GRPOTrainer(
                model=AutoModelForImageTextToText.from_pretrained(self.dir, dtype=torch.float32),
                reward_funcs=_no_reward,
                args=arguments,
                train_dataset=Dataset.from_list([{"prompt": "a"}] * len(samples)),
                processing_class=AutoTokenizer.from_pretrained(self.dir),
            )
            trainer.remove_callback(PrinterCallback)
            clock = _clock(trainer)
            trainer.add_callback(clock)
            setattr(trainer, "_generate_and_score_completions", lambda inputs: self._inputs(samples))  # noqa: B010
            trainer.train()
        return clock.steps

    def _inputs(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Batch completions as TRL's trainer does: padded on both sides, an image for each place."""
        prompts = _padded([sample.prompt_ids for sample in samples], self.tokens.pad_id, left=True)
        responses = _padded([sample.response_ids for sample in samples], self.tokens.pad_id)
        prompt_mask = _padded([[1] * len(sample.prompt_ids) for sample in samples], 0, left=True)
        response_mask = _padded([[1] * len(sample.response_ids) for sample in samples], 0)
        images = [self.screens[name] for sample in samples for name in sample.image_hashes]
        ids = torch.cat([prompts, responses], 1)
        return {
            "prompt_ids": prompts,
            "prompt_mask": prompt_mask,
            "completion_ids": responses,
            "completion_mask": response_mask,
            "advantages": torch.tensor([sample.advantage for sample in samples]),
            "num_items_in_batch": response_mask.sum(),
            "pixel_values": torch.from_numpy(np.concatenate([self.vision.patchify(image) for image in images])),
            "image_grid_thw": torch.tensor([self.vision.grid(image) for image in images]),
            "num_images": [len(sample.image_hashes) for sample in samples],
            "mm_token_type_ids": (ids == self.tokens.image_pad_id).long(),
        }


def measure(repeat: int, progress: Callable[[str], None]) -> Report:
    """Both trainers on both windows.

    Args:
        repeat: steps that are measured of each, after one that warms up.
        progress: is told what runs.

    Raises:
        DartTrainError: the two come to different gradients, so that one of them does other work.
    """
    keys: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        bench = Workbench(Path(place))
        for name, window in WINDOWS.items():
            samples = bench.samples(window)
            progress(f"{name}: TRL")
            theirs = bench.trls(samples, repeat + 1)
            progress(f"{name}: ours")
            ours = bench.ours(samples, repeat + 1, merged=name == "merged")
            if not math.isclose(theirs[0].norm, ours[0].norm, rel_tol=1e-3):
                raise DartTrainError(
                    f"{name}: TRL's gradient has a norm of {theirs[0].norm}, ours {ours[0].norm}: they must be equal"
                )
            slow, fast = (median([step.seconds for step in steps[1:]]) for steps in (theirs, ours))
            keys |= {
                f"vs_trl_{name}": slow / fast,
                f"{name}_step_s": fast,
                f"{name}_step_s_trl": slow,
                f"{name}_peak_mb": max(step.peak_mb for step in ours[1:]),
                f"{name}_peak_mb_trl": max(step.peak_mb for step in theirs[1:]),
            }
    import trl

    notes = [
        f"one optimizer step on {ROLLOUTS * STEPS} completions of {RESPONSE} tokens, {ROLLOUTS} rollouts of {STEPS} "
        f"steps, screens of {SCREEN[0]}x{SCREEN[1]}; a tiny Qwen2.5-VL in float32, {TRL_ROWS} rows or as many tokens "
        f"in a micro-batch; TRL {trl.__version__}; processor time, median of {repeat}; memory above that before.",
        "separate: a window that slides over 3 screenshots, each step a row of its own here, too; merged: one that "
        "keeps 2 to 6 and drops 5 at once. Gradient norms are equal to 1e-3.",
    ]
    return Report("trl", keys, AIMS, notes)


def _no_reward(completions: Any, **others: Any) -> list[float | None]:
    """Advantages are given; TRL's trainer wants a function all the same."""
    return [0.0] * len(completions)


def _begin() -> float:
    """Return the memory of the process in MiB, and restart the measurement of its peak."""
    reset_peak(CPU)
    return peak_mb(CPU)


def _padded(rows: Sequence[Sequence[int]], value: int, *, left: bool = False) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows],
        batch_first=True,
        padding_value=value,
        padding_side="left" if left else "right",
    )


def _clock(trainer: Any) -> Any:
    """A callback of transformers that measures each step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.steps: list[Step] = []
            self.started = self.before = self.seconds = self.peak = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.before = _begin()
            self.started = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seconds = time.process_time() - self.started
            self.peak = peak_mb(CPU) - self.before

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "grad_norm" in (logs or {}):
                self.steps.append(Step(self.seconds, self.peak, float(logs["grad_norm"])))

    return Clock()
