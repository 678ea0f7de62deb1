"""Episodes on the drawn desktop, counted; and the command line around them."""

import dataclasses
import json
import math
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from dart_agent.commands import agent_cli
from dart_agent.episodes.episode_files import find_episodes, read_episode
from dart_agent.episodes.play import InMemory, play
from dart_agent.evaluation.evaluate import evaluate, evaluate_policy
from dart_agent.evaluation.scores import score_task, total_score
from dart_agent.policies.oracle_policy import OraclePolicy
from dart_agent.policies.policy import Decision, Episode
from dart_agent.policies.random_policy import RandomPolicy
from dart_gym.core.actions import Click, Done, action_from_dict
from dart_gym.core.errors import ConfigurationError, UnknownTaskError
from dart_gym.core.outcomes import Evaluation, EvaluationStatus, Observation, StepResult, TerminalState
from dart_gym.sessions.session import Session
from dart_gym.tasks.requirements.runnable import named_tasks
from dart_gym.utils.rates import wilson_interval

TASKS = ["fake/click-button", "fake/two-steps"]


class Sessions:
    """Sessions in this process, each with a desktop of its own."""

    def session(self) -> Session:
        return Session()


class GivesUp:
    """Ends every episode with the same decision."""

    def __init__(self, decision: Decision):
        self.decision = decision

    def reset(self, episode: Episode) -> None:
        """Nothing to prepare."""

    async def act(self, observation: Observation) -> Decision:
        return self.decision


@pytest.fixture
async def session():
    async with Session() as session:
        yield session


async def test_oracle_episode_with_hook(session):
    seen = []

    class Seeing(InMemory):
        def step(self, step):
            seen.append(step)
            return None

    episode = await play(OraclePolicy(session.oracle), session, "fake/two-steps", seed=3, recorder=Seeing())
    assert episode.success and not episode.lost_by and episode.steps == ()
    assert (episode.terminal, episode.num_actions, episode.score) == (TerminalState.DONE, 2, 1.0)
    assert [step.terminal for step in seen] == ["", ""]
    assert [step.pixels.after is None for step in seen] == [True, False]
    assert all(isinstance(action_from_dict(step.actions[0]), Click) for step in seen)
    assert set(episode.timings) == {"reset", "generate", "step", "evaluate", "queue", "wire"}
    assert episode.instruction


@pytest.mark.parametrize("terminal", [TerminalState.PARSE_ERROR, TerminalState.MODEL_ERROR])
async def test_policy_side_ends(session, terminal):
    episode = await play(GivesUp(Decision(terminal=terminal, error="why")), session, TASKS[0])
    assert (episode.terminal, episode.num_actions, episode.error) == (terminal, 0, "why")
    assert bool(episode.lost_by) == (terminal is TerminalState.MODEL_ERROR)
    assert not episode.success


async def test_several_actions_stop_at_the_end(session):
    decision = Decision((Done(), Click(1, 1)))
    assert (await play(GivesUp(decision), session, TASKS[0])).num_actions == 1


async def test_step_limit(session):
    nowhere = GivesUp(Decision((Click(0, 0),)))
    episode = await play(nowhere, session, "fake/two-steps", max_steps=3)
    assert (episode.terminal, episode.num_actions) == (TerminalState.STEP_LIMIT, 3)


async def test_a_decision_needs_actions(session):
    with pytest.raises(ValueError, match="at least one action"):
        await play(GivesUp(Decision()), session, TASKS[0])


async def test_evaluate():
    told = []
    scores = await evaluate(
        Sessions(), lambda session: OraclePolicy(session.oracle), TASKS, range(4), concurrency=2, on_episode=told.append
    )
    assert [(score.task_id, score.episodes, score.successes, score.lost) for score in scores] == [
        (task, 4, 4, 0) for task in TASKS
    ]
    assert sorted((episode.task_id, episode.seed) for episode in told) == [(t, s) for t in TASKS for s in range(4)]
    assert scores[1].mean_steps == 2
    total = total_score(scores)
    assert (total.episodes, total.rate, total.terminals) == (8, 1.0, {"done": 8})
    random = await evaluate(Sessions(), lambda session: RandomPolicy(), TASKS[:1], range(4), max_steps=1)
    assert random[0].episodes == 4
    assert await evaluate(Sessions(), lambda session: RandomPolicy(), [], range(4)) == []


@pytest.mark.process
async def test_a_class_is_enough():
    class FirstTry(RandomPolicy):
        """Counts how many were made."""

        made = 0

        def __init__(self):
            super().__init__()
            FirstTry.made += 1

    told = []
    scores = await evaluate_policy(FirstTry, TASKS, episodes=3, first_seed=5, concurrency=2, on_episode=told.append)
    assert [(score.task_id, score.episodes, score.lost) for score in scores] == [(task, 3, 0) for task in TASKS]
    assert sorted((episode.task_id, episode.seed) for episode in told) == [(t, s) for t in TASKS for s in (5, 6, 7)]
    assert FirstTry.made == 2


def test_a_score_in_words():
    score = dataclasses.replace(score_task("fake/x", []), episodes=4, successes=3, low=0.3, high=0.954)
    assert str(score) == "fake/x: 3 of 4 episodes, 95 % interval 0.30 to 0.95"
    assert str(dataclasses.replace(score, lost=2)).endswith(", 2 lost")


async def test_the_first_error_ends_it():
    with pytest.raises(UnknownTaskError):
        await evaluate(Sessions(), lambda session: RandomPolicy(), ["fake/nothing"], range(9), concurrency=3)


async def test_lost_episodes_are_played_again_and_never_count_as_failures():
    class Flaky:
        """Loses every first attempt of an odd seed, and all attempts of seed 2."""

        def __init__(self):
            self.tries: dict[int, int] = {}

        @asynccontextmanager
        async def session(self):
            yield self

        async def reset(self, task, *, seed, max_steps=None, time_limit_s=None, pacing=None):
            self.tries[seed] = self.tries.get(seed, 0) + 1
            lost = seed == 2 or (seed % 2 and self.tries[seed] == 1)
            status = EvaluationStatus.ENVIRONMENT_ERROR if lost else EvaluationStatus.OK
            terminal = TerminalState.ENV_ERROR if lost else TerminalState.DONE
            evaluation = Evaluation(status, None if lost else 1.0, "test")
            return StepResult(Observation(None, "x"), terminal, evaluation)

    source = Flaky()
    [score] = await evaluate(source, lambda session: RandomPolicy(), ["fake/x"], range(4), attempts=3)
    assert (score.episodes, score.successes, score.lost) == (3, 3, 1)
    assert source.tries == {0: 1, 1: 2, 2: 3, 3: 2}


def test_wilson_interval():
    # Reference values: Newcombe, Stat. Med. 17 (1998), table I, method 3.
    for (successes, episodes), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(5, 5)[1] == 1.0
    with pytest.raises(ValueError, match="6 successes"):
        wilson_interval(6, 5)


def test_no_episodes_are_no_rate():
    empty = score_task("fake/x", [])
    assert math.isnan(empty.rate)
    assert total_score([empty]).episodes == 0
    full = dataclasses.replace(empty, episodes=2, successes=1, mean_score=0.5, mean_steps=1.0)
    assert total_score([empty, full]).mean_score == 0.5


# The command


def invoke(*arguments: str):
    return CliRunner().invoke(agent_cli.app, list(arguments), catch_exceptions=False)


@pytest.mark.process
def test_run_command():
    result = invoke("run", "fake/two-steps", "--policy", "oracle", "--seed", "2")
    assert result.exit_code == 0
    assert "done after 2 steps, score 1" in result.output
    assert result.output.count("Click(") == 2


@pytest.mark.process
def test_eval_command(tmp_path):
    path = tmp_path / "scores.json"
    result = invoke("eval", "fake", "--policy", "oracle", "--n", "2", "--json", str(path))
    assert result.exit_code == 0
    scores = json.loads(path.read_text())["scores"]
    assert [(score["task_id"], score["successes"]) for score in scores] == [*((task, 2) for task in TASKS), ("all", 4)]


@pytest.mark.thorough
@pytest.mark.process
def test_eval_command_by_application_and_compare(tmp_path):
    common = ("--n", "2", "--parallel", "2", "--max-steps", "2")
    for policy in ("oracle", "random"):
        out = str(tmp_path / policy)
        result = invoke("eval", "--suite", "fake", "--policy", policy, *common, "--k", "2", "--out", out)
        assert "pass@2" in result.output and "ended as: " in result.output
    scores = json.loads((tmp_path / "oracle/scores.json").read_text())
    fake, total = scores["apps"]
    assert (fake["app"], fake["pass_1"], fake["pass_k"]) == ("fake", 1.0, 1.0)
    low, high = fake["pass_k_interval"]
    assert 0 < low < 0.5 and high == 1.0
    assert (total["app"], total["episodes"], total["terminals"], total["lost_by"]) == ("all", 4, {"done": 4}, {})
    compared = invoke("compare", str(tmp_path / "random"), str(tmp_path / "oracle")).output
    assert "random" in compared and "oracle 100.0 %" in compared and "4 pairs (episodes)" in compared
    assert invoke("compare", str(tmp_path / "oracle"), str(tmp_path / "oracle")).output.startswith("no difference")


@pytest.mark.thorough
@pytest.mark.process
def test_run_command_records(tmp_path):
    command = ("run", "--task", "fake/two-steps", "--policy", "oracle", "--out", str(tmp_path / "one"))
    assert "done after 2 steps" in invoke(*command).output
    [episode] = find_episodes(tmp_path / "one")
    assert read_episode(episode).policy == "oracle"
    assert invoke("view", str(episode), "-o", str(tmp_path / "one.html")).output.strip().endswith("/one.html")


def test_eval_command_reads_tasks_from_files(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps({"id": "own", "instruction": "Do."}))
    assert named_tasks(["fake", str(tmp_path / "own.json"), "fake/two-steps"]) == [
        *TASKS,
        f"{tmp_path}/own.json",
    ]
    with pytest.raises(UnknownTaskError, match="cannot read"):
        named_tasks([str(tmp_path / "other.json")])


@pytest.mark.train
def test_tiny_command_and_a_model_that_plays(tmp_path):
    build = ("init", "tiny", "--out", str(tmp_path / "m"), "--set", "vision_layers=1", "--seed", "1")
    assert invoke(*build).exit_code == 0
    with pytest.raises(ConfigurationError, match="is there already, and nothing was written"):
        raise invoke(*build).exception
    with pytest.raises(ConfigurationError, match="no 'depth'"):
        raise invoke("init", "tiny", "--out", str(tmp_path / "n"), "--set", "depth=1").exception
    assert not (tmp_path / "n").exists()
    result = invoke(
        *("run", "fake/click-button", "--policy", "vlm", "--model", str(tmp_path / "m")),
        *("--style", "short", "--max-tokens", "6"),
    )
    assert "parse_error after 0 steps" in result.output


def test_a_runs_configuration_says_how_its_model_is_asked(tmp_path, monkeypatch):
    seen = []

    def opened(options, timeout):
        seen.append(options)
        raise ConfigurationError("enough")

    monkeypatch.setattr(agent_cli, "open_policies", opened)
    path = tmp_path / "config.yaml"
    path.write_text("agent: {style: short, screenshots: 1, texts: 4, max_pixels: 9, format: qwen}\nrollout: {}\n")
    with pytest.raises(ConfigurationError, match="enough"):
        invoke("run", "fake/two-steps", "--policy", "vlm", "--config", str(path), "--texts", "2")
    with pytest.raises(ConfigurationError, match="enough"):
        invoke("run", "fake/two-steps", "--policy", "vlm", "--format", "qwen")
    [options, plain] = seen
    assert (options.style, options.screenshots, options.texts, options.format) == ("short", 1, 2, "qwen")
    assert (plain.style, plain.screenshots) == ("format", 5), "a prompt is in the words of the format"


def test_errors_are_one_line(monkeypatch, capsys):
    for arguments, says in (
        (["eval", "fake/click-buton"], "fake/click-button"),
        (["run", "fake/two-steps", "--policy", "vlm"], "--model"),
        (["run", "fake/two-steps", "--policy", "vlm", "--style", "long"], "style: input should be"),
        (["run"], "name one task"),
        (["run", "fake/two-steps", "--policy", "vlm", "--format", "ui_trs"], "did you mean 'ui_tars'"),
        (["run", "fake/two-steps", "--task", "fake/click-button"], "name one task"),
        (["run", "fake/two-steps", "--out", "/"], "exists already"),
        (["eval"], "name tasks or suites"),
        (["eval", "fake", "--n", "2", "--k", "3"], "pass@3 needs at least 3 episodes"),
        (["compare", "/nowhere", "/nowhere"], "not the directory of an evaluation"),
        (["view", "/nowhere"], "holds no recorded episode"),
        (["run", "fake/two-steps", "--url", "ws://127.0.0.1:1", "--token-env", "NOT_SET_HERE"], "is not set"),
    ):
        monkeypatch.setattr("sys.argv", ["dart-agent", *arguments])
        with pytest.raises(SystemExit) as ended:
            agent_cli.main()
        said = capsys.readouterr().err.strip()
        assert ended.value.code != 0 and says in said and len(said.splitlines()) == 1
