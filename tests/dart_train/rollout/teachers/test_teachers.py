"""Teachers beside the play: what they note and say is recorded with the student's steps, and nothing waits for them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from forked_play import OK_CLICK, Says
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from service_parts import config_of, echo_engine

from dart_agent.engines.base.engine import Engine, Generation, Prompt, Sampling
from dart_agent.engines.remote.engine_server import EngineServer
from dart_agent.episodes.trajectory import Pixels, Step, Trajectory
from dart_agent.formats import get_format
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_gym.core.outcomes import TerminalState
from dart_gym.tasks.suites.fake_suite import FakeScenario
from dart_train.config.run_config import RunConfig
from dart_train.core.data_states import Reason
from dart_train.core.training_alarms import AlarmBoard
from dart_train.data.curation.rules import CurationConfig
from dart_train.data.insight import statistics
from dart_train.data.manager.data_manager import DataManager
from dart_train.preflight.teacher_check import teacher_problems
from dart_train.processes.learn import trainer_arguments
from dart_train.processes.run_teacher import student_of
from dart_train.report.gather import taught_notes
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.service.rollout_service import RolloutService
from dart_train.rollout.settings.teacher_config import TeacherConfig
from dart_train.rollout.teachers.dagger import Dagger
from dart_train.rollout.teachers.distillation import Distillation
from dart_train.rollout.teachers.teacher import Student, TeacherAwayError, TeacherError
from dart_train.rollout.teachers.teaching import Teaching
from dart_train.rollout.teachers.told_prompt import told_prompt
from dart_train.run.run_directory import RunDirectory
from dart_train.trainer.batches.teacher_answers import TeacherAnswers

BESIDE = OK_CLICK.replace("42,56", "1,1")


class Judges(Says):
    """Says texts, and gives each token that it is to judge a log-probability of -0.5."""

    def __init__(self, text: str) -> None:
        super().__init__(itertools.repeat(text))
        self.judged: list[Prompt] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        if not sampling.given_ids:
            return await super().generate(prompt, sampling)
        self.judged.append(prompt)
        logprobs = (-0.5,) * len(sampling.given_ids)
        return Generation("", sampling.given_ids, logprobs, (0, 0), "stop", engine="judge")


@pytest.fixture
def flat_data(tmp_path):
    """Groups without signal are dropped, as by default."""
    config = CurationConfig(group_size=2, batches_ahead=None, max_staleness=None)
    with DataManager.open(f"sqlite:///{tmp_path}/dart.sqlite", tmp_path / "data", "run", config=config) as manager:
        yield manager


@pytest.fixture
def make_student(tokens, vision):
    def make(engine: Engine, directory: Path) -> Student:
        sampling = Sampling(
            8, stop_ids=tokens.stop_ids, suppressed_ids=tokens.suppressed_ids, ids_below=tokens.highest_id + 1
        )
        return Student("", tokens, vision, get_format("ui_tars"), sampling, engine, directory)

    return make


async def taught_service(
    data: DataManager,
    sockets: Path,
    cluster_url: str,
    make_policy,
    make_teacher,
    *,
    engine: Says,
    budget: int = 8,
    meanwhile=None,
    **teacher,
) -> RolloutService:
    async with EngineServer(engine).listening(f"ws+unix://{sockets / 'says.sock'}") as engine_url:
        config = config_of(engine_url, tasks=("fake/two-steps",), group_size=2, budget_rollouts=budget)
        service = RolloutService(
            config, data, url=cluster_url, weights=Weights("", 0), make_policy=make_policy,
            teacher=TeacherConfig(**teacher), make_teacher=make_teacher,
        )  # fmt: skip
        running = asyncio.create_task(service.run())
        if meanwhile is not None:
            await meanwhile(service, running)
        await running
    return service


def by_model(kind: type, make_student, model: Path, **options):
    """Return what makes the teacher of a service from a model."""
    return lambda engine, directory: kind(make_student(engine, directory), model=str(model), **options)


# --- DAgger -------------------------------------------------------------------------------------------------------


async def test_an_oracles_answers_are_recorded_in_the_states_that_the_student_came_to(
    sockets, flat_data, cluster_url, make_policy, make_student, tokens
):
    def make(engine, directory):
        return Dagger(make_student(engine, directory), until="end")

    service = await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE))
    played = list(flat_data.trajectories(source="rollout"))
    assert len(played) == 8 and all(not one.score for one in played)
    for one in played:
        for step in one.steps:
            assert step.advice.startswith("Action: click(") and step.text != step.advice
            assert step.target_ids == tuple(tokens.response(step.advice)) and step.teacher_logprobs == ()
    assert len({step.advice for one in played for step in one.steps}) > 1  # of the seed's own buttons
    ready, _ = flat_data.ready()
    assert ready == 4 and flat_data.census().dropped == {}  # equal rewards, and yet they teach
    steps = sum(len(one.steps) for one in played)
    assert flat_data.read(statistics.taught) == statistics.TaughtCounts({"fake/two-steps": 8}, steps, 4)
    assert service.figures()["teacher"] == {"steps": steps, "untaught": 0, "waiting": 0, "away": ""}


CLICKS = [{"kind": "click", "x": x, "y": y, "button": "left", "count": 1} for x, y in ((40, 50), (60, 50), (90, 9))]


def did(*clicks: dict[str, object]) -> tuple[Step, ...]:
    """An episode whose oracle would have clicked at (40, 50), typed, and clicked there again."""
    wanted = ("click(start_box='(40,50)')", "type(content='ok')", "click(start_box='(40,50)')")
    actions = (clicks[0], {"kind": "type", "text": "ok"}, clicks[1])
    return tuple(
        Step(response_ids=(1,), advice=f"Action: {words}", actions=(action,), screen=(168, 224))
        for words, action in zip(wanted, actions, strict=True)
    )


@pytest.mark.parametrize(
    ("first", "near", "until", "taught"),
    [
        (0, 24, "mistake", [True, True, True]),
        (1, 24, "mistake", [True, True, True]),  # 20 pixels beside
        (1, 8, "mistake", [True, False, False]),
        (2, 24, "mistake", [True, False, False]),
        (2, 24, "end", [True, True, True]),
    ],
)
async def test_an_episode_is_taught_up_to_its_first_mistake(make_student, tmp_path, first, near, until, taught):
    """Behind it the oracle mends, and a student that does not see the mistake learns to mend where nothing is wrong."""
    teacher = Dagger(make_student(Says([]), tmp_path), until=until, near=near)
    steps = did(CLICKS[first], CLICKS[0])
    assert [(await teacher.teach(steps, place)).taught for place in range(3)] == taught


async def test_what_cannot_be_read_or_does_something_else_is_a_mistake(make_student, tmp_path):
    teacher = Dagger(make_student(Says([]), tmp_path))
    good = did(CLICKS[0], CLICKS[0])
    for wrong in ((), (CLICKS[0], CLICKS[0]), ({"kind": "type", "text": "ok"},), ({**CLICKS[0], "button": "right"},)):
        steps = (replace(good[0], actions=wrong), *good[1:])
        assert [(await teacher.teach(steps, place)).taught for place in range(3)] == [True, False, False]
    silent = (replace(good[0], advice=""), *good[1:])
    assert [(await teacher.teach(silent, place)).taught for place in range(3)] == [False, False, False]


@pytest.mark.parametrize(("until", "taught"), [("mistake", 1), ("end", 99)])
async def test_a_better_model_answers_what_the_student_was_asked(
    sockets, flat_data, cluster_url, make_policy, make_student, model_dir, until, taught
):
    expert = Says(itertools.repeat(OK_CLICK))
    async with EngineServer(expert).listening(f"ws+unix://{sockets / 'expert.sock'}") as url:
        make = by_model(Dagger, make_student, model_dir, url=url, until=until)
        await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE))
    played = list(flat_data.trajectories(source="rollout"))
    assert len(played) == 8 and all(one.taught_steps == min(taught, len(one.steps)) for one in played)
    assert all(step.advice == "" for one in played for step in one.steps)
    asked = Counter(prompt.token_ids for prompt in expert.prompts)
    # Each state once, and with "mistake" nothing behind the first one: the student clicks beside everything.
    assert asked == Counter(step.prompt_ids for one in played for step in one.steps[:taught])
    assert all(len(step.target_ids) in (1, 2, 3) for one in played for step in one.steps if step.taught)
    assert all(prompt.images[0].shape == (224, 168, 3) for prompt in expert.prompts)


@pytest.mark.parametrize("text", ["I do not know", OK_CLICK.replace("click(", "clack("), ""])
async def test_what_a_model_says_and_nobody_can_read_teaches_nothing(
    sockets, flat_data, cluster_url, make_policy, make_student, model_dir, text
):
    async with EngineServer(Says(itertools.repeat(text))).listening(f"ws+unix://{sockets / 'expert.sock'}") as url:
        make = by_model(Dagger, make_student, model_dir, url=url, until="end")
        await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE))
    assert all(one.taught_steps == 0 and one.score == 0.0 for one in flat_data.trajectories(source="rollout"))
    assert flat_data.census().dropped == {Reason.NO_SIGNAL: 8}


async def test_of_a_model_only_answers_that_came_to_an_end_are_lessons(make_student, model_dir, tmp_path):
    asked: list[Sampling] = []

    class Breaks(Says):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
            asked.append(sampling)
            return Generation(OK_CLICK, (5, 6), (-1.0, -1.0), (0, 0), "stop" if len(asked) == 1 else "length")

    async with EngineServer(Breaks([])).listening(f"ws+unix://{tmp_path / 'expert.sock'}") as url:
        teacher = Dagger(student := make_student(Says([]), tmp_path), model=str(model_dir), url=url, until="end")
        await teacher.start()
        steps = Episode(replace(step, pixels=Pixels(prompt=())) for step in did(CLICKS[0], CLICKS[0]))
        assert [(await teacher.teach(steps, place)).target_ids for place in range(3)] == [(5, 6), (), ()]
        await teacher.close()
    assert asked == [replace(student.sampling, temperature=0.0)] * 3  # its likeliest answer
    kept = weakref.ref(steps)
    del steps
    gc.collect()
    assert kept() is None  # an episode that was taught is let go of, with its screens


class Episode(list[Step]):
    """Steps that a weak reference can point to."""


async def test_without_a_teacher_the_same_groups_are_dropped(sockets, flat_data, cluster_url, make_policy):
    service = await taught_service(flat_data, sockets, cluster_url, make_policy, None, engine=Judges(BESIDE))
    assert flat_data.ready() == (0, 0) and flat_data.census().dropped == {Reason.NO_SIGNAL: 8}
    assert "teacher" not in service.figures() and flat_data.read(statistics.taught) == statistics.TaughtCounts()
    assert all(step.advice == "" for one in flat_data.trajectories() for step in one.steps)


# --- distillation -------------------------------------------------------------------------------------------------


async def test_a_student_teaches_itself_what_only_the_teacher_is_told(
    sockets, flat_data, cluster_url, make_policy, make_student, tokens
):
    def make(engine, directory):
        return Distillation(make_student(engine, directory), told="oracle", words="Do this: {told}")

    engine = Judges(BESIDE)
    await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=engine)
    steps = [step for one in flat_data.trajectories() for step in one.steps]
    assert all(step.teacher_logprobs == (-0.5,) * len(step.response_ids) for step in steps)
    told = Counter(tokens.decode(prompt.token_ids, special=True) for prompt in engine.judged)
    for step in steps:
        asked = tokens.decode(step.prompt_ids, special=True)
        head, end, tail = asked.rpartition("<|im_end|>")
        assert told[f"{head}\nDo this: {step.advice}{end}{tail}"] > 0
        assert step.advice not in asked
    assert all(prompt.images[0].shape == (224, 168, 3) for prompt in engine.judged)


async def test_the_accessibility_tree_is_asked_for_and_told(sockets, flat_data, cluster_url, make_policy, make_student):
    def make(engine, directory):
        return Distillation(make_student(engine, directory), told="tree")

    await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE), budget=2)
    steps = [step for one in flat_data.trajectories() for step in one.steps]
    assert steps and all(step.advice.startswith("<desktop-frame") and step.teacher_logprobs for step in steps)


@pytest.mark.parametrize("kind", [Dagger, Distillation])
async def test_training_goes_on_without_a_teacher_that_dies_and_says_so(
    sockets, flat_data, cluster_url, make_policy, make_student, model_dir, caplog, kind
):
    """An engine in a process of its own, which is killed."""
    url = f"ws+unix://{sockets / 'teacher.sock'}"
    with echo_engine(url, model_dir) as process:
        async with asyncio.timeout(60):
            while not (sockets / "teacher.sock").exists():
                await asyncio.sleep(0.05)

        make = by_model(kind, make_student, model_dir, url=url)

        async def kill(service, running):
            while not running.done() and not (service.playing and service.figures()["teacher"]["steps"]):
                await asyncio.sleep(0.01)
            process.kill()

        with caplog.at_level(logging.WARNING):
            service = await taught_service(
                flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE), budget=60, meanwhile=kill
            )
    said = service.figures()["teacher"]
    assert service.scheduler.completed == 60 == len(list(flat_data.trajectories()))
    assert said["steps"] > 0 and said["untaught"] > 0 and said["away"].startswith("the teacher is away")
    assert caplog.text.count("the teacher is away") == 1
    episodes = list(flat_data.trajectories())
    steps = [step for one in episodes for step in one.steps]
    assert sum(step.taught for step in steps) == said["steps"]
    assert sum(not one.taught_steps for one in episodes) == said["untaught"]
    taught = [step for step in steps if step.taught]
    judged = 0 if kind is Dagger else 1  # one number for each token that was sampled, or an answer
    assert all(len(step.teacher_logprobs) == judged * len(step.response_ids) for step in taught)
    assert all(bool(step.target_ids) == (kind is Dagger) for step in taught)
    assert flat_data.census().dropped[Reason.NO_SIGNAL] > 0 and flat_data.ready()[0] > 0


@pytest.mark.thorough
async def test_an_engine_of_ones_own_is_started_and_ends_with_the_run(
    sockets, flat_data, cluster_url, make_policy, make_student, model_dir
):
    make = by_model(Distillation, make_student, model_dir)
    service = await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE), budget=2)
    assert service.figures()["teacher"]["untaught"] == 0 < service.figures()["teacher"]["steps"]


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory) -> Path:
    """A model with other words."""
    config = TinyModelConfig(hidden_size=32, layers=1)
    target = build_tiny_model(tmp_path_factory.mktemp("other"), seed=1, config=config)
    path = target / "tokenizer.json"
    values = json.loads(path.read_text())
    words = values["model"]["vocab"]
    first, second = [place for place, (word, _) in enumerate(words) if word in ("a", "b")]
    words[first], words[second] = words[second], words[first]
    path.write_text(json.dumps(values))
    return target


async def test_a_teacher_with_another_tokenizer_is_refused_before_the_first_episode(
    sockets, flat_data, cluster_url, make_policy, make_student, other_dir
):
    make = by_model(Distillation, make_student, other_dir)
    with pytest.raises(TeacherError, match=r"has another tokenizer than the student.*'[ab]' is .*take a teacher of"):
        await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE))
    assert not list(flat_data.trajectories())


def run_of(student: Path, **values) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "r", "model": {"path": str(student)}, "rollout": {"tasks": ["fake/two-steps"]}, **values}
    )


def test_what_is_wrong_with_a_teacher_is_said_before_anything_starts(model_dir, other_dir, tmp_path):
    def problems(options: dict, **values) -> list[str]:
        return teacher_problems(run_of(model_dir, teacher={"kind": "distillation", "options": options}, **values))

    assert problems({"model": str(model_dir)}) == []
    assert "has another tokenizer" in problems({"model": str(other_dir)})[0]
    assert "no model" in problems({"model": str(tmp_path)})[0]
    hot = {"rollout": {"tasks": ["fake/two-steps"], "sampling": {"temperature": 0.7}}}
    assert "at temperature 1 only" in problems({"model": str(model_dir), "url": "http://127.0.0.1:1"}, **hot)[0]
    dagger = {"teacher": {"kind": "dagger"}}
    assert teacher_problems(run_of(model_dir, **dagger)) == []
    office = {"rollout": {"tasks": ["debian-basics/*"]}}
    assert "follows a recorded script" in " ".join(teacher_problems(run_of(model_dir, **office, **dagger)))

    def expert(model: Path) -> list[str]:  # which looks at the state, whatever the task's oracle does
        teacher = {"kind": "dagger", "options": {"model": str(model)}, "rehearsed_rows": 8}
        return teacher_problems(run_of(model_dir, teacher=teacher, **office))

    assert expert(model_dir) == []
    assert "has another tokenizer" in expert(other_dir)[0] and "no model" in expert(tmp_path)[0]
    assert "built in are tiny-base" in expert(tmp_path)[0]
    named = {"kind": "dagger", "options": {"model": "tiny-multiturn"}}  # a shipped model, as in model.path
    assert teacher_problems(run_of(Path("tiny-actor"), teacher=named, **office)) == []
    with pytest.raises(ValidationError, match="url needs model as well"):
        run_of(model_dir, teacher={"kind": "dagger", "options": {"url": "ws://127.0.0.1:1"}})
    with pytest.raises(ValidationError, match="cannot teach itself what it does not know"):
        run_of(model_dir, teacher={"kind": "distillation"})
    with pytest.raises(ValidationError, match="unknown teacher 'daggre'"):
        run_of(model_dir, teacher={"kind": "daggre"})
    with pytest.raises(ValidationError, match="options.grid: unknown key"):  # that of the demonstrations
        run_of(model_dir, teacher={"kind": "dagger", "options": {"grid": 4}})
    with pytest.raises(ValidationError, match="options.tols: unknown key; did you mean 'told'"):
        run_of(model_dir, teacher={"kind": "distillation", "options": {"tols": "tree"}})
    assert "nobody teaches" in teacher_problems(run_of(model_dir, teacher={"rehearsed_rows": 8}))[0]
    judging = {"kind": "distillation", "options": {"model": str(model_dir)}, "rehearsed_rows": 8}
    assert "gives no answers" in teacher_problems(run_of(model_dir, teacher=judging))[0]


DAGGER = {"kind": "dagger", "rehearsed_rows": 24}


def test_the_trainer_follows_the_section(model_dir, tmp_path):
    run = RunDirectory(tmp_path)
    plain, taught = run_of(model_dir), run_of(model_dir, teacher={**DAGGER, "when": "always", "coef": 0.5})
    assert trainer_arguments(plain, run).teacher_when == "never"
    arguments = trainer_arguments(taught, run)
    assert (arguments.teacher_when, arguments.teacher_coef, arguments.teacher_rehearsed_rows) == ("always", 0.5, 24)
    grid = {"demonstrations": {"tasks": ["fake/two-steps"], "per_task": 1, "grid": 4}}
    assert student_of(model_dir, run_of(model_dir, **grid), None).grid == 4


async def test_a_teacher_that_cannot_be_reached_ends_a_run_before_it_begins_and_none_that_goes_on(
    sockets, flat_data, cluster_url, make_policy, make_student, model_dir
):
    make = by_model(Distillation, make_student, model_dir, url=f"ws+unix://{sockets / 'nobody.sock'}")

    async def play(make_teacher, **more):
        return await taught_service(flat_data, sockets, cluster_url, make_policy, make_teacher, **more)

    with pytest.raises(TeacherError, match="no engine at ws.unix"):
        await play(make, engine=Judges(BESIDE))
    await play(None, engine=Judges(BESIDE), budget=4)
    service = await play(make, engine=Judges(BESIDE), budget=8)  # the run's next life
    said = service.figures()["teacher"]
    assert service.scheduler.completed == 8 and said["steps"] == 0 < said["untaught"]
    assert "no engine at ws+unix" in said["away"]


async def test_a_teacher_that_comes_back_in_a_later_life_teaches(monkeypatch):
    """It is away when the run goes on, and gets ready at a later episode."""

    class Late(Odd):
        tries = 0

        async def start(self) -> None:
            self.tries += 1
            if self.tries < 3:
                raise TeacherAwayError("not yet")

    monkeypatch.setattr("dart_train.core.availability.FIRST_PAUSE_S", 0.0)
    teacher, recorded = Late("answer"), []
    teaching = Teaching(teacher, lambda one, expected: recorded.append(one))
    with pytest.raises(TeacherAwayError):
        await teaching.start()
    await teaching.start(resumed=True)
    plain = object()
    assert "not yet" in teaching.figures()["teacher"]["away"] and teaching.advised(plain, None) is plain
    teaching.hand_in(failed("e"), 2)
    await teaching.settle(5.0)
    assert teaching.taught == 2 and teaching.figures()["teacher"]["away"] == ""
    assert teaching.advised(plain, None) is not plain


def test_a_teacher_that_is_gone_raises_the_alarm_although_its_groups_are_dropped(flat_data):
    answers, board = TeacherAnswers(flat_data, always=False), AlarmBoard(2)
    assert answers() == {}

    def record(group: str, taught: int, score: float = 0.0) -> None:
        for number in range(2):
            one = failed(f"{group}.{number}", score=score)
            steps = [replace(step, target_ids=(1, 2)) for step in one.steps[:taught]]
            one = replace(one, run_id="run", group_key=group, steps=(*steps, *one.steps[taught:]))
            flat_data.record(one, expected=2)

    record("a", taught=2)
    assert answers() == {"teacher/answered": 1.0} and answers() == {}
    record("b", taught=1)  # all that it had to say
    record("s", taught=0, score=1.0)  # which needs no teacher
    assert answers() == {"teacher/answered": 1.0}
    for group in "cd":
        record(group, taught=0)
        board.look(answers())
    assert flat_data.census().dropped[Reason.NO_SIGNAL] == 6 and "teacher" in board.raised
    assert TeacherAnswers(flat_data, always=True)() == {"teacher/answered": 4 / 10}
    assert flat_data.read(statistics.asked) == statistics.AskedCounts(8, 4, flat_data.read(statistics.asked).newest)


async def test_an_oracle_with_a_defect_costs_its_lessons_and_no_episode(
    sockets, flat_data, cluster_url, make_policy, make_student, monkeypatch
):
    async def broken(scenario, desktop):
        raise ValueError("there is no way")

    monkeypatch.setattr(FakeScenario, "oracle", broken)

    def make(engine, directory):
        return Dagger(make_student(engine, directory), until="end")

    await taught_service(flat_data, sockets, cluster_url, make_policy, make, engine=Judges(BESIDE))
    played = list(flat_data.trajectories(source="rollout"))
    assert len(played) == 8 and all(one.score == 0.0 and one.steps for one in played)
    assert not any(step.advice or step.target_ids for one in played for step in one.steps)
    assert flat_data.read(statistics.untrainable_counts) == {}


# --- teaching -----------------------------------------------------------------------------------------------------


class Odd:
    """A teacher of somebody's, that does what it is told to with each step in turn."""

    def __init__(self, *does: str) -> None:
        self.does = itertools.cycle(does)

    async def start(self) -> None:
        """Nothing."""

    async def see(self, session, observation) -> str:
        raise RuntimeError("blind")

    async def teach(self, steps: Sequence[Step], place: int) -> Step:
        match next(self.does):
            case "hang":
                await asyncio.Event().wait()
            case "raise":
                raise RuntimeError("broken")
        return replace(steps[place], target_ids=(1, 2))

    async def close(self) -> None:
        """Nothing."""


def failed(name: str, steps: int = 2, score: float | None = 0.0) -> Trajectory:
    step = Step(response_ids=(1,), logprobs=(-1.0,), finish_reason="stop")
    return Trajectory("t", 0, trajectory_id=name, terminal=TerminalState.DONE, score=score, steps=(step,) * steps)


async def test_every_episode_is_recorded_once_whatever_its_teacher_does():
    for does in (("answer",), ("hang",), ("raise",), ("answer", "hang"), ("answer", "raise")):
        recorded: list[Trajectory] = []
        teaching = Teaching(Odd(*does), lambda one, expected, kept=recorded: kept.append(one), timeout_s=0.05)
        for number in range(5):
            teaching.hand_in(failed(f"e{number}"), 2)
        assert teaching.waiting == 5 and not recorded
        await teaching.settle(5.0)
        assert sorted(one.trajectory_id for one in recorded) == [f"e{number}" for number in range(5)]
        untaught = sum(not one.taught_steps for one in recorded)
        assert (teaching.waiting, teaching.untaught) == (0, untaught)
        assert teaching.taught == sum(one.taught_steps for one in recorded)
        assert (teaching.taught > 0) == ("answer" in does) and (untaught == 5) == ("answer" not in does)
        assert bool(teaching.figures()["teacher"]["away"]) == (does != ("answer",))


async def test_a_service_that_ends_records_what_was_being_taught():
    recorded: list[Trajectory] = []
    teaching = Teaching(Odd("hang"), lambda one, expected: recorded.append(one), timeout_s=60.0)
    teaching.hand_in(failed("e"), 2)
    await asyncio.sleep(0)
    await teaching.settle(0.01)
    assert [one.trajectory_id for one in recorded] == ["e"] and teaching.untaught == 1


async def test_successes_and_what_does_not_count_are_not_taught():
    recorded: list[Trajectory] = []
    teaching = Teaching(Odd("answer"), lambda one, expected: recorded.append(one))
    for one in (failed("s", score=1.0), failed("l", score=None), failed("n", steps=0)):
        teaching.hand_in(one, 2)
    assert len(recorded) == 3 and not any(one.taught_steps for one in recorded)  # at once
    always = Teaching(Odd("answer"), lambda one, expected: recorded.append(one), when="always")
    always.hand_in(failed("s", score=1.0), 2)
    await always.settle(1.0)
    assert recorded[-1].taught_steps == 2


async def test_a_blind_teacher_costs_no_episode(sockets, flat_data, cluster_url, make_policy, caplog):
    service = await taught_service(
        flat_data, sockets, cluster_url, make_policy, lambda engine, directory: Odd("answer"), engine=Judges(BESIDE)
    )
    assert (
        service.scheduler.completed == 8 and "the teacher notes nothing of a state: RuntimeError: blind" in caplog.text
    )
    assert all(step.advice == "" for one in flat_data.trajectories() for step in one.steps)


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_teacher_is_told_stays_text(prompt, tokens: ModelTokens, text):
    told = told_prompt(prompt, f"{text}<|im_end|><|im_start|>", tokens)
    for special in (tokens.im_end_id, tokens.im_start_id, tokens.image_pad_id):
        assert told.token_ids.count(special) == prompt.token_ids.count(special)
    assert told.images is prompt.images and told_prompt(prompt, "", tokens) == prompt


def test_the_report_names_who_taught_what(model_dir):
    config = run_of(model_dir, teacher={"kind": "dagger"})
    (said,) = taught_notes(config, statistics.TaughtCounts({"a": 2, "b": 5}, 12, 3))
    assert "dagger taught 12 steps of 7 rollouts, by task b (5), a (2); 3 groups" in said
    assert "taught nothing" in taught_notes(config, statistics.TaughtCounts())[0]
    assert taught_notes(run_of(model_dir), statistics.TaughtCounts()) == []
    away = {"teacher": {"away": "the teacher is away for 3 s: EngineError: gone"}}
    rows = [{"t": 1.0, "teacher": {"away": ""}}, {"t": 2.0, **away}, {"t": 4.0, **away}]
    asked = statistics.AskedCounts(20, 8, 9)
    _, missed, gone = taught_notes(config, statistics.TaughtCounts({"a": 2}, 12, 3), asked, rows)
    assert missed == "8 of 20 episodes that the teacher was to teach came without a lesson."
    assert gone.startswith("The teacher was away for 2 s, and was not back at the end; training went on without it: ")
    back = [*rows, {"t": 7.0, "teacher": {"away": ""}}]
    assert "away for 5 s; training" in taught_notes(config, statistics.TaughtCounts({"a": 2}, 12, 3), asked, back)[2]
