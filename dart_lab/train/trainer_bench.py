"""Savings by merged rows and cached image work: one optimizer batch, with them and without, in one process.

Separate is the published way: each step is a row of its own, each of its screenshots is cut into patches and runs
through the vision tower for that row. Merged is this trainer's: steps that extend one another are one row, each
distinct screenshot is cut once and runs through the tower once a batch. Both compute the same loss, which is checked.
Time is that of collation, image work, forward and backward passes; the optimizer's step is the same in both. On the
CPU it is processor time, which other processes do not lengthen.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_gym.core.outcomes import TerminalState
from dart_lab.reporting.report import Aim, Report, median
from dart_lab.train.bench_models import Cost, prepare
from dart_lab.train.made_up_steps import Window, record_steps
from dart_lab.train.memory_bench import host_copy
from dart_train.core.device_peaks import peak_flops
from dart_train.core.train_errors import DartTrainError
from dart_train.data.manager.leasing import Group
from dart_train.trainer import losses
from dart_train.trainer.attention.kernels import at_hand
from dart_train.trainer.attention.segments import KernelName
from dart_train.trainer.batches.collator import Collator, ImageCache, MicroBatch, Sample
from dart_train.trainer.batches.lease_source import Lease
from dart_train.trainer.batches.members import BatchSettings
from dart_train.trainer.image_features import ImageFeatures, features_pay
from dart_train.trainer.memory.model_size import ModelSize
from dart_train.trainer.memory.rank_memory import Setting
from dart_train.trainer.memory.step_memory import StepMemory
from dart_train.trainer.policy_logprobs import Policy, Reference, base_model, response_logprobs, tower_features
from dart_train.trainer.step_runner import StepRunner, StepSettings
from dart_train.trainer.weights.model_loading import frozen_copy
from dart_train.trainer.weights.ranks import ALONE

AIMS = {
    "merged_speedup_window5": Aim(1.5, at_most=False),
    "merged_speedup_block": Aim(2.5, at_most=False),
    "feature_cache_growth": Aim(1.0, at_most=True),
    "host_copy_over_share": Aim(1.1, at_most=True),
    "dropped_steps_ratio": Aim(0.9, at_most=True),
}
FEATURE_BUDGET_MB = 1
WINDOWS = {"window5": Window(5), "block": Window(9, block=5), "narrow_block": Window(5, block=4)}
"""The published sliding window; a block window that never shows fewer than its five screenshots; one that never shows
more."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@dataclass(frozen=True, slots=True)
class Options:
    """The quantities that are measured.

    Attributes:
        device: "cpu" or "cuda".
        model: "tiny", "3b" or "7b".
        trajectories: in the batch.
        steps: of each trajectory.
        screen: (width, height) of screenshots.
        response: tokens of each response.
        micro_batch_tokens: most tokens in one forward pass.
        repeat: measurements of each way; the median counts.
    """

    device: str = "cpu"
    model: str = "tiny"
    trajectories: int = 1
    steps: int = 10
    screen: tuple[int, int] = (448, 336)
    response: int = 16
    micro_batch_tokens: int = 4096
    repeat: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measurement of one way.

    Attributes:
        seconds: of the batch.
        loss: of the batch.
        rows: that ran through the model.
        peak_mb: most memory meanwhile, in MiB: of the process, or of the device.
        flops: of forward and backward passes, recomputation left out.
        planned_ratio: what `rank_memory` says of gradients and passes, over what they took beyond what was held.
    """

    seconds: float
    loss: float
    rows: int
    peak_mb: float
    flops: float
    planned_ratio: float


class Workbench:
    """A model and made-up trajectories."""

    def __init__(self, options: Options, directory: Path) -> None:
        self.options = options
        self.device = torch.device(options.device)
        torch.manual_seed(0)
        self.model, model_dir = prepare(options.model, directory, self.device)
        self.tokens = ModelTokens.load(model_dir)
        self.vision = VisionSpec.from_dir(model_dir)
        self.trained_tower = any(item.requires_grad for item in base_model(self.model).model.visual.parameters())
        rng = np.random.default_rng(0)
        width, height = options.screen
        names = [f"{number}-{step}" for number in range(options.trajectories) for step in range(options.steps)]
        self.screens = {name: rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for name in names}
        self._rng = rng
        self.dtype = next(iter(self.model.parameters())).dtype
        shapes = {name: tuple(item.shape) for name, item in base_model(self.model).named_parameters()}
        self.size = ModelSize.of(self.model.config.to_dict(), shapes)

    def samples(self, window: Window) -> list[Sample]:
        """The steps of all trajectories under a window."""
        words = self.tokens.encode("abcdefghijklmnopqrstuvwxyz")
        found = []
        for number in range(self.options.trajectories):
            hashes = [f"{number}-{step}" for step in range(self.options.steps)]
            pads = [self.vision.num_tokens(self.screens[name]) for name in hashes]
            size = (self.options.steps, self.options.response - 1)
            drawn = np.random.default_rng(number).choice(words, size).tolist()
            responses = [[*response, self.tokens.im_end_id] for response in drawn]
            steps = record_steps(self.tokens, "Click on the tab", hashes, pads, responses, window)
            found += [Sample.from_step(step, advantage=(-1.0) ** number, trajectory=number) for step in steps]
        return found

    def run(self, samples: list[Sample], *, merged: bool, kernel: KernelName = "sdpa") -> Outcome:
        """One batch, from records to gradients."""
        self.model.zero_grad(set_to_none=True)
        reset_peak(self.device)
        before = peak_mb(self.device)
        started = clock(self.device)
        # Without a capacity the cache keeps one screenshot: each occurrence is cut again, as a processor does.
        images = ImageCache(self.screens.__getitem__, 2048 if merged else 0)
        collator = Collator(
            self.tokens, self.vision, images, share_prompts=False, merge_prefixes=merged, distinct_images=merged
        )
        batches = collator.micro_batches(samples, self.options.micro_batch_tokens)
        features = None
        if merged and features_pay(batches, trainable=self.trained_tower):
            tower = partial(tower_features, base_model(self.model), kernel=kernel)
            features = ImageFeatures(tower, trainable=self.trained_tower)
        loss = self._train(batches, samples, features, kernel)
        synchronize(self.device)
        seconds = clock(self.device) - started
        rows = sum(batch.rows for batch in batches)
        highest = peak_mb(self.device)
        planned = self._planned_mb(batches, features is not None) / max(highest - before, 1.0)
        return Outcome(seconds, loss, rows, highest, self._flops(batches, features is not None), planned)

    def _planned_mb(self, batches: list[MicroBatch], cached: bool) -> float:
        """Plan what gradients and the passes take beyond the weights, in MiB."""
        trained = [item for item in self.model.parameters() if item.requires_grad]
        setting = Setting(
            half=trained[0].dtype is not torch.float32,
            checkpointing=base_model(self.model).is_gradient_checkpointing,
            trains_tower=self.trained_tower,
            lora_rank=32 if self.model is not base_model(self.model) else 0,
        )
        found = StepMemory(self.size, setting).of(batches, recurring=cached)
        cast = found.passes["weights in half precision"]  # they are kept in it here
        passes = max(sum(found.passes.values()) - cast, found.tower_pass)
        return (sum(item.nbytes for item in trained) + passes) / 2**20

    def _train(
        self, batches: list[MicroBatch], samples: list[Sample], features: ImageFeatures | None, kernel: KernelName
    ) -> float:
        config = losses.ObjectiveConfig(losses.GRPO(epsilon=0.9, epsilon_high=9.0, delta=None), beta=0.0)
        normalizer = losses.Normalizer(sum(len(sample.response_ids) for sample in samples), len(samples))
        total = 0.0
        for batch in (batch.to(self.device) for batch in batches):
            logprobs, entropies = response_logprobs(
                self.model, batch, self.tokens.suppressed_ids, features=features, kernel=kernel
            )
            # pi_old a little beside pi, so that the value says something: it would be the mean advantage otherwise.
            scored = losses.Scored(
                logprobs,
                entropies,
                torch.full_like(logprobs, -6.4),
                batch.mask,
                batch.advantages,
                batch.behaviour_logprobs,
                batch.behaviour_known,
            )
            loss = losses.objective(scored, config, normalizer).loss
            loss.backward()
            total += float(loss.detach())
        if features is not None:
            features.backward()
        return total

    def feature_cache_mb(self, images: int) -> float:
        """Bound the memory of `images` images' features and gradients under a budget, in MiB."""
        screen = np.zeros((168, 112, 3), np.uint8)
        pads, response = self.vision.num_tokens(screen), [self.tokens.encode("a") + [self.tokens.im_end_id]]
        collator = Collator(self.tokens, self.vision, ImageCache(lambda name: screen + int(name) % 256, 2))
        features = ImageFeatures(
            partial(tower_features, base_model(self.model)),
            trainable=self.trained_tower,
            budget_bytes=FEATURE_BUDGET_MB << 20,
        )
        for name in map(str, range(images)):
            steps = record_steps(self.tokens, "Click", [name], [pads], response, Window(1))
            batch = collator([Sample.from_step(step) for step in steps]).to(self.device)
            total = torch.stack([item.sum() for item in features.of(batch)]).sum()
            if self.trained_tower:
                total.backward()
        features.backward()
        self.model.zero_grad(set_to_none=True)
        return features.peak_bytes / 2**20

    @cached_property
    def _reference(self) -> Reference:
        return Reference(frozen_copy(self.model, None, self.device), self.tokens.suppressed_ids, adapter_off=False)

    @cached_property
    def _memory(self) -> StepMemory:
        shapes = {name: tuple(item.shape) for name, item in self.model.named_parameters()}
        return StepMemory(ModelSize.of(self.model.config.to_dict(), shapes), Setting())  # no limit: never asked

    def step_s(
        self, samples: list[Sample], *, run_dropped: bool = False, recorded: Sequence[float] | None = None
    ) -> tuple[float, list[float]]:
        """Seconds of the gradient of one optimizer step by the trainer's own `StepRunner`, 80 % of the steps kept.

        Each step is a row of its own: in the middle of a merged row a dropped step is what later ones see.

        Args:
            samples: of a lease; their advantages are made of their places.
            run_dropped: whether the steps that the selection drops run all the same, for an entropy bonus of nothing.
            recorded: the entropies that the engine recorded; without recorded entropies a separate pass computes them.

        Returns:
            Seconds, and 1.0 for each sample that was kept, else 0.0.
        """
        members = [
            Trajectory(
                "t",
                0,
                trajectory_id=f"{number}",
                terminal=TerminalState.DONE,
                score=float(number % 2),
                steps=tuple(
                    Step(
                        one.prompt_ids,
                        one.image_hashes,
                        one.response_ids,
                        entropy=recorded[place] if recorded else None,
                    )
                    for place, one in enumerate(samples)
                    if one.trajectory == number
                ),
            )
            for number in range(self.options.trajectories)
        ]
        settings = StepSettings(
            losses.ObjectiveConfig(beta=0.1, entropy_coef=1e-12 if run_dropped else 0.0),
            BatchSettings(),
            losses.EntropySelection(0.8),
            recorded_entropies=recorded is not None,
            micro_batch_tokens=self.options.micro_batch_tokens,
        )
        images = ImageCache(self.screens.__getitem__, 2048)
        collator = Collator(self.tokens, self.vision, images, share_prompts=False, merge_prefixes=False)
        runner = StepRunner(
            settings,
            collator,
            Policy(self.model, self.tokens.suppressed_ids),
            self._reference,
            demonstrations=(),
            ranks=ALONE,
            device=self.device,
            memory=self._memory,
            backward=torch.Tensor.backward,
        )
        self.model.zero_grad(set_to_none=True)
        started = clock(self.device)
        runner.begin(Lease((Group("g", "t", tuple(members)),), 1), step=0, version=0, unpublished=0)
        runner.run(0, 1, 0)
        synchronize(self.device)
        seconds = clock(self.device) - started
        assert runner.batch is not None  # `begin` made it
        kept = {tuple(one.prompt_ids) for one in runner.batch.parts[0].samples}
        return seconds, [float(tuple(one.prompt_ids) in kept) for one in samples]

    def _flops(self, batches: list[MicroBatch], cached: bool) -> float:
        """Of the useful passes: forward, and twice that backward; adapters leave out the gradient of the weights."""
        cost = Cost.of(base_model(self.model))
        lengths = [segment.length for batch in batches for segment in batch.layout.segments]
        names = [name for batch in batches for name in batch.image_hashes]
        patches = [int(np.prod(batches[0].patches.grid(name))) for name in (dict.fromkeys(names) if cached else names)]
        text = cost.forward(lengths, sum(batch.num_tokens for batch in batches), [])
        tower = cost.forward([], 0, patches)
        adapters = self.model is not base_model(self.model)
        return text * (2 if adapters else 3) + tower * (3 if self.trained_tower else 1)


def measure(options: Options, progress: Callable[[str], None]) -> Report:
    """Run all four ways in turns.

    Raises:
        DartTrainError: there is no such device, or the two ways disagree about the loss.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise DartTrainError("torch finds no CUDA device: leave --device out, or install a torch built for CUDA")
    with tempfile.TemporaryDirectory() as scratch:
        progress(f"building the {options.model} model")
        bench = Workbench(options, Path(scratch))
        samples = {name: bench.samples(window) for name, window in WINDOWS.items()}
        cached = {images: bench.feature_cache_mb(images) for images in (64, 512)}
        ways = [(name, merged) for name in WINDOWS for merged in (False, True)]
        outcomes: dict[tuple[str, bool], list[Outcome]] = {way: [] for way in ways}
        for number in range(options.repeat + 1):
            for name, merged in ways:
                outcome = bench.run(samples[name], merged=merged)
                if number:  # the first round warms up
                    outcomes[name, merged].append(outcome)
                progress(f"{name}, {'merged' if merged else 'separate'}: {outcome.seconds:.2f} s")
        dropping = _dropping(bench, samples["window5"], options.repeat, progress)
        kernels = {
            (kernel, name): [bench.run(samples[name], merged=True, kernel=kernel) for _ in range(options.repeat + 1)]
            for kernel in at_hand(bench.device, bench.dtype)
            for name in WINDOWS
            if kernel != "sdpa" and options.device == "cuda"  # on a CPU there is none that trains
        }
        taken, parts = host_copy(2, Path(scratch) / "ranks")
    report = _report(options, samples, outcomes, bench.dtype)
    for (kernel, name), found in kernels.items():
        tokens = sum(sample.length for sample in samples[name])
        report.keys[f"{kernel}_{name}_tokens_per_s"] = tokens / median([item.seconds for item in found[1:]])
        report.keys[f"{kernel}_{name}_peak_mb"] = max(item.peak_mb for item in found)
    report.keys |= {"host_copy_mb_per_rank": taken, "host_copy_over_share": taken / parts}
    report.keys |= {"feature_cache_peak_mb": cached[512], "feature_cache_growth": cached[512] / cached[64]}
    report.keys |= dropping
    report.notes.append(
        "dropped_steps_ratio is one step of DART's objective (KL, 80 % of the steps by entropy) over the same with the "
        "dropped steps still run; dropped_steps_ratio_recorded, where the engine recorded the entropies, over that too."
    )
    report.notes.append(
        f"feature_cache_peak_mb is of 512 images under a budget of {FEATURE_BUDGET_MB} MiB, feature_cache_growth that "
        "over the peak of 64; host_copy is what each of two ranks takes while they read a model of 58 million weights "
        "and its reference, over what they hold of them."
    )
    return report


def _dropping(
    bench: Workbench, samples: list[Sample], repeat: int, progress: Callable[[str], None]
) -> dict[str, float]:
    """Measure a step that skips the samples dropped by its selection, relative to one that runs them."""
    _, kept = bench.step_s(samples)  # it warms up, and says what to record so that all drop the same steps
    ways: dict[str, dict[str, Any]] = {"": {}, "_recorded": {"recorded": kept}, "_whole": {"run_dropped": True}}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, way in ways.items():
            seconds, _ = bench.step_s(samples, **way)
            found[name].append(seconds)
            progress(f"a step{name}: {seconds:.2f} s")
    whole = median(found.pop("_whole"))
    return {f"dropped_steps_ratio{name}": median(seconds) / whole for name, seconds in found.items()}


def _report(
    options: Options,
    samples: dict[str, list[Sample]],
    outcomes: dict[tuple[str, bool], list[Outcome]],
    dtype: torch.dtype,
) -> Report:
    keys: dict[str, float] = {}
    for name in WINDOWS:
        separate, merged = outcomes[name, False], outcomes[name, True]
        check_equal(name, separate[0].loss, merged[0].loss, TOLERANCE[dtype])
        slow, fast = (median([item.seconds for item in way]) for way in (separate, merged))
        tokens = sum(sample.length for sample in samples[name])
        keys |= {
            f"merged_speedup_{name}": slow / fast,
            f"{name}_rows": merged[0].rows,
            f"{name}_rows_separate": separate[0].rows,
            f"{name}_tokens_per_s": tokens / fast,
            f"{name}_tokens_per_s_separate": tokens / slow,
            f"{name}_peak_mb": max(item.peak_mb for item in merged),
            f"{name}_peak_mb_separate": max(item.peak_mb for item in separate),
            f"{name}_planned_over_measured": max(item.planned_ratio for item in merged),
        }
        peak = peak_flops(torch.cuda.get_device_name()) if options.device == "cuda" else None
        if peak:
            keys[f"{name}_mfu"] = merged[0].flops / fast / peak
            keys[f"{name}_mfu_separate"] = separate[0].flops / slow / peak
    published = median([item.seconds for item in outcomes["window5", False]])
    keys["block_speedup_to_published"] = published / median([item.seconds for item in outcomes["block", True]])
    keys |= {"tokens_per_s": keys["window5_tokens_per_s"], "peak_mb": keys["window5_peak_mb"]}
    width, height = options.screen
    device = torch.cuda.get_device_name() if options.device == "cuda" else "the CPU"
    notes = [
        f"{options.trajectories} trajectories of {options.steps} steps, screens of {width}x{height}, "
        f"{options.response} tokens a response; the {options.model} model with random weights on {device}, "
        f"{str(dtype).removeprefix('torch.')}, micro-batches of {options.micro_batch_tokens} tokens, "
        f"median of {options.repeat}.",
        "tokens are those of the records, prompts and responses of every step, whichever way they are trained; "
        "window5 slides over 5 screenshots, block keeps 5 to 9 and drops 5 at once, narrow_block keeps 2 to 5 and "
        "drops 4 at once; planned_over_measured is of gradients and passes, and says little of megabytes; "
        "block_speedup_to_published is the time of separate window5 rows over that of merged block rows.",
    ]
    return Report("trainer", keys, AIMS, notes)


def check_equal(name: str, separate: float, merged: float, tolerance: float) -> None:
    """Compare the losses of two layouts of the same samples.

    Raises:
        DartTrainError: if they differ by more than `tolerance`.
    """
    if not abs(separate - merged) <= tolerance * max(1.0, abs(separate)):
        raise DartTrainError(
            f"{name}: separate rows have a loss of {separate}, merged rows one of {merged}: they must be equal, so one "
            "of the two is wrong and its speed means nothing"
        )


def clock(device: torch.device) -> float:
    """Seconds: of this process's work on the CPU, whatever else the machine does; of the wall beside a GPU."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Reset the measurement of peak memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, or the next way would be charged for the last
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb(device: torch.device) -> float:
    """Most memory since `reset_peak`, in MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
