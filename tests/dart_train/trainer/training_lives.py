"""Lives of a trainer: each is a process of its own, and may kill itself with SIGKILL at a named moment of a step."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dart_gym.utils.processes import free_port

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

    from torch import Tensor

    from dart_train.data.manager.data_manager import DataManager

MOMENTS = ("forward", "optimizer", "publish", "published", "committed", "save", "saved", "beside")
"""In a forward pass; after the optimizer's step; while weights are written; after their publication and before the
commit; after the commit; while the optimizer's state is written; when all files are there, unmarked; while the
optimizer's state is written and training has gone on."""

SETTINGS = {
    "use_cpu": True, "beta": 0.0, "top_entropy_quantile": 1.0, "groups_per_step": 1, "learning_rate": 1e-3,
    "weight_decay": 0.1, "lr_scheduler_type": "linear", "max_steps": 4, "save_steps": 2, "torch_threads": 1,
    "report_to": "none", "save_total_limit": 2, "keep_published": 2, "keep_published_s": 0.0,
}  # fmt: skip


DEADLINE_S = 1200


def forked() -> ForkServerContext:
    """Processes that have the trainer imported when they begin, which takes each of them ten seconds otherwise."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dart_train.trainer.grpo_trainer", "dart_train.data"])
    return context


def live(
    root: Path, model_dir: Path, moment: str | None = None, at: int = 0, *, ranks: int = 1,
    of_last: dict[str, object] | None = None, **settings: object,
) -> list[int]:  # fmt: skip
    """Train in new processes and return how they ended: 0, or -9. The last rank may have settings of its own."""
    context = forked()
    group = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    group["MASTER_PORT"] = str(free_port())
    processes = []
    for rank in range(ranks):
        own = group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        given = SETTINGS | settings | ((of_last or {}) if rank == ranks - 1 else {})
        process = context.Process(target=_train, args=(root, model_dir, moment, at, own, given))
        process.start()
        processes.append(process)
    deadline = time.monotonic() + DEADLINE_S
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
        process.join()
    assert not late, f"{len(late)} of {ranks} processes did not end"
    return [process.exitcode or 0 for process in processes]


def _train(
    root: Path, model_dir: Path, moment: str | None, at: int, ranks: dict[str, str], settings: dict[str, object]
) -> None:
    os.environ.update(ranks)
    from dart_train.core.metrics_log import MetricsLog
    from dart_train.trainer import DartGRPOConfig, DartGRPOTrainer

    with open_run(root) as data:
        config = DartGRPOConfig(output_dir=str(root / "trainer"), **settings)
        log = MetricsLog(root / "metrics.jsonl") if config.process_index == 0 else None
        trainer = DartGRPOTrainer(model_dir, config, data, metrics=log)
        if moment is not None:
            _arm(trainer, moment, at)
        trainer.run()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(trainer, moment: str, at: int) -> None:
    """Let the process die in the step after `at` steps, at a moment."""
    from transformers import TrainerCallback

    from dart_train.trainer.weights import checkpoint

    class Death(TrainerCallback):
        def on_optimizer_step(self, args, state, control, **kwargs):
            if moment == "optimizer" and state.global_step >= at:
                trainer.states.settle()  # the state before is on the disk
                _die()

        def on_step_end(self, args, state, control, **kwargs):  # after the trainer's own
            if moment == "committed" and state.global_step > at:
                _die()

    trainer.add_callback(Death())
    calls = {
        "forward": (trainer.steps, "loss", at),
        "publish": (checkpoint, "companion_files", at + 1),  # the step is counted before it is published
        "published": (trainer.leases, "commit", at + 1),
    }
    if moment in calls:
        owner, name, step = calls[moment]
        original = getattr(owner, name)

        def dying(*args, **kwargs):
            if trainer.state.global_step >= step:
                _die()
            return original(*args, **kwargs)

        setattr(owner, name, dying)
    if moment == "chunks":
        _score_in_chunks(trainer)
    if moment == "poison":
        _poison(trainer, at)
    if moment == "memory":
        _run_out_of_memory(trainer)
    _arm_writing(trainer, moment, at)


def _arm_writing(trainer, moment: str, at: int) -> None:
    """The same for the moments at which a state is written, beside the training."""
    from dart_train.trainer.weights import checkpoint

    if moment == "saved":
        mark = checkpoint.mark_complete
        checkpoint.mark_complete = lambda point: _die() if point.step > at else mark(point)
    if moment in ("save", "beside"):
        _cut_off_the_optimizer(trainer, at + 1, beside=moment == "beside")


def _score_in_chunks(trainer) -> None:
    """Let the head run on seven tokens at a time, and publish nothing: a fingerprint of a large model takes minutes."""
    from dart_train.trainer import policy_logprobs

    policy_logprobs.LOGITS_AT_ONCE = 7 * 151936
    trainer.publisher.publish_as = lambda *taken, **more: None


def _poison(trainer, at: int) -> None:
    """Let a gradient be NaN in the last rank's part of one weight, in the step after so many."""
    from dart_train.trainer.weights.ranks import local_part

    finish = trainer.steps.finish

    def poisoned():
        found = finish()
        if trainer.ranks.rank == trainer.ranks.count - 1 and trainer.state.global_step == at:
            gradient = next(item.grad for item in trainer.model.model.language_model.parameters())
            local_part(gradient).view(-1)[0] = float("nan")
        return found

    trainer.steps.finish = poisoned


def _run_out_of_memory(trainer) -> None:
    """Let the last rank's memory run out once, with the gradient of a micro-batch made."""
    import torch

    backward, failed = trainer.steps.backward, []

    def failing(loss):
        backward(loss)
        if not failed and trainer.ranks.rank == trainer.ranks.count - 1:
            failed.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory. It has to be made again")

    trainer.steps.backward = failing


def _cut_off_the_optimizer(trainer, step: int, *, beside: bool) -> None:
    """Die with half of the optimizer's state after a step written; `beside`: once the next step is done as well."""
    import torch

    from tests.helpers.waiting import wait_until

    save = torch.save

    def half(value, path, *args, **kwargs):
        save(value, path, *args, **kwargs)
        if str(path).endswith(f"checkpoint-{step}/optimizer.pt"):
            os.truncate(path, os.path.getsize(path) // 2)
            if beside:
                wait_until(lambda: trainer.state.global_step > step)
            _die()

    torch.save = half


def open_run(root: Path) -> DataManager:
    """The data manager of a run."""
    from dart_train.data.curation.rules import CurationConfig
    from dart_train.data.manager.data_manager import DataManager

    curation = CurationConfig(group_size=4, max_staleness=None)
    return DataManager.open(f"sqlite:///{root}/data/dart.sqlite", root / "data", "run", config=curation)


def as_left(root: Path) -> tuple[list[dict], dict[str, Tensor]]:
    """What a trainer logged that published after each step, and its newest version's weights."""
    from dart_train.core.metrics_log import read_metrics
    from dart_train.trainer.weights.model_loading import load_model

    logged = list(read_metrics(root / "metrics.jsonl"))
    with open_run(root) as data:
        newest = data.newest_checkpoint()
        assert newest is not None and newest.version == len(logged)
        assert not data.counts().get("leased")
        model = load_model(newest.path)
    assert model.config.architectures == [type(model).__name__]
    return logged, model.state_dict()


def assert_same_training(left: tuple, right: tuple, steps: int, model_dir: Path) -> None:
    """Two trainers (`as_left`) had the same losses and weights, to rounding, and learned something."""
    import pytest
    import torch

    from dart_train.trainer.weights.model_loading import load_model

    (alone, one), (together, two) = left, right
    assert len(alone) == len(together) == steps
    for expected, found in zip(alone, together, strict=True):
        for name in ("loss", "grad_norm", "entropy", "reward", "num_tokens", "batch/samples"):
            assert found[name] == pytest.approx(expected[name], abs=2e-6, rel=1e-5), name
    torch.testing.assert_close(two, one, atol=2e-6, rtol=1e-5)
    untouched = load_model(model_dir).state_dict()
    assert any(not torch.equal(one[name], untouched[name]) for name in one)


def copy_run(source: Path, target: Path) -> Path:
    """Another run with the same recorded groups."""
    shutil.copytree(source / "data", target / "data")
    return target
