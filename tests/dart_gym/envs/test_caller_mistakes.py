"""What callers do to environments: wrong seeds and options, writing into observations, Ctrl-C, forks, copies."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import DelayObservation, FrameStackObservation

from dart_gym.core.actions import Done, Move, Wait
from dart_gym.core.errors import ConfigurationError, DartGymError, EpisodeStateError
from dart_gym.envs.cluster_link import acquire_shared, background_loop, release_shared
from dart_gym.envs.desktop_env import OPTIONS, DesktopEnv
from dart_gym.envs.env_settings import check_options
from dart_gym.envs.spaces import ActionSpace, Screenshot, UnicodeText, observation_space
from dart_gym.envs.vector_env import DesktopVectorEnv
from dart_gym.sessions.reset_request import ResetRequest

ID, TASK = "DartGym/Desktop-v0", "fake/two-steps"
pytestmark = pytest.mark.usefixtures("one_private_cluster")


@pytest.fixture
def env():
    with gymnasium.make(ID, task=TASK, max_steps=9, render_mode="rgb_array") as env:
        yield env


@pytest.fixture
def make_envs():
    made = []

    def make(num_envs: int = 3, **arguments) -> DesktopVectorEnv:
        made.append(gymnasium.make_vec(ID, num_envs, **({"task": TASK, "max_steps": 9} | arguments)))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


# --- seeds


BAD_SEEDS = [2**63, 2**64, -1, True, np.True_, 1.0, np.float64(1), "1", 1j, b"1"]


@pytest.mark.parametrize("seed", BAD_SEEDS)
def test_seeds_that_are_none_are_refused_by_name_at_the_earliest_place(env, make_envs, seed):
    with pytest.raises(ConfigurationError, match="seed"):
        ResetRequest(TASK, seed)
    with pytest.raises(ValueError, match="seed"):
        env.reset(seed=seed)
    envs = make_envs()
    for given in (seed, [0, 1, seed], (seed, None, 3)):
        with pytest.raises(ValueError, match="seed"):
            envs.reset(seed=given)
    with pytest.raises(ValueError, match="seed"):
        envs.async_reset(seeds=[1, seed, 2])
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=[1, 2])  # one is missing
    assert env.reset(seed=1)[1]["seed"] == 1 and envs.reset(seed=1)[1]["seed"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", [0, np.int64(5), np.uint64(2**63 - 1), 2**63 - 1])
def test_every_other_seed_is_played(env, seed):
    assert env.reset(seed=seed)[1]["seed"] == int(seed)


def test_the_seeds_of_a_vector_stay_in_range(make_envs):
    envs = make_envs(2)
    assert envs.reset(seed=2**63 - 2)[1]["seed"].tolist() == [2**63 - 2, 2**63 - 1]
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=2**63 - 1)


@pytest.mark.parametrize("seeds", [[4, 2, 9, 1], (4, 2, 9, 1), np.array([4, 2, 9, 1]), 7, np.int64(7)])
@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP", "SAME_STEP"])
def test_equal_seeds_give_equal_tasks_then_and_later(make_envs, seeds, mode):
    def play() -> list:
        found = [envs.reset(seed=seeds)[1]]
        for _ in range(3):
            if mode == "DISABLED":
                found.append(envs.reset()[1])
            else:
                found += [envs.step([Done()] * 4)[-1] for _ in range(2)]
        return [info[key].tolist() for info in found for key in ("task_id", "seed")]

    envs = make_envs(4, task=None, suite="fake", autoreset_mode=mode)
    first = play()
    envs.reset()
    assert play() == first
    other = make_envs(4, task=None, suite="fake", autoreset_mode=mode)
    assert (envs, envs := other)[1] is other and play() == first


def test_a_vector_draws_from_a_seed_what_one_environment_draws(make_envs):
    seeds = [11, 12, 13, 14, 15, 16]
    theirs = gymnasium.make_vec(ID, 6, vectorization_mode="sync", suite="fake")
    expected = theirs.reset(seed=seeds)[1]["task_id"].tolist()
    theirs.close()
    assert len(set(expected)) == 2
    envs = make_envs(6, task=None, suite="fake")
    assert envs.reset(seed=seeds)[1]["task_id"].tolist() == expected
    assert envs.reset(seed=11)[1]["task_id"].tolist() == expected


# --- arguments and options


BAD_ARGUMENTS = [
    ("task", 3), ("task", ""), ("tasks", "fake/two-steps"), ("tasks", [3]), ("tasks", 5),
    ("suite", 3), ("suite", ["fake"]),
    ("url", 5), ("token_env", 5), ("osworld_url", 5), ("codec", 5), ("width", 3.5), ("width", True), ("width", "300"),
    ("height", 5), ("height", 10**6), ("render_mode", 5), ("max_steps", 0), ("max_steps", 1.5), ("max_steps", True),
    ("time_limit_s", "1"), ("time_limit_s", -1), ("time_limit_s", float("nan")), ("time_limit_s", float("inf")),
    ("pacing", 5), ("accessibility", 1), ("accessibility", "yes"), ("shaped_reward", 0), ("deadline_s", "9"),
    ("deadline_s", 0), ("deadline_s", -1), ("deadline_s", True), ("deadline_s", float("nan")), ("deadline_s", 1e9),
]  # fmt: skip


@pytest.mark.parametrize("kind", [DesktopEnv, DesktopVectorEnv])
@pytest.mark.parametrize(("name", "value"), BAD_ARGUMENTS)
def test_wrong_arguments_are_refused_by_name_when_an_environment_is_made(kind, name, value):
    given = {"task": TASK, name: value} if name not in ("tasks", "suite") else {name: value}
    with pytest.raises(ConfigurationError, match=name):
        kind(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_envs", 0), ("num_envs", True), ("num_envs", 2.0), ("prefetch", -1), ("prefetch", "1"), ("autoreset_mode", 3),
     ("autoreset_mode", None), ("max_episode_steps", 0), ("max_episode_steps", 2.5)],
)  # fmt: skip
def test_wrong_arguments_of_a_vector_are_refused_by_name(name, value):
    with pytest.raises(ConfigurationError, match=name):
        DesktopVectorEnv(**{"num_envs": 1, "task": TASK, name: value})


def test_numpy_integers_are_arguments():
    with gymnasium.make(ID, task=TASK, width=np.int64(300), height=np.int32(200), max_steps=np.int16(7)) as env:
        assert env.reset(seed=np.int64(1))[0]["screenshot"].shape == (200, 300, 3)


@pytest.mark.parametrize(
    "options",
    [{"task": 3}, {"task": ""}, {"task": ["a"]}, {"task_id": 3}, {"task_id": {"id": "a"}}, {"suite": 3},
     {"suite": ["fake"]}, {"pacing": 3}, {"pacing": ["settle"]}, {3: 4}, ["task"], "task", 3],
)  # fmt: skip
def test_wrong_options_of_a_reset_are_refused_by_name(env, options):
    name = next(iter(options)) if isinstance(options, dict) else "options"
    with pytest.raises(ValueError, match=str(name)):
        env.reset(options=options)
    assert env.reset(options={"task": None, "pacing": None})[1]["task_id"] == TASK


@pytest.mark.parametrize(
    "options",
    [{"task_ids": 3}, {"task_ids": [3, None, None]}, {"tasks": [{"id": 1}, 4, None]}, {"tasks": {"id": "a"}},
     {"reset_mask": 3}, {"reset_mask": np.ones(3)}, [1], "x"],
)  # fmt: skip
def test_wrong_options_of_a_vectors_reset_are_refused_by_name(make_envs, options):
    envs = make_envs()
    name = next(iter(options)) if isinstance(options, dict) else "options"
    with pytest.raises((ValueError, DartGymError), match="task" if "task" in name else str(name)):
        envs.reset(options=options)
    assert envs.reset(options={"task_ids": None})[1]["task_id"].tolist() == [TASK] * 3


@pytest.mark.parametrize("env_ids", [[0.0], [True], ["0"], [-1], [3]])
def test_numbers_of_environments_are_not_rounded(make_envs, env_ids):
    envs = make_envs()
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="environment"):
        envs.send([Move(1, 1)], env_ids)
    with pytest.raises(ValueError, match="environment"):
        envs.async_reset(env_ids)
    assert len(envs.send([Move(1, 1)], np.array([1]))) == 1 and envs.recv()[0].env_id == 1


# --- observations belong to the caller


def test_writing_into_observations_shows_nowhere_else(env):
    first = env.reset(seed=0)[0]["screenshot"]
    kept = first.copy()
    first[:] = 7
    assert np.array_equal(env.render(), kept)
    env.render()[:] = 9
    second = env.step(Move(3, 3))[0]["screenshot"]
    kept = second.copy()
    second[:] = 5
    assert np.array_equal(env.render(), kept) and not np.array_equal(env.step(Move(3, 3))[0]["screenshot"], second)


def test_writing_into_a_vectors_observations_shows_nowhere_else(make_envs):
    envs = make_envs(2, render_mode="rgb_array", autoreset_mode="SAME_STEP")
    shown = envs.reset(seed=0)[0]["screenshot"]
    kept = shown.copy()
    shown[:] = 7
    assert np.array_equal(np.stack(envs.render()), kept)
    envs.send([Move(1, 1)], [0])
    (answer,) = envs.recv()
    frame = answer.observation["screenshot"]
    frame[:] = 7
    with pytest.raises(ValueError, match="read-only"):
        answer.result.observation.screenshot[:] = 7
    assert not (envs.render()[0] == 7).all() and not (answer.observation["screenshot"] == 7).all()
    observation, *_, infos = envs.step([Done(), Move(1, 1)])
    infos["final_obs"][0]["screenshot"][:] = 7
    kept = observation["screenshot"].copy()
    observation["screenshot"][:] = 7
    assert np.array_equal(np.stack(envs.render()), kept)
    mask = np.array([True, False])
    assert np.array_equal(envs.reset(options={"reset_mask": mask})[0]["screenshot"][1], kept[1])


def test_a_task_that_is_changed_after_it_was_given_stays_as_it_was():
    raw = {"id": "a", "instruction": "one", "config": [{"type": "sleep"}]}
    given = check_options({"task": raw}, OPTIONS)["task"]
    raw["config"][0]["type"] = "launch"
    assert given["config"] == [{"type": "sleep"}]


# --- Ctrl-C


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_an_interrupt_ends_a_long_wait_at_once(env):
    env.reset(seed=0)
    started = time.monotonic()
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        env.step(Wait(30))
    assert time.monotonic() - started < 2
    with pytest.raises(EpisodeStateError, match="reset"):
        env.step(Move(1, 1))
    assert env.reset(seed=0)[1]["step_index"] == 0 and env.step(Move(1, 1))[-1]["step_index"] == 1
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("kind", ["one", "vector"])
def test_an_environment_is_closed_at_once_after_an_interrupt(make_envs, kind):
    env = make_envs(2) if kind == "vector" else gymnasium.make(ID, task=TASK)
    env.reset(seed=0)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        env.step([Wait(30)] * 2 if kind == "vector" else Wait(30))
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 3


def test_a_signal_handler_that_raises_is_an_interrupt_too(env):
    def give_up(number, frame):
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        env.reset(seed=0)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(TimeoutError, match="enough"):
            env.step(Wait(30))
    finally:
        signal.signal(signal.SIGALRM, before)
    started = time.monotonic()
    env.reset(seed=1)
    assert time.monotonic() - started < 4


def test_an_interrupted_vector_goes_on(make_envs):
    envs = make_envs(2)
    envs.reset(seed=0)
    started = time.monotonic()
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        envs.step([Wait(30), Move(1, 1)])
    assert not envs.reset(seed=0)[1]["env_fault"].any() and time.monotonic() - started < 5


# --- forks


def in_fork(function) -> str:
    """What a function returns in a fork of this process."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def run() -> None:
        try:
            answers.put(function())
        except BaseException as error:
            answers.put(f"{type(error).__name__}: {error}")

    process = context.Process(target=run)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    return answers.get()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_parents_environment_is_refused_in_a_fork_and_goes_on_in_the_parent(env, make_envs):
    envs = make_envs(2)
    env.reset(seed=0)
    envs.reset(seed=0)
    for use in (
        lambda: env.step(Move(1, 1)),
        lambda: env.reset(),
        lambda: env.unwrapped.oracle(),
        lambda: envs.step([Move(1, 1)] * 2),
        lambda: envs.reset(),
        lambda: envs.recv(),
    ):
        said = in_fork(use)
        assert "Error" in said and str(os.getpid()) in said and "fork" in said, said
    assert in_fork(lambda: str(env.close())) == "None" and in_fork(lambda: str(envs.close())) == "None"
    assert env.step(Move(1, 1))[-1]["step_index"] == 1 and not env.step(Move(1, 1))[-1]["env_fault"]
    assert envs.step([Move(1, 1)] * 2)[-1]["step_index"].tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_environment_of_a_fork_works_and_so_does_one_that_the_parent_never_used():
    url = background_loop().run(acquire_shared)
    background_loop().run(release_shared)  # the fixture holds it, too
    unused = DesktopEnv(TASK, url=url)

    def play(env) -> str:
        seed = env.reset(seed=3)[1]["seed"]
        env.close()
        return str(seed)

    assert in_fork(lambda: play(DesktopEnv(TASK, url=url))) == "3"
    assert in_fork(lambda: play(unused)) == "3"
    assert unused.reset(seed=4)[1]["seed"] == 4
    unused.close()


# --- spaces


SPACES = [Screenshot(3, 2), UnicodeText(9), ActionSpace(9, 9), observation_space(2, 2), Screenshot(2, 2, (3,))]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda space: pickle.loads(pickle.dumps(space))])
def test_copies_of_a_space_go_on_where_it_stands(space, again):
    for made in (space, batch_space(space, 2)):
        made.seed(5)
        made.sample()
        twin = again(made)
        assert twin == made
        assert [repr(twin.sample()) for _ in range(3)] == [repr(made.sample()) for _ in range(3)]


def test_a_batch_of_a_seeded_space_is_reproducible():
    one, other = (batch_space(Screenshot(3, 2, seed=4), 2) for _ in range(2))
    assert np.array_equal(one.sample(), other.sample())


@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_frames_are_stacked(env, padding):
    stacked = FrameStackObservation(env, 3, padding_type=padding)
    first, _ = stacked.reset(seed=0)
    assert stacked.observation_space.contains(first) and first["screenshot"].shape == (3, 224, 168, 3)
    assert first["instruction"][0] == ("" if padding == "zero" else first["instruction"][2])
    second, *_ = stacked.step(Move(9999, 1))
    assert "outside" in second["action_error"][2] and second["action_error"][1] == ""
    assert np.array_equal(second["screenshot"][1], first["screenshot"][2])


def test_observations_are_delayed(env):
    delayed = DelayObservation(env, 1)
    first, _ = delayed.reset(seed=0)
    assert first["instruction"] == "" and not first["screenshot"].any() and delayed.observation_space.contains(first)
    assert delayed.step(Move(1, 1))[0]["instruction"].startswith("Click")
