"""Writes bundles in CUA-Gym's documented layouts: right ones, broken ones, hostile ones. None is anybody's but ours."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NOTE = "/home/user/note.txt"
REWARD = f"""
import os
total = 0.0
try:
    text = open({NOTE!r}).read().strip()
    if text == "milk":
        total = 1.0
    elif "milk" in text:
        total = 0.5
except OSError as error:
    print("FAIL:", error)
print(f"REWARD: {{total}}")
"""
SETUP = "open('/home/user/note.txt', 'w').write('bread')\n"
CHECK = """#!/usr/bin/env bash
set -euo pipefail
python3 - <<'PY'
import json, pathlib
wanted = json.loads(pathlib.Path("/tmp_workspace/gt/expected.json").read_text())["word"]
found = pathlib.Path("/tmp_workspace/results/answer.txt")
text = found.read_text().strip() if found.exists() else ""
given = pathlib.Path("/tmp_workspace/context/words.csv").read_text()
score = 1.0 if text == wanted and wanted in given else 0.0
print("checked", repr(text))
print(json.dumps({"overall_score": score, "subscores": {"answer": score}, "errors": []}))
PY
"""
UDA_SETUP = """#!/usr/bin/env bash
set -euo pipefail
mkdir -p /tmp_workspace/results
test -f /tmp_workspace/context/words.csv
test -f /tmp_workspace/.uda_hidden/seed.txt
sleep 300 &
"""


@dataclass(frozen=True)
class Bundle:
    """Files of a bundle and what an import must make of it.

    Attributes:
        refused: part of the reason; "" where it is taken.
        needs: part of what it needs besides.
    """

    files: Mapping[str, bytes]
    refused: str = ""
    needs: str = ""
    links: Mapping[str, str] = field(default_factory=dict)


def task_json(name: str, **changes: object) -> dict:
    """A task.json of the data set's layout: download the set-up, run it, score by reward.py."""
    target = "/home/user/initial_setup.py"
    return {
        "id": name,
        "instruction": f"Write milk into {NOTE}.",
        "app_type": "os",
        "config": [
            {"type": "download", "parameters": {"files": [{"url": "./initial_setup.py", "path": target}]}},
            {"type": "execute", "parameters": {"command": f"python3 {target}"}},
        ],
        "evaluator": {"type": "python", "url": "./reward.py"},
        **changes,
    }


def data_set_bundle(name: str, *, without: str = "", reward: str = REWARD, setup: str = SETUP, **changes) -> Bundle:
    """A bundle of the data set's layout."""
    files = {
        "task.json": json.dumps(task_json(name, **changes)).encode(),
        "reward.py": reward.encode(),
        "initial_setup.py": setup.encode(),
    }
    files.pop(without, None)
    return Bundle(files)


def newer_bundle(name: str, *, without: str = "", check: str = CHECK, setup: str = UDA_SETUP, **meta) -> Bundle:
    """A bundle of the pipeline's newer layout."""
    files = {
        "meta.json": json.dumps({"id": name, "driver": "uda-gym", "timeout_seconds": 1800, **meta}).encode(),
        "instruction.md": b"Write the second word of context/words.csv to results/answer.txt.\n",
        "setup.sh": setup.encode(),
        "check.sh": check.encode(),
        "exec/context/words.csv": b"one,two\n",
        "hidden/seed.txt": b"7\n",
        "gt/expected.json": b'{"word": "two"}',
    }
    files.pop(without, None)
    return Bundle(files)


def _typed(kind: str) -> Bundle:
    """A document is the set-up: it is downloaded and opened."""
    path = f"/home/user/Desktop/report.{kind}"
    steps = [
        {"type": "download", "parameters": {"files": [{"url": f"./initial_setup.{kind}", "path": path}]}},
        {"type": "open", "parameters": {"path": path}},
        {"type": "sleep", "parameters": {"seconds": 2}},
    ]
    found = data_set_bundle(f"right-{kind}", without="initial_setup.py", config=steps)
    return Bundle({**found.files, f"initial_setup.{kind}": b"PK\x03\x04 binary"})


def _shell() -> Bundle:
    steps = [
        {"type": "download", "parameters": {"files": [{"url": "./initial_setup.sh", "path": "/tmp/s.sh"}]}},
        {"type": "command", "parameters": {"command": ["bash", "/tmp/s.sh"]}},
    ]
    found = data_set_bundle("right-sh", without="initial_setup.py", config=steps)
    return Bundle({**found.files, "initial_setup.sh": b"echo bread > /home/user/note.txt\n"})


def _with(bundle: Bundle, **changes: object) -> Bundle:
    return Bundle(**{**vars(bundle), **changes})


def _plus(bundle: Bundle, **files: bytes) -> Bundle:
    return _with(bundle, files={**bundle.files, **{name.replace("__", "/"): data for name, data in files.items()}})


SLACK = "URL = '__CUA_GYM_SLACK_URL__'\n"
RIGHT: dict[str, Bundle] = {
    "right-py": data_set_bundle("right-py"),
    "right-sh": _shell(),
    **{f"right-{kind}": _typed(kind) for kind in ("xlsx", "docx", "pptx")},
    "right-no-setup": data_set_bundle("right-no-setup", without="initial_setup.py", config=[]),
    "right-null-config": data_set_bundle("right-null-config", without="initial_setup.py", config=None),
    "right-no-evaluator": data_set_bundle("right-no-evaluator", evaluator=None),
    "right-postconfig": data_set_bundle(
        "right-postconfig",
        evaluator={
            "type": "python",
            "url": "./reward.py",
            "postconfig": [{"type": "execute", "parameters": {"command": "sync"}}],
        },
    ),
    "right-ground-truth": data_set_bundle("right-ground-truth", ground_truth={"word": "milk"}),
    "right-unicode": data_set_bundle("right-unicode", instruction="Schreibe «Milch» 🥛 nach ~/note.txt."),
    "right-golden": _plus(
        data_set_bundle("right-golden"), **{"golden_patch.py": f"open({NOTE!r},'w').write('milk')".encode()}
    ),
    "right-oracle": data_set_bundle(
        "right-oracle",
        dart={"max_steps": 5, "oracle": [{"kind": "hotkey", "keys": ["ctrl", "alt", "t"]}]},
    ),
    "right-osworld-func": data_set_bundle(
        "right-osworld-func",
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": f"cat {NOTE}", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "milk"}},
        },
    ),
    "right-newer": newer_bundle("right-newer"),
    "right-newer-runtime": newer_bundle("right-newer-runtime", runtime={"type": "ec2", "profile": "multimedia"}),
    "right-newer-no-gt": newer_bundle("right-newer-no-gt", without="gt/expected.json"),
    "right-newer-no-hidden": newer_bundle("right-newer-no-hidden", without="hidden/seed.txt"),
    "right-nested": _plus(newer_bundle("right-nested"), exec__project__setup_sh=b"echo mine", exec__task_json=b"{}"),
}
NEEDY: dict[str, Bundle] = {
    "site-url": _with(data_set_bundle("site-url", setup=SLACK), needs="the mock sites slack"),
    "site-host": _with(
        data_set_bundle("site-host", reward="H = '__CUA_GYM_GMAIL_HOST__'\nprint('REWARD: 0')"), needs="gmail"
    ),
    "site-alias": _with(
        data_set_bundle("site-alias", setup="U = '__CUA_GYM_NOTION_MOCK_URL__'\n"), needs="sites notion"
    ),
    "site-several": _with(
        data_set_bundle("site-several", setup=SLACK + "V = '__CUA_GYM_JIRA_URL__'\n"), needs="jira, slack"
    ),
    "site-hosted": _with(
        data_set_bundle("site-hosted", setup="U = 'https://cua-gym-outlook-web.xlang.ai'\n"), needs="outlook-web"
    ),
    "site-newer": _with(
        newer_bundle("site-newer", setup="curl -H $CUA_GYM_ADMIN_TOKEN x"), needs="CUA_GYM_ADMIN_TOKEN"
    ),
    "own-ui": _with(
        newer_bundle("own-ui", check="cat $UDA_GYM_HARNESS_STATE_DIR/custom_ui.json"), needs="UDA_GYM_HARNESS"
    ),
    "judge": _with(
        data_set_bundle("judge", reward="from reward_judge import call_llm_judge\n"), needs="an LLM as judge"
    ),
    "drive": _with(data_set_bundle("drive", config=[{"type": "googledrive", "parameters": {}}]), needs="googledrive"),
}
BROKEN: dict[str, Bundle] = {
    "no-task": _with(data_set_bundle("no-task", without="task.json"), refused="it has no task.json"),
    "no-reward": _with(data_set_bundle("no-reward", without="reward.py"), refused="it has no reward.py"),
    "no-setup": _with(data_set_bundle("no-setup", without="initial_setup.py"), refused="it has no initial_setup.py"),
    "empty-reward": _with(data_set_bundle("empty-reward", reward=" \n"), refused="its reward.py is empty"),
    "bad-reward": _with(data_set_bundle("bad-reward", reward="def ("), refused="its reward.py is not Python"),
    "no-json": Bundle({"task.json": b"{oops", "reward.py": b"1"}, refused="its task.json is not JSON"),
    "list-json": Bundle({"task.json": b"[]", "reward.py": b"1"}, refused="is no JSON object"),
    "no-id": _with(data_set_bundle("no-id", id=None), refused="no text 'id'"),
    "no-instruction": _with(data_set_bundle("no-instruction", instruction=""), refused="no text 'instruction'"),
    "other-evaluator": _with(
        data_set_bundle("other-evaluator", evaluator={"type": "ruby"}), refused="of the type 'ruby'"
    ),
    "bad-steps": _with(data_set_bundle("bad-steps", config=["run"]), refused="a step of its config"),
    "newer-no-check": _with(newer_bundle("newer-no-check", without="check.sh"), refused="it has no check.sh"),
    "newer-no-meta": _with(newer_bundle("newer-no-meta", without="meta.json"), refused="it has no meta.json"),
    "newer-no-setup": _with(newer_bundle("newer-no-setup", without="setup.sh"), refused="it has no setup.sh"),
}
HOSTILE: dict[str, Bundle] = {
    "absolute-download": _with(
        data_set_bundle("absolute-download", config=[
            {"type": "download", "parameters": {"files": [{"url": "/etc/shadow", "path": "/home/user/x"}]}}]),
        refused="names a file outside of the bundle: '/etc/shadow'"),
    "climbing-download": _with(
        data_set_bundle("climbing-download", config=[
            {"type": "download", "parameters": {"files": [{"url": "./../../x", "path": "/home/user/x"}]}}]),
        refused="names a file outside of the bundle"),
    "climbing-reward": _with(
        data_set_bundle("climbing-reward", evaluator={"type": "python", "url": "../no-task/reward.py"}),
        refused="names a file outside of the bundle"),
    "a-kind-of-desktop": _with(
        data_set_bundle("a-kind-of-desktop", dart={"desktop": {"sandbox": "none"}}), refused="dart.desktop may hold"),
    "a-link": _with(data_set_bundle("a-link"), links={"data.txt": "/etc/passwd"}, refused="a link"),
}  # fmt: skip
ALL = {**RIGHT, **NEEDY, **BROKEN, **HOSTILE}


def write_directory(root: Path, bundles: Mapping[str, Bundle]) -> Path:
    """A directory of bundles."""
    for name, bundle in bundles.items():
        for path, data in bundle.files.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(data)
        for path, target in bundle.links.items():
            (root / name / path).symlink_to(target)
    return root


def write_tar(path: Path, bundles: Mapping[str, Bundle], extra: Mapping[str, bytes] | None = None) -> Path:
    """A tar archive of bundles, compressed as its name says (zst by pyarrow), with members that are named `extra`."""
    data = io.BytesIO()
    mode = "w:gz" if path.suffix in (".gz", ".tgz") else "w"
    with tarfile.open(fileobj=data, mode=mode) as archive:
        for name, bundle in bundles.items():
            members = {f"{name}/{inside}": content for inside, content in bundle.files.items()}
            for member, content in {**members}.items():
                _add(archive, member, content)
            for inside, target in bundle.links.items():
                item = tarfile.TarInfo(f"{name}/{inside}")
                item.type, item.linkname = tarfile.SYMTYPE, target
                archive.addfile(item)
        for member, content in (extra or {}).items():
            _add(archive, member, content)
    if path.suffix == ".zst":
        import pyarrow

        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(data.getvalue())
    else:
        path.write_bytes(data.getvalue())
    return path


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    item = tarfile.TarInfo(name)
    item.size = len(content)
    archive.addfile(item, io.BytesIO(content))


def write_zip(path: Path, bundles: Mapping[str, Bundle], extra: Mapping[str, bytes] | None = None) -> Path:
    """A zip archive of bundles."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, bundle in bundles.items():
            for inside, content in bundle.files.items():
                archive.writestr(f"{name}/{inside}", content)
            for inside, target in bundle.links.items():
                item = zipfile.ZipInfo(f"{name}/{inside}")
                item.external_attr = 0o120777 << 16
                archive.writestr(item, target)
        for member, content in (extra or {}).items():
            archive.writestr(member, content)
    return path


def write_data_set(root: Path, bundles: Mapping[str, Bundle]) -> Path:
    """The layout of the published data set: a card, a table, an archive."""
    import pyarrow
    import pyarrow.parquet

    (root / "data").mkdir(parents=True)
    (root / "artifacts").mkdir()
    (root / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A data set\n")
    (root / "url_variables.json").write_text('{"variables": {}}')
    rows = [
        {
            "id": name, "instruction": "x", "app_type": "vlc" if index % 2 else "os", "platform": "desktop",
            "difficulty": ("easy", "hard", None)[index % 3], "archive_member": name,
        }
        for index, name in enumerate(bundles)
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / "data" / "tasks.parquet")
    write_tar(root / "artifacts" / "cua_gym_tasks_v1.tar.zst", bundles)
    return root
