"""The data manager, measured on each database: recording, leasing from a long run, and the published way beside it.

- `record_per_s`: trajectories whose rows (run, meta, group, one per step) were committed, each in a transaction of its
  own, by several processes at once, in a new run. Files are left out: they are as fast as the disk.
- `record_long_per_s`: the same in the long run, with large indexes.
- `record_unflushed_per_s`: the same in a new run of a MariaDB that flushes its log once a second instead of at every
  commit (`innodb_flush_log_at_trx_commit=2`), so that a power failure may cost a second of rows.
- `record_round_trips`, `record_flushes`, `record_lock_waits`: what a trajectory costs a MariaDB, by its own counters.
- `lease_p95_ms`: a lease of 64 trajectories (8 groups of 8) from a long run, rows only, committed.
- `vs_published`: how many times longer the published way takes to choose and mark 64 trajectories of the same rows: the
  whole run into pandas, then filters (unused rows of the two newest versions; tasks with enough of them and a mean
  below 1).
- `lease_growth_mb`: by how much leasing processes differ in peak memory, between the long run and one of a hundredth.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dart_agent.episodes.trajectory import Step, Trajectory
from dart_gym.core.outcomes import TerminalState
from dart_lab.reporting.report import Aim, Report, median, percentile
from dart_lab.train.data_rows import GROUP, RUN, STEPS, TASKS, VERSIONS, fill
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.groups import lease_rows, trajectory_rows
from dart_train.data.store.sql_store import Store
from tests.helpers.mariadb import MariaDB

DATABASES = ("sqlite", "mariadb")
LEASED = 64
TIMEOUT_S = 1200.0
AIMS = {"record_per_s": Aim(1000.0, at_most=False), "lease_p95_ms": Aim(20.0, at_most=True)}
SPENT = {  # per commit, of which each trajectory is one: what the server counts itself, however busy the machine is
    "record_round_trips": "Questions",
    "record_flushes": "Innodb_data_fsyncs",
    "record_lock_waits": "Innodb_row_lock_waits",
}
BUFFER_POOL_MB = 1024
LOG_MB = 512
CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement.

    Attributes:
        rows: trajectories in the run that is leased from.
        writers: processes that record at once.
        seconds: for which they record.
        steps: of each recorded trajectory.
        leases: how many are taken.
    """

    rows: int = 1_000_000
    writers: int = 8
    seconds: float = 10.0
    steps: int = STEPS
    leases: int = 200


def measure(databases: tuple[str, ...], sizes: Sizes, progress: Callable[[str], None]) -> Report:
    """Measure on the named databases; each is made for this and removed afterwards."""
    keys: dict[str, float] = {}
    for name in databases:
        with _database(name) as (url, server):
            found = _measure_one(url, server, sizes, lambda stage: progress(f"{name}: {stage}"))  # noqa: B023 - at once
        keys |= {f"{name}.{key}": value for key, value in found.items()}
    aims = {f"{name}.{key}": aim for name in databases for key, aim in AIMS.items()}
    notes = [
        f"{sizes.writers} writers, {sizes.steps} steps a trajectory, {sizes.seconds:g} s; "
        f"{sizes.leases} leases of {LEASED} trajectories from {sizes.rows:,}",
        "durability: SQLite synchronous=FULL in WAL mode, MariaDB flushes its log at every commit (its default), "
        f"with {BUFFER_POOL_MB} MiB for pages and a log of {LOG_MB} MiB",
    ]
    return Report("data", keys, aims, notes)


@contextmanager
def _database(name: str) -> Iterator[tuple[str, MariaDB | None]]:
    if name == "sqlite":
        with tempfile.TemporaryDirectory(prefix="dart-bench-") as folder:
            yield f"sqlite:///{Path(folder).resolve()}/bench.sqlite", None
        return
    with MariaDB(buffer_pool_mb=BUFFER_POOL_MB, options=(f"--innodb-log-file-size={LOG_MB}M",)) as server:
        yield server.new_url(), server


def _measure_one(url: str, server: MariaDB | None, sizes: Sizes, progress: Callable[[str], None]) -> dict[str, float]:
    progress("recording")
    recorded = _record_new(url, server, sizes)
    small = replace(
        sizes,
        rows=GROUP * max(sizes.rows // 100 // GROUP, 20 * LEASED // GROUP),
        leases=max(min(sizes.leases // 10, 20), 1),
    )
    progress(f"leasing from {small.rows:,} trajectories")
    fill(url, 0, small.rows)
    low = _in_process(_lease, url, small)
    progress(f"filling in {sizes.rows:,} trajectories")
    fill(url, small.rows, sizes.rows)
    progress("leasing from them")
    high = _in_process(_lease, url, sizes)
    progress("the published way on the same rows")
    published = _in_process(_published, url, sizes)
    progress("recording into the long run")
    recorded["record_long_per_s"] = _record(url, sizes, RUN)
    return {
        **recorded,
        "lease_p50_ms": median(high["ms"]),
        "lease_p95_ms": percentile(high["ms"], 0.95),
        "commit_p95_ms": percentile(high["commit_ms"], 0.95),
        "vs_published": median(published["ms"]) / median(high["ms"]),
        "published_ms": median(published["ms"]),
        "published_peak_mb": published["peak_mb"],
        "lease_peak_mb": high["peak_mb"],
        "lease_growth_mb": high["peak_mb"] - low["peak_mb"],
    }


def _in_process(work: Callable[[str, Sizes], dict[str, Any]], url: str, sizes: Sizes) -> dict[str, Any]:
    """Run a function in a process of its own, so that its peak memory is its own."""
    with CONTEXT.Pool(1) as pool:
        return pool.apply_async(work, (url, sizes)).get(TIMEOUT_S)


# Recording


def _record_new(url: str, server: MariaDB | None, sizes: Sizes) -> dict[str, float]:
    """Record into a new run, and look at what that took of a server."""
    if server is None:
        return {"record_per_s": _record(url, sizes, f"{RUN}-new")}
    Store(url).close()
    before = server.counters()
    found = {"record_per_s": _record(url, sizes, f"{RUN}-new")}
    spent = {name: value - before.get(name, 0) for name, value in server.counters().items()}
    for key, counter in SPENT.items():
        found[key] = spent.get(counter, 0) / spent["Com_commit"]
    server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    found["record_unflushed_per_s"] = _record(url, sizes, f"{RUN}-unflushed")
    server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    return found


def _record(url: str, sizes: Sizes, run_id: str) -> float:
    Store(url).close()
    with CONTEXT.Manager() as manager:
        barrier = manager.Barrier(sizes.writers)
        with CONTEXT.Pool(sizes.writers) as pool:
            jobs = [(url, sizes, run_id, writer, barrier) for writer in range(sizes.writers)]
            spans = pool.starmap_async(_write, jobs, chunksize=1).get(TIMEOUT_S)
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    return sum(span[2] for span in spans) / (last - first)


def _write(url: str, sizes: Sizes, run_id: str, writer: int, barrier: Any) -> tuple[float, float, int]:
    """Record groups for a while; return begin, end (Unix time) and how many trajectories."""
    store, config = Store(url), CurationConfig(group_size=GROUP)
    store.read(lambda connection: None)
    barrier.wait(TIMEOUT_S)
    started, done = time.time(), 0
    while time.time() - started < sizes.seconds:
        trajectory = _trajectory(run_id, writer, done, sizes.steps)
        store.write(lambda c: _insert(c, trajectory, config))  # noqa: B023 - called at once
        done += 1
    ended = time.time()
    store.close()
    return started, ended, done


def _insert(connection: sa.Connection, trajectory: Trajectory, config: CurationConfig) -> None:
    trajectory_rows.insert_trajectory(
        connection,
        trajectory.run_id,
        trajectory,
        split_dir=f"trajectories/{trajectory.trajectory_id}",
        digest="0" * 32,
        expected=GROUP,
        config=config,
    )


def _trajectory(run_id: str, writer: int, number: int, steps: int) -> Trajectory:
    step = Step((1, 2, 3), (), (4, 5), (-0.1, -0.2), timings={"step": 0.4, "generate": 1.5}, engine="r0")
    return Trajectory(
        trajectory_id=f"w{writer}-{number}",
        run_id=run_id,
        task_id=f"task-{number // GROUP % TASKS}",
        task_hash="0" * 16,
        instruction="Click the button that says OK",
        seed=1,
        group_key=f"w{writer}-g{number // GROUP}",
        terminal=TerminalState.DONE,
        score=float(number % 2),
        steps=(step,) * steps,
        timings={"reset": 1.0, "step": 6.0, "evaluate": 1.0, "generate": 20.0},
    )


# Leasing, both ways


def _lease(url: str, sizes: Sizes) -> dict[str, Any]:
    """Take and commit leases as `DataManager` does, without reading the trajectories' files."""
    store, oldest = Store(url), VERSIONS - 2
    taken_ms, commit_ms = [], []
    for _ in range(sizes.leases):
        lease_id = uuid.uuid4().hex
        started = time.perf_counter()
        taken = store.write(lambda c: _take(c, lease_id, oldest))  # noqa: B023 - called at once
        middle = time.perf_counter()
        if taken is None or sum(len(group.trajectory_ids) for group in taken.groups) != LEASED:
            raise RuntimeError(f"a lease of {LEASED} trajectories found too few: ask for fewer leases or more rows")
        store.write(lambda c: lease_rows.commit(c, RUN, lease_id, VERSIONS))  # noqa: B023 - called at once
        taken_ms.append(1000 * (middle - started))
        commit_ms.append(1000 * (time.perf_counter() - middle))
    store.close()
    return {"ms": taken_ms, "commit_ms": commit_ms, "peak_mb": _peak_mb()}


def _take(connection: sa.Connection, lease_id: str, oldest: int) -> lease_rows.Taken | None:
    lease_rows.sweep(connection, RUN, oldest)
    groups = LEASED // GROUP
    return lease_rows.take(connection, RUN, lease_id, "bench", groups, groups, oldest, 600.0)


def _published(url: str, sizes: Sizes) -> dict[str, Any]:
    """Choose and mark 64 trajectories as the published data set does: everything into pandas, then filters."""
    import pandas as pd

    store = Store(url)
    select = sa.text("SELECT * FROM rollout_run WHERE run_id = :run")
    mark = sa.text("UPDATE rollout_run SET used = COALESCE(used, 0) + 1 WHERE run_id = :run AND trajectory_id = :name")
    times = []
    for _ in range(3):
        started = time.perf_counter()
        with store.engine.connect() as connection:
            frame = pd.read_sql(select, connection, params={"run": RUN})
        fresh = frame[frame.model_version.isin([f"v{VERSIONS}", f"v{VERSIONS - 1}"]) & (frame.used == 0)]
        scored = fresh[fresh.reward.notna() & (fresh.reward != -1)]
        sums = scored.groupby("task_id").reward.agg(["count", "mean"])
        tasks = sums[(sums["count"] >= GROUP) & (sums["mean"] < 1.0)].index[: LEASED // GROUP]
        names = list(scored[scored.task_id.isin(tasks)].groupby("task_id").head(GROUP).trajectory_id)
        with store.engine.begin() as connection:
            for name in names:  # one statement per trajectory, as published
                connection.execute(mark, {"run": RUN, "name": name})
        times.append(1000 * (time.perf_counter() - started))
        if len(names) != LEASED:
            raise RuntimeError(f"the published way chose {len(names)} trajectories, not {LEASED}: use more rows")
        del frame, fresh, scored
    store.close()
    return {"ms": times, "peak_mb": _peak_mb()}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
