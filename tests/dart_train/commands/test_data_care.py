"""`dart-train status`, `data check`, `data import --pool` as a user runs them, on a run that a configuration names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dart_agent.episodes.episode_files import find_episodes, read_episode, read_image
from dart_agent.episodes.trajectory import Step, Trajectory
from dart_agent.formats import get_format
from dart_agent.imports.importers import import_episodes
from dart_agent.models.image_patches import VisionSpec
from dart_agent.models.model_tokens import ModelTokens
from dart_agent.models.tiny_model import TinyModelConfig, write_processing
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.png import encode_png
from dart_train.commands.train_cli import app
from dart_train.config.run_config import ConfigError, load_config
from dart_train.core.train_errors import DataError
from dart_train.data import DataManager, image_hash
from dart_train.launch.pipeline import open_run
from dart_train.processes.process_context import open_data
from dart_train.rollout.play.written_down import Writer
from dart_train.run.run_directory import RunDirectoryError
from scripts.failures.situations import Situation
from scripts.failures.stub_server import Protocol, stub

CONFIG = """\
name: cared-for
rollout: {tasks: [fake/button], group_size: 2}
data:
  curation: {experience_pool: true}
  retention: {max_age_days: 0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def data(config: Path, tmp_path: Path) -> DataManager:
    loaded = load_config(config)
    with open_data(loaded, open_run(loaded, tmp_path / "runs")) as manager:
        yield manager


def record(data: DataManager, name: str, reward: float, source: str = "rollout", instruction: str = "Press it") -> None:
    image = np.full((8, 8, 3), len(name), np.uint8)
    step = Step(prompt_ids=(1,), image_hashes=(image_hash(image),), response_ids=(2,), logprobs=(-0.5,))
    trajectory = Trajectory(
        trajectory_id=name,
        run_id=data.run_id,
        task_id="fake/button",
        task_hash="0",
        instruction=instruction,
        seed=7,
        group_key="g",
        terminal=TerminalState.DONE,
        score=reward,
        steps=(step,),
        source=source,
    )
    data.record(trajectory, {image_hash(image): image})


def run(command: str, config: Path, *options: str) -> tuple[int, str]:
    words = [*command.split(), str(config), *options, "--runs-dir", str(config.parent / "runs")]
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def rows(command: str, config: Path, *options: str) -> Any:
    target = config.parent / "rows.json"
    run(command, config, *options, "--json", str(target))
    return json.loads(target.read_text())


def test_status_shows_and_gives_json(config, data):
    record(data, "a", 0.0)
    record(data, "b", 1.0)
    code, text = run("status", config)
    assert code == 0
    assert "2 of 2 trajectories eligible in 1 groups" in text
    figures = rows("status", config)
    assert figures["census"]["eligible"] == 2
    assert figures["groups_ready_by_task"] == {"fake/button": 1}
    assert figures["serving"] == {}
    data.publish(3, "s3://bucket/v3")
    data.serving("r0@host", 3)
    assert rows("status", config)["serving"] == {"r0@host": 3}


def test_status_shows_the_state_before_the_data(config, data):
    record(data, "a", 0.0)
    code, text = run("status", config)
    assert code == 0 and text.startswith("cared-for: not running")
    assert text.index("not running") < text.index("trajectories eligible")
    missing = "data.url=mysql+pymysql://me@127.0.0.1:9/runs"
    words = ["status", str(config), "--runs-dir", str(config.parent / "runs"), "--set", missing, "--timeout", "0.2"]
    done = CliRunner().invoke(app, words)
    assert done.output.startswith("cared-for: not running") and isinstance(done.exception, DataError)


def test_status_of_a_run_without_data(config, tmp_path):
    open_run(load_config(config), tmp_path / "runs")
    code, text = run("status", config)
    assert code == 0 and "it has no data yet" in text
    words = ["status", "cared-for", "--runs-dir", str(tmp_path / "runs"), "--json", str(tmp_path / "x.json")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, RunDirectoryError) and "there is no data" in str(done.exception)
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("option", [["--log", "learn"], ["--ray", "auto"]])
def test_status_refuses_options_of_the_data_where_it_shows_none(option, tmp_path):
    for words in (["--json", str(tmp_path / "x.json")], ["--set", "data.url=x"]):
        done = CliRunner().invoke(app, ["status", "mine", *option, *words])
        assert isinstance(done.exception, ConfigError) and option[0] in str(done.exception)


def test_the_other_tables_are_given_as_json_too(config, data):
    record(data, "a", 1.0)
    cleaned = rows("data check", config, "--clean", "--dry-run")["cleaned"]
    assert cleaned.items() >= {"dry_run": True, "removed": 0}.items()
    found = rows("status", config)
    assert (found["pool"], found["pool_by_task"]) == (0, [])
    data.files.remove_trajectory("a")
    found = rows("data check", config)
    assert (found["whole"], [one["problem"] for one in found["findings"]]) == (False, ["row without files"])


def test_check_tells_damage_by_its_exit_status_and_repairs_on_request(config, data):
    record(data, "a", 0.0)
    assert run("data check", config)[0] == 0
    data.files.remove_trajectory("a")
    code, text = run("data check", config, "--quick")
    assert code == 3
    assert "row without files" in text
    code, text = run("data check", config, "--repair")
    assert (code, "1 repaired" in text) == (0, True)
    assert run("data check", config)[0] == 0


def test_check_tells_of_a_database_that_cannot_be_opened(config, data):
    data.close()
    Path(data.store.where).write_bytes(b"not a database" * 500)
    code, text = run("data check", config)
    assert code == 3
    assert "database damaged" in text


def test_what_a_server_says_of_itself_is_no_damage(config, data):
    words = ["data", "check", str(config), "--runs-dir", str(config.parent / "runs")]
    with stub(Protocol.MYSQL, Situation.SERVER_ERROR) as server:
        address = f"mysql+pymysql://me@127.0.0.1:{server.port}/runs"
        done = CliRunner().invoke(app, [*words, "--set", f"data.url={address}"])
    assert isinstance(done.exception, DataError), done.output


def test_repair_and_clean_leave_a_run_whole_in_one_call(config, data):
    """Cleaning comes after the repair: before it, it is unknown which screenshots a damaged trajectory shows."""
    record(data, "a", 0.0)
    record(data, "damaged", 0.0)
    [path] = [path for path, _ in data.files.stored_trajectories() if path == "damaged"]
    data.files.remove_trajectory(path)
    code, text = run("data check", config, "--clean", "--repair")
    assert (code, "1 repaired" in text, "freed" in text) == (0, True, True)
    assert run("data check", config)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dry-run"], "--dry-run says what --clean would remove"),
        (["--url", "sqlite:////x"], "--url names a database for --migrate"),
    ],
)
def test_options_of_the_check_that_do_not_fit_are_refused(config, options, message):
    done = CliRunner().invoke(app, ["data", "check", str(config), *options])
    assert isinstance(done.exception, ConfigError) and message in str(done.exception)


@pytest.mark.parametrize("options", [[], ["--quick"], ["--clean"]])
def test_a_check_without_a_configuration_is_refused(options, tmp_path, monkeypatch):
    monkeypatch.delenv("DART_DATA_URL", raising=False)
    done = CliRunner().invoke(app, ["data", "check", *options])
    assert isinstance(done.exception, ConfigError) and "name the configuration of a run" in str(done.exception)
    if options:
        words = ["data", "check", "--migrate", "--url", f"sqlite:///{tmp_path}/x.sqlite", *options]
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, ConfigError) and "is only migrated" in str(done.exception)


def test_migrate_begins_a_run_that_is_then_whole(config, tmp_path):
    code, text = run("data check", config, "--migrate")
    assert (code, "has schema version" in text, "0 screenshots looked at: whole" in text) == (0, True, True)
    assert (tmp_path / "runs" / "cared-for" / "data").is_dir()


def test_a_directory_is_no_archive(config, tmp_path):
    for source in (str(tmp_path), "s3://bucket/people"):
        done = CliRunner().invoke(app, ["data", "import", str(config), source])
        assert isinstance(done.exception, ConfigError) and "--pool imports the successes" in str(done.exception)
    done = CliRunner().invoke(app, ["data", "import", str(config), "run.tar", "--as", "human"])
    assert isinstance(done.exception, ConfigError) and "give --pool as well" in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_clean_clears_away_by_the_configured_retention(config, data):
    for name, reward in (("a", 1.0), ("b", 1.0)):
        record(data, name, reward)
    assert "would be done" in run("data check", config, "--clean", "--dry-run")[1]
    assert len(list(data.files.stored_trajectories())) == 2
    code, text = run("data check", config, "--clean")
    assert (code, "trajectories removed by age or size" in text, ": whole" in text) == (0, True, True)
    assert list(data.files.stored_trajectories()) == []


def test_the_pool_is_shown_and_filled_from_another_run(config, data, tmp_path):
    assert "experience pool" not in run("status", config)[1]
    record(data, "shown", 1.0, source="oracle")
    code, text = run("data import", config, str(tmp_path / "runs" / "cared-for"), "--pool", "--as", "human")
    assert code == 0
    assert "imported" in text
    assert [item.source for item in data.trajectories(source="human")] == ["human"]
    assert "experience pool" in run("status", config)[1]
    pooled = rows("status", config)["pool_by_task"]
    assert {(one["provenance"], one["trajectories"]) for one in pooled} == {("human", 1), ("oracle", 1)}
    done = CliRunner().invoke(
        app,
        [
            "data",
            "import",
            str(config),
            str(tmp_path / "runs" / "cared-for"),
            "--pool",
            "--runs-dir",
            str(tmp_path / "runs"),
        ],
    )
    assert "--hint-marker" in str(done.exception)


def test_episodes_of_others_join_the_pool_in_the_words_of_the_runs_model(config, data, tmp_path):
    """`dart-agent import`, then `data import --pool`: screenshots and actions become prompts and responses."""
    loaded = load_config(config)
    model = open_run(loaded, tmp_path / "runs").checkpoint(0)
    model.mkdir(parents=True)
    write_processing(model, TinyModelConfig())
    value = {"thought": "The button.", "action": "", "code": "pyautogui.click(x=0.5, y=0.5)"}
    end = {"thought": "", "action": "", "code": "computer.terminate(status='success')"}
    traj = [{"image": "a.png", "value": value}, {"image": "a.png", "value": end}]
    rows = [
        {"task_id": name, "instruction": "Press it", "task_completed": done, "traj": traj}
        for name, done in (("good", True), ("failed", False))
    ]
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.png").write_bytes(encode_png(np.full((56, 84, 3), 9, np.uint8)))
    assert import_episodes(tmp_path / "theirs.jsonl", tmp_path / "imported").imported == 2
    code, text = run("data import", config, str(tmp_path / "imported"), "--pool", "--as", "human")
    assert code == 0, text
    [item] = data.trajectories(source="human")
    pooled = data.load_trajectory(item.trajectory_id)
    tokens = ModelTokens.load(model)
    words = [tokens.decode(step.response_ids) for step in pooled.steps]
    assert "click(start_box='(42,28)')" in words[0] and "The button." in words[0] and "finished()" in words[1]
    assert "Press it" in tokens.decode(pooled.steps[0].prompt_ids)
    assert [len(step.image_hashes) for step in pooled.steps] == [1, 1] and not pooled.steps[0].logprobs
    again = run("data import", config, str(tmp_path / "imported"), "--pool", "--as", "human")[1]
    assert len(list(data.trajectories(source="human"))) == 1, again
    [path] = [path for path in find_episodes(tmp_path / "imported") if "good" in path.name]
    episode = read_episode(path)
    sampled = replace(episode, steps=tuple(replace(step, response_ids=(1, 2)) for step in episode.steps))
    images = {name: read_image(path, name).pixels for name in episode.shown_images}
    writer = Writer(tokens, VisionSpec.from_dir(model), get_format(loaded.agent.format), loaded.agent)
    written = writer.write(sampled, images)[0].steps  # of an exported data set: what was sampled, and no prompts
    assert all(step.prompt_ids and step.response_ids != (1, 2) for step in written)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.curation.task_samplin=curriculum", "did you mean 'task_sampling'"),
        ("data.retention.max_age=3", "did you mean 'max_age_days'"),
        ("data.fles=/x", "did you mean 'files'"),
        ("data.curation.pool_sampling=best", "data.curation.pool_sampling"),
        ("data.image_format=webp", 'data.image_format: this key was removed: it is always "auto" now'),
    ],
)
def test_wrong_keys_and_values_are_named(config, override, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config(config, [override])


def test_files_may_lie_elsewhere_under_the_runs_name(config, tmp_path):
    loaded = load_config(config, [f"data.files={tmp_path}/shared"])
    with open_data(loaded, open_run(loaded, tmp_path / "runs")) as manager:
        record(manager, "a", 1.0)
        assert manager.files.root == tmp_path / "shared" / "cared-for"
        assert [Path(entry.key).suffix for _, entry in manager.files.stored_images()] == [".png"]


@pytest.mark.parametrize("command", ["status", "data check", "data check --clean"])
def test_a_command_that_reads_creates_no_directory_in_a_new_run(config, tmp_path, command):
    done = CliRunner().invoke(app, ["data", "check", str(config), "--migrate", "--runs-dir", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    root = tmp_path / "runs" / "cared-for"
    before = set(root.rglob("*"))
    code, text = run(command, config)
    assert code == 0, text
    assert set(root.rglob("*")) - before <= {root / "data" / "probe"}
