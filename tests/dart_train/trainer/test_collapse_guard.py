"""A collapse is named while it happens, and the trainer goes back to a state from before it."""

from __future__ import annotations

import pytest

from dart_train.core.metrics_log import MetricsLog, read_metrics
from dart_train.trainer.collapse_guard import SIGNS, Collapsed, CollapsedForGood, CollapseGuard
from dart_train.trainer.weights import checkpoint

GOOD = {"entropy": 0.5, "completions/mean_length": 8.0, "batch/unreadable": 0.05, "grad_norm": 0.4}


def feed(guard, report, times):
    return [guard.look(report) for _ in range(times)]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"entropy": 0.001}, "entropy went from 0.5 to 0.001"),
        ({"entropy": 3.0}, "entropy went from 0.5 to 3"),
        ({"completions/mean_length": 30.0}, "length of responses went from 8 to 30"),
        ({"completions/mean_length": 2.0}, "length of responses went from 8 to 2"),
        ({"batch/unreadable": 0.6}, "share of episodes that end unreadable went from 0.05 to 0.6"),
        ({"grad_norm": 90.0}, "norm of the gradient went from 0.4 to 90"),
    ],
)
def test_each_sign_is_named_once_it_has_lasted(bad, words):
    guard = CollapseGuard(5)
    assert not any(feed(guard, GOOD, 20)) and not guard.signs
    said = feed(guard, GOOD | bad, 30)
    first = next(index for index, found in enumerate(said) if found)
    assert 4 <= first <= 9 and said[-1] == words == guard.signs
    assert not any(feed(guard, GOOD, 10)[5:]), "it is over once the numbers are back"


def test_what_learning_does_is_no_collapse():
    guard = CollapseGuard(5)
    for step in range(200):  # the quick start: entropy falls, gradients grow a little, lengths stay
        report = {"entropy": 0.35 * 0.99**step + 0.02, "completions/mean_length": 6.0, "grad_norm": 0.4 + 0.005 * step}
        assert not guard.look(report)
    assert CollapseGuard(0).look({"entropy": 0.0}) == "" and len(SIGNS) == 4


@pytest.fixture
def train(model_dir, make_config, data, record_group, tmp_path):
    from dart_train.trainer import DartGRPOTrainer

    def run(**values):
        values = {"groups_per_step": 1, "collapse_window": 2} | values
        trainer = DartGRPOTrainer(
            model_dir, make_config(**values), data, metrics=MetricsLog(tmp_path / "metrics.jsonl")
        )
        trainer.run()
        return trainer

    for number in range(16):  # from the sixth step on most episodes end unreadable
        record_group(f"g{number}", (0.0, 0.0, 0.0, 1.0), unreadable=0 if number < 5 else 3)
    return run


@pytest.mark.train
def test_a_collapse_ends_the_run_when_told_to(train):
    with pytest.raises(
        CollapsedForGood, match=r"step 7: the policy collapsed \(share of episodes that end un.* 0.75\)"
    ):
        train(on_collapse="stop", max_steps=16)


@pytest.mark.thorough
@pytest.mark.train
def test_the_next_start_goes_on_from_before_the_collapse(train, data, tmp_path):
    with pytest.raises(Collapsed, match="the next start goes on from the last state before that"):
        train(on_collapse="return", max_steps=16, save_steps=1, save_total_limit=2)
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    began = next(row["step"] for row in rows if "collapse" in row)
    point = checkpoint.resume_point(tmp_path / "trainer")
    assert point is not None and point.step == began - 1 >= 5
    before = data.newest_checkpoint()
    trainer = train(on_collapse="return", learning_rate=1e-5, max_steps=point.step + 1, save_steps=1)
    resumed = [row for row in data.checkpoints() if row.source == "resumed"]
    assert len(resumed) == 1 and resumed[0].version > before.version
    assert trainer.states.resumed.step == point.step


@pytest.mark.train
def test_a_warning_changes_nothing(train, tmp_path):
    train(on_collapse="warn", max_steps=8)
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert len(rows) == 8 and any(row.get("collapse") == 1.0 for row in rows)
