"""Imported suites: CUA-Gym's and OSWorld's layouts, right, broken and hostile, from wherever they may lie."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from dart_gym.core.errors import ConfigurationError, PluginError, TaskError, UnknownTaskError
from dart_gym.envs.env_settings import TaskChoice
from dart_gym.tasks.catalog.registry import get_task, is_suite, suites, task_ids
from dart_gym.tasks.catalog.task_index import TaskIndex
from dart_gym.utils.plugins import child_environment
from dart_train.config.task_names import expand
from tests.helpers import bundles
from tests.helpers.packages import install

OSWORLD = Path(__file__).parents[3] / "data" / "osworld"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Iterator[Path]:
    """Where the suites of a test are."""
    monkeypatch.setenv("DART_GYM_SUITES", str(tmp_path / "suites"))
    return tmp_path


def import_source(*arguments, **options) -> TaskIndex:
    from dart_gym_task_sources.task_import import import_source

    return import_source(*arguments, **options)


WRITERS = {
    "directory": lambda at: bundles.write_directory(at / "bundles", bundles.ALL),
    "tar": lambda at: bundles.write_tar(at / "all.tar", bundles.ALL),
    "tar.gz": lambda at: bundles.write_tar(at / "all.tar.gz", bundles.ALL),
    "zip": lambda at: bundles.write_zip(at / "all.zip", bundles.ALL),
    "data set": lambda at: bundles.write_data_set(at / "set", bundles.ALL),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp("source")) for name, write in WRITERS.items()}


def test_there_are_bundles_enough():
    assert len(bundles.ALL) >= 40
    assert min(map(len, (bundles.RIGHT, bundles.NEEDY, bundles.BROKEN, bundles.HOSTILE))) >= 5


@pytest.mark.parametrize("kind", WRITERS)
def test_each_bundle_is_taken_or_refused_as_documented(written, kind):
    index = import_source(str(written[kind]), "cua")
    refused, needs = dict(index.rows("SELECT * FROM problems")), dict(index.rows("SELECT name, needs FROM tasks"))
    assert set(refused) == {name for name, bundle in bundles.ALL.items() if bundle.refused}
    for name, bundle in bundles.ALL.items():
        if bundle.refused:
            assert bundle.refused in refused[name] and "\n" not in refused[name]
        else:
            assert bundle.needs in needs[name] and bool(bundle.needs) == bool(needs[name]), name
    assert task_ids("cua") == sorted(f"cua/{name}" for name in needs)


def test_what_is_read_is_what_was_written(written):
    index = import_source(str(written["tar.gz"]), "cua")
    for name in bundles.RIGHT:
        assert dict(index.files(name)) == dict(bundles.ALL[name].files)
        assert get_task(f"cua/{name}").id == f"cua/{name}"
    task = get_task("cua/right-unicode")
    assert "«Milch» 🥛" in task.instruction and task.desktop.profile == "osworld"
    steps = [step["type"] for step in get_task("cua/right-py").config]
    assert steps == ["download", "run_script"]  # its failure is one of the set-up
    assert get_task("cua/right-oracle").max_steps == 5
    assert get_task("cua/right-golden").raw["dart"]["golden"][1]["parameters"]["command"].startswith("python3")
    newer = get_task("cua/right-newer")
    assert newer.instruction.startswith("Write the second word") and newer.evaluator["type"] == "bash"
    staged = {entry["path"] for entry in newer.config[1]["parameters"]["files"]}
    assert "/tmp/tmp_workspace/context/words.csv" in staged and not any("gt" in path for path in staged)


def test_a_changed_file_of_a_bundle_changes_the_tasks_hash(place):
    def hash_of(reward: str) -> str:
        found = {"a": bundles.data_set_bundle("a", reward=reward)}
        import_source(str(bundles.write_zip(place / "a.zip", found)), "a")
        return get_task("a/a").hash

    assert hash_of("print('REWARD: 1')") == hash_of("print('REWARD: 1')") != hash_of("print('REWARD: 0')")


@pytest.mark.parametrize("member", ["/etc/evil", "../evil", "right-py/../../evil", "right-py/..\\x/../../../evil"])
@pytest.mark.parametrize("write", [bundles.write_tar, bundles.write_zip], ids=["tar", "zip"])
def test_archives_put_nothing_anywhere(place, member, write):
    archive = write(place / ("x.zip" if write is bundles.write_zip else "x.tar"), bundles.RIGHT, {member: b"evil"})
    before = sorted(place.parent.rglob("evil"))
    index = import_source(str(archive), "cua")
    assert [name for name, reason in index.rows("SELECT * FROM problems") if "leads out of it" in reason]
    assert ("cua/right-py" in task_ids("cua")) is not member.startswith("right-py")  # the others go on
    assert "cua/right-sh" in task_ids("cua")
    assert sorted(place.parent.rglob("evil")) == before and not Path("/etc/evil").exists()


def test_links_and_devices_of_archives_are_no_files(place):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, kind, target in (
            ("hard/reward.py", tarfile.LNKTYPE, "/etc/passwd"), ("device/task.json", tarfile.CHRTYPE, ""),
            ("fifo/task.json", tarfile.FIFOTYPE, ""), ("soft/task.json", tarfile.SYMTYPE, "../../etc/passwd"),
        ):  # fmt: skip
            item = tarfile.TarInfo(name)
            item.type, item.linkname = kind, target
            archive.addfile(item)
    (place / "x.tar").write_bytes(data.getvalue())
    with pytest.raises(TaskError, match=r"no task of .*x.tar could be imported"):
        import_source(str(place / "x.tar"), "cua")
    bundles.write_tar(place / "y.tar", {"right-py": bundles.RIGHT["right-py"]})
    with tarfile.open(place / "y.tar", "a") as archive:
        archive.addfile(item)
    assert import_source(str(place / "y.tar"), "cua").rows("SELECT name FROM problems") == [("soft",)]


def test_files_too_large_are_refused_with_their_bundle(place, monkeypatch):
    from dart_gym_task_sources import source_files

    monkeypatch.setattr(source_files, "LARGEST_FILE", 10_000)
    big = {"big": bundles.data_set_bundle("big", reward="#" * 20_000), "small": bundles.data_set_bundle("small")}
    index = import_source(str(bundles.write_zip(place / "x.zip", big)), "cua")
    assert task_ids("cua") == ["cua/small"] and "larger" in dict(index.rows("SELECT * FROM problems"))["big"]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda at: at / "none", "there is no directory or file"),
        (lambda at: (at / "x.zip").write_bytes(b"PK\x03\x04") and at / "x.zip", "cannot be read: BadZipFile"),
        (lambda at: (at / "x.tar.gz").write_bytes(b"\x1f\x8b??") and at / "x.tar.gz", "x.tar.gz cannot be read"),
        (lambda at: (at / "x.tar.zst").write_bytes(b"none") and at / "x.tar.zst", "x.tar.zst cannot be read"),
        (lambda at: (at / "x.parquet").write_bytes(b"none") and at / "x.parquet", "parquet file cannot be read"),
        (lambda at: (at / "x.json").write_text("{}") and at / "x.json", "x: a task needs a string 'id'"),
        (lambda at: (at / "x.json").write_text("{") and at / "x.json", "x: it is not JSON"),
        (lambda at: (at / "task_001.py").write_text("class T: ...") and at, r"OSWorld 2\.0's tasks, Python classes"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line(place, make, match):
    (place / "in").mkdir()
    with pytest.raises(TaskError, match=match) as caught:
        import_source(str(make(place / "in")), "cua")
    assert "\n" not in str(caught.value) and suites() and "cua" not in suites()


def test_a_failed_import_leaves_what_was_there(place, written):
    import_source(str(written["zip"]), "cua")
    before = task_ids("cua")
    with pytest.raises(TaskError):
        import_source(str(place / "none"), "cua")
    assert task_ids("cua") == before
    assert sorted(path.name for path in (place / "suites").iterdir()) == ["cua.sqlite"]


@pytest.mark.parametrize("name", ["fake", "a/b", "", "../x", "a b", "a[b]", "-x"])
def test_names_that_no_suite_can_have_are_refused(written, name):
    with pytest.raises(ConfigurationError, match="cannot be a suite's name"):
        import_source(str(written["zip"]), name)


def test_unknown_formats_and_columns_are_refused(place, written):
    (place / "in").mkdir()
    (place / "in" / "a.txt").write_text("a")
    with pytest.raises(ConfigurationError, match="is of no known format"):
        import_source(str(place / "in"), "cua")
    with pytest.raises(PluginError, match="unknown format of task sources 'cuagym'; did you mean 'cua-gym'"):
        import_source(str(written["zip"]), "cua", format_name="cuagym")
    with pytest.raises(ConfigurationError, match="'colour=red' chooses no tasks"):
        import_source(str(written["zip"]), "cua", chosen="colour=red")


def test_osworlds_tasks_come_with_their_applications_and_splits(place):
    index = import_source(str(OSWORLD), "ow")
    raw = json.loads(next(OSWORLD.rglob("c288e301*.json")).read_text())
    task = get_task(f"ow/{raw['id']}")
    assert task.raw == raw and task.desktop.profile == "osworld"
    assert len(task_ids("ow")) == len(index.ids()) == 54 and len(task_ids("ow[app=os]")) > 3
    some = [raw["id"]]
    for name, ids in (("test_all", index.ids()), ("test_small", some)):
        names = [task_id.removeprefix("ow/") for task_id in ids]
        (place / "examples" / "os").mkdir(parents=True, exist_ok=True)
        (place / f"{name}.json").write_text(json.dumps({"os": names}))
    (place / "examples" / "os" / "a.json").write_text(json.dumps(raw))
    import_source(str(place / "examples"), "few")
    for path in (place / "test_all.json", place / "test_small.json"):
        path.rename(place / "examples" / path.name)
    import_source(str(place / "examples"), "few")
    assert task_ids("few[split=small]") == [f"few/{raw['id']}"]


def test_rows_of_a_table_are_tasks(place):
    import pyarrow
    import pyarrow.parquet

    rows = [
        {"id": f"t{n}", "instruction": "x", "config": "[]", "evaluator": '{"func": "infeasible"}', "split": split}
        for n, split in enumerate(("train", "test", "train"))
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / "t.parquet")
    import_source(str(place / "t.parquet"), "rows")
    assert (
        task_ids("rows[split=train]") == ["rows/t0", "rows/t2"]
        and get_task("rows/t1").evaluator["func"] == "infeasible"
    )


def test_other_suites_are_sources(place):
    import_source("suite:miniwob", "clicks", held_out=0.25)
    assert len(task_ids("clicks")) == len(task_ids("miniwob"))
    train, test = task_ids("clicks[split=train]"), task_ids("clicks[split=test]")
    assert sorted(train + test) == task_ids("clicks") and 0.1 < len(test) / len(train + test) < 0.4
    assert get_task("clicks/click-test") == get_task("miniwob/click-test")


def test_urls_go_through_fsspec(place, written):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bundles/all.zip", written["zip"].read_bytes())
    for path in written["directory"].rglob("*"):
        if path.is_file() and not path.is_symlink():
            memory.pipe(f"/plain/{path.relative_to(written['directory'])}", path.read_bytes())
    wanted = {f"cua/{name}" for name, bundle in bundles.ALL.items() if not bundle.refused}
    for url in ("memory://bundles/all.zip", "memory://bundles", "memory://plain"):
        import_source(url, "cua")
        assert wanted <= set(task_ids("cua")), url
    with pytest.raises(TaskError, match="memory://none holds no files"):
        import_source("memory://none", "cua")
    with pytest.raises(TaskError, match="Protocol not known: nope"):
        import_source("nope://x", "cua")


def test_parts_of_a_suite_are_chosen_by_columns(written):
    index = import_source(str(written["data set"]), "cua", held_out=0.3)
    assert dict(index.rows("SELECT * FROM meta"))["licence"] == "cc-by-4.0"
    assert is_suite("cua[app=vlc]") and not is_suite("cva[app=vlc]")
    easy, others = task_ids("cua[difficulty=easy,app=os]"), task_ids("cua[difficulty!=easy]")
    assert easy and others and not set(easy) & set(others)
    assert expand(["cua[difficulty=easy,app=os]/*"]) == task_ids("cua[difficulty=easy,app=os,needs=]")
    assert {*task_ids("cua[split=test]"), *task_ids("cua[split=train]")} == {*task_ids("cua")}
    assert not set(task_ids("cua[needs=]")) & {f"cua/{name}" for name in bundles.NEEDY}
    import_source(str(written["data set"]), "easy", chosen="difficulty=easy,needs=", licence="CC0")
    assert len(task_ids("easy")) == len(task_ids("cua[difficulty=easy,needs=]"))
    assert dict(TaskIndex("easy").rows("SELECT * FROM meta"))["licence"] == "CC0"
    with pytest.raises(ConfigurationError, match="chooses no tasks"):
        task_ids("cua[colour=red]")


def test_an_environment_draws_without_reading_tasks(written, monkeypatch):
    import_source(str(written["zip"]), "cua")
    read = []
    from dart_gym.tasks.catalog import registry

    real = registry.task_from_dict
    monkeypatch.setattr(registry, "task_from_dict", lambda *given: read.append(given) or real(*given))
    choice = TaskChoice.make(None, None, "cua[needs=]", None, None)
    assert (choice.height, choice.width) == (1080, 1920) and len(read) == 1  # one size of screen
    rng = np.random.default_rng(0)
    assert len({choice.draw(rng) for _ in range(200)}) > 10 and len(read) == 1


def test_an_index_of_another_version_is_one_line_and_the_others_go_on(place, written, monkeypatch):
    import_source(str(written["zip"]), "old")
    import_source(str(written["zip"]), "new")
    with sqlite3.connect(place / "suites" / "old.sqlite") as database:
        database.execute("PRAGMA user_version = 0")
    (place / "suites" / "torn.sqlite").write_bytes(b"no database at all, but long enough to look at" * 30)
    old = r"the index of the suite old has version 0, and this program reads 1; next step: dart-gym tasks import"
    with pytest.raises(ConfigurationError, match=old):
        task_ids("old")
    with pytest.raises(ConfigurationError, match="the index of the suite torn cannot be read"):
        get_task("torn/x")
    listed = run("list")
    assert listed.exit_code == 0 and "new/right-py" in listed.stdout and "fake/click-button" in listed.stdout
    assert len(listed.stderr.strip().split("\n")) == 2


def test_an_unknown_task_of_a_suite_is_named_with_near_ones(written):
    import_source(str(written["zip"]), "cua")
    with pytest.raises(UnknownTaskError, match="unknown task 'cua/right-pi'; did you mean .*'cua/right-py'"):
        get_task("cua/right-pi")


RUN = {"capture_output": True, "text": True, "timeout": 100}


def run(*arguments: str):
    from dart_gym.commands.gym_cli import app

    return CliRunner().invoke(app, ["tasks", *arguments])


@pytest.mark.thorough
@pytest.mark.process
def test_the_commands(place, written, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    command = [sys.executable, "-m", "dart_gym.commands.gym_cli", "tasks", "import"]
    options = ["--name", "cua", "--held-out", "0.2", "--max-steps", "40"]
    made = subprocess.run([*command, written["data set"], *options], **RUN)
    assert made.returncode == 0, made.stderr
    assert "bad-reward: refused: its reward.py is not Python" in made.stdout
    assert made.stdout.splitlines()[-1] == "cua: 28 tasks, 19 can run here; licence: cc-by-4.0"
    assert run("list", "cua[needs=]").stdout.split() == task_ids("cua[needs=]")
    assert json.loads(run("list", "cua/right-py").stdout)["dart"]["max_steps"] == 40
    from dart_gym_task_sources import source_commands

    own = typer.Typer()
    source_commands.mount(own)  # `tasks` took it up only if it was there when that was imported
    stats = CliRunner().invoke(own, ["stats", "cua"]).stdout.splitlines()
    assert "licence\tcc-by-4.0" in stats and "refused\t19" in stats and "kind\tcua-gym\t28" in stats
    checked = run("check", "cua", "--reasons").stdout.splitlines()
    assert checked[0] == "19 tasks can run here, 28 cannot" and any(
        line.startswith("site-url: needs the mock sites slack") for line in checked
    )
    refused = subprocess.run([*command, "/no/such", "--name", "cua"], **RUN)
    assert refused.returncode and refused.stderr.startswith("dart-gym: ") and refused.stderr.count("\n") == 1


@pytest.mark.process
def test_without_the_package_the_command_says_how_to_install_it(monkeypatch):
    code = "import sys; sys.modules['dart_gym_task_sources'] = None; from dart_gym.commands.gym_cli import app; app()"
    done = subprocess.run([sys.executable, "-c", code, "tasks", "import", "x", "--name", "y"], **RUN)
    assert done.returncode and "pip install --no-deps ./integrations/task_sources" in done.stderr


def test_a_package_can_add_a_format(place, monkeypatch):
    source = """
from dart_gym_task_sources.source_formats import Imported
class Lines:
    def recognises(self, paths):
        return any(path.endswith(".lines") for path in paths)
    def read(self, files):
        for line in files["/a.lines"].decode().split("\\n"):
            yield Imported(line, {"id": line, "instruction": line})
"""
    install(
        place / "site",
        "test-lines",
        {"dart_gui.task_sources": {"lines": "lines_of_tests:Lines"}},
        {"lines_of_tests": source},
    )
    monkeypatch.syspath_prepend(str(place / "site"))
    (place / "a.lines").write_text("one\ntwo")
    assert import_source(str(place / "a.lines"), "lines").ids() == ["lines/one", "lines/two"]
