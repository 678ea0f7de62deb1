"""The experience pool through the manager: what joins which group, what a trainer gets, and what is imported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import sqlalchemy as sa
from data_builders import SMALL, make_step, make_trajectory, open_manager, picture, record_group, record_with_image

from dart_train.core.data_states import Provenance
from dart_train.core.train_errors import DataError, InvalidTrajectoryError
from dart_train.data import DataManager, image_hash
from dart_train.data.curation.experience_pool import belongs
from dart_train.data.insight import statistics
from dart_train.data.maintenance.pool_import import (
    as_pooled,
    fill_pool,
    import_successes,
    read_successes,
    replace_ids,
    strip_hint,
)
from dart_train.data.store.schema import curation_decision, experience_pool, rollout_run

POOLING = SMALL.model_copy(update={"experience_pool": True, "group_size": 4})


@pytest.fixture
def pooling(tmp_path, clock, database) -> DataManager:
    with open_manager(tmp_path, clock, POOLING) as manager:
        yield manager


def demonstrate(data: DataManager, name: str, task: str = "fake/button", **fields) -> None:
    steps = (make_step(logprobs=()),)
    data.record(make_trajectory(name, "", 1.0, source="oracle", task_id=task, steps=steps, **fields))


def test_a_group_that_failed_gets_the_pools_success_and_is_trained_with_it(pooling, clock):
    demonstrate(pooling, "shown")
    clock.now += 1
    failures = record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    [group] = pooling.lease(1, "trainer").groups
    assert [item.trajectory_id for item in group.trajectories] == [*failures[1:], "shown"]
    assert group.injected == {"shown"}
    assert group.rewards == (0.0, 0.0, 0.0, 1.0)
    assert group.trajectories[-1].steps[0].logprobs == ()  # no behaviour policy: importance weight 1
    census = pooling.census()
    assert (census.dropped["replaced"], census.pooled, census.leased) == (1, 1, 3)
    assert pooling.read(statistics.injections) == 1


def test_a_success_that_was_trained_on_counts_as_used_and_stays_in_the_pool(pooling):
    demonstrate(pooling, "shown")
    for number in range(2):
        record_group(pooling, f"g{number}", (0.0, 0.0, 0.0, 0.0))
        leased = pooling.lease(1, "trainer")
        assert leased.groups[0].injected == {"shown"}
        leased.commit(0)
    used = sa.select(rollout_run.c.used).where(rollout_run.c.trajectory_id == "shown")
    assert pooling.store.read(lambda c: c.execute(used).scalar_one()) == 2
    [count] = pooling.status().pool
    assert (count.provenance, count.trajectories, count.uses, count.without_logprobs) == (Provenance.ORACLE, 1, 2, 1)


def test_a_lease_that_is_given_back_keeps_the_success(pooling):
    demonstrate(pooling, "shown")
    record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    pooling.lease(1, "first").release()
    assert pooling.lease(1, "second").groups[0].injected == {"shown"}


def test_without_a_success_of_its_task_a_failed_group_is_dropped_and_counted(pooling):
    demonstrate(pooling, "elsewhere", task="fake/other")
    record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    assert pooling.lease(1, "trainer") is None
    assert pooling.census().parts()["no_signal"] == 4
    status = pooling.status()
    assert status.census.dropped == {"no_signal": 4}
    assert status.dropped_groups == {"no_signal": 1}
    assert status.decisions == {"no_signal: rejected": 1}


def test_a_retired_success_joins_nothing(pooling):
    demonstrate(pooling, "shown")
    retired = experience_pool.update().where(experience_pool.c.trajectory_id == "shown").values(retired_at=1.0)
    assert pooling.store.write(lambda c: c.execute(retired).rowcount) == 1  # as a check does with damaged files
    record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    assert pooling.lease(1, "trainer") is None


def test_successes_of_the_run_itself_join_where_the_pool_takes_them(tmp_path, clock, database):
    own = POOLING.model_copy(update={"pool_sources": (Provenance.ROLLOUT,)})
    with open_manager(tmp_path, clock, own) as data:
        record_group(data, "good", (1.0, 0.0, 0.0, 0.0))
        demonstrate(data, "shown")  # of a source that the pool does not take
        record_group(data, "bad", (0.0, 0.0, 0.0, 0.0))
        groups = {group.key: group for group in data.lease(2, "trainer").groups}
        assert groups["bad"].injected == {"good-0"}
        assert groups["good"].injected == frozenset()


def test_the_decision_is_written_down_with_its_values(pooling):
    demonstrate(pooling, "shown")
    record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    [row] = pooling.store.read(lambda c: c.execute(sa.select(curation_decision)).all())
    assert (row.rule, row.verdict, row.task_id) == ("experience_pool", "injected", "fake/button")
    assert row.details == {"rewards": [0.0, 0.0, 0.0, 1.0], "injected": "shown", "left_out": 0}


def test_demonstrations_of_an_older_database_are_put_into_the_pool(pooling):
    demonstrate(pooling, "shown")
    pooling.store.write(lambda c: c.execute(experience_pool.delete()))
    assert fill_pool(pooling) == 1
    assert fill_pool(pooling) == 0
    assert pooling.status().pool[0].trajectories == 1


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ((2, 3), (9,), (1, 9, 4, 2, 3)),
        ((1,), (), (2, 3, 4, 2, 3)),
        ((5,), (9,), None),
        ((), (9,), None),
        ((1, 2, 3, 4, 2, 3), (7,), (7,)),
    ],
)
def test_the_first_run_of_ids_is_replaced_or_none(old, new, result):
    assert replace_ids((1, 2, 3, 4, 2, 3), old, new) == result


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def hinted(hint: str = " Hint: press the red one", **fields):
    instruction = f"Press it.{hint}"
    prompt = (1, *encode(instruction), 2, 3)
    return make_trajectory(
        "h",
        "g",
        1.0,
        instruction=instruction,
        steps=(make_step(6, prompt_ids=prompt, **fields), make_step(7, prompt_ids=prompt)),
    )


def test_a_hint_leaves_every_prompt_token_by_token():
    plain = strip_hint(hinted(), encode, "Hint:")
    assert plain.instruction == "Press it."
    assert [step.prompt_ids for step in plain.steps] == [(1, *encode("Press it."), 2, 3)] * 2
    assert [step.response_ids for step in plain.steps] == [step.response_ids for step in hinted().steps]
    assert all(step.logprobs == () for step in plain.steps)  # they were of another prompt


@pytest.mark.parametrize("marker", ["No such:", "Press it."])
def test_without_a_hint_behind_an_instruction_nothing_is_stripped(marker):
    with pytest.raises(InvalidTrajectoryError, match="marker"):
        strip_hint(hinted(), encode, marker)


def test_a_response_that_repeats_the_hint_is_refused():
    with pytest.raises(InvalidTrajectoryError, match="word by word"):
        strip_hint(hinted(text="Thought: Hint: press the red one, so I do"), encode, "Hint:")


def test_a_prompt_of_another_tokenizer_is_refused():
    odd = dataclasses.replace(hinted(), steps=(make_step(prompt_ids=(1, 2, 3)),))
    with pytest.raises(InvalidTrajectoryError, match="another tokenizer"):
        strip_hint(odd, encode, "Hint:")


def test_successes_of_another_run_are_imported_once_with_their_screenshots(pooling, tmp_path: Path):
    with open_manager(tmp_path / "other") as other:
        image = picture(4)
        record_with_image(other, "good", "g", image, 1.0)
        record_with_image(other, "bad", "g", picture(5), 0.0)
    root = tmp_path / "other" / "data"
    for imported, known in ((1, 0), (0, 1)):
        found = read_successes(root.parent)
        report = import_successes(pooling, found, provenance=Provenance.HUMAN, origin="desk 3")
        assert (report.imported, report.known, report.refused) == (imported, known, 0)
    [new] = pooling.trajectories(source="human")
    assert new.trajectory_id.startswith("pool-")
    assert (new.oldest_version, new.group_key) == (0, "")
    assert (pooling.load_image(image_hash(image)) == image).all()
    row = pooling.store.read(lambda c: c.execute(sa.select(experience_pool)).one())
    assert (row.provenance, row.origin, row.has_logprobs) == ("human", "desk 3", True)
    record_group(pooling, "g", (0.0, 0.0, 0.0, 0.0))
    assert pooling.lease(1, "trainer").groups[0].injected == {new.trajectory_id}


def test_an_import_of_hinted_runs_strips_or_refuses(pooling):
    found = [(hinted(), {}), (make_trajectory("plain", "g", 1.0), {})]
    report = import_successes(
        pooling, found, provenance=Provenance.HINTED, encode=encode, hint_marker="Hint:", origin="plans"
    )
    assert (report.imported, report.refused, report.without_logprobs) == (1, 1, 1)
    assert "plain" in report.problems[0]
    [stored] = pooling.trajectories(source="hinted")
    assert stored.instruction == "Press it."
    with pytest.raises(DataError, match="--hint-marker"):
        import_successes(pooling, found, provenance=Provenance.HINTED)


def test_only_successes_belong_into_the_pool(tmp_path):
    assert belongs(make_trajectory("t", reward=0.5))
    assert not belongs(make_trajectory("t", reward=0.0))
    assert not belongs(make_trajectory("t", reward=None))
    assert not belongs(make_trajectory("t", steps=()))
    with pytest.raises(InvalidTrajectoryError, match="no success"):
        as_pooled(make_trajectory("t", reward=0.0), "run", Provenance.HUMAN)
    with pytest.raises(DataError, match="no trajectories"):
        list(read_successes(tmp_path))
