"""Prepared statements on each database: any text arrives as it is, and errors are those of SQLAlchemy."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from data_builders import make_step, make_trajectory, open_manager

from dart_train.data import RolloutState
from dart_train.data.store.prepared_statements import Prepared
from dart_train.data.store.schema import rollout_meta, rollout_run, rollout_step, run_state

pytestmark = pytest.mark.usefixtures("database")
HOSTILE = "50 % of %s, %(run_id)s, :run_id, ? and {}; '\"`\\'); DROP TABLE rollout_run; -- \n\0 日本 😀"


def test_text_arrives_as_it_is(tmp_path):
    with open_manager(tmp_path) as data:
        step = make_step()
        for name, reward in (("first", 0.1), ("second", 0.2)):  # a group that is inserted, and one that is updated
            trajectory = make_trajectory(
                name, HOSTILE, reward, steps=(step, step), instruction=HOSTILE, timings={HOSTILE: 1 / 3}
            )
            assert data.record(trajectory) is RolloutState.RECORDED

        def look(connection: sa.Connection) -> None:
            assert connection.scalars(sa.select(rollout_run.c.instruction)).all() == [HOSTILE] * 2
            assert connection.scalars(sa.select(rollout_meta.c.timings)).all() == [{HOSTILE: 1 / 3}] * 2
            assert connection.scalars(sa.select(rollout_meta.c.group_key)).all() == [HOSTILE] * 2
            assert connection.scalars(sa.select(rollout_step.c.seconds)).all() == [sum(step.timings.values())] * 4

        data.store.read(look)


def test_a_drivers_error_is_sqlalchemys_and_leaves_the_connection_in_use(tmp_path):
    insert = Prepared(run_state.insert(), run_state.c.keys())
    row = {"run_id": "r", "name": "n", "value": "1"}
    with open_manager(tmp_path) as data, data.store.writer.begin() as connection:
        insert.run(connection, row)
        with pytest.raises(sa.exc.IntegrityError) as caught:
            insert.run_all(connection, [row])
        assert not caught.value.connection_invalidated
        assert connection.scalars(sa.select(run_state.c.value).where(run_state.c.run_id == "r")).all() == [1]
