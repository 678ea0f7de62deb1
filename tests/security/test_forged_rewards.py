"""What a desktop hands over for its evaluation is data: no member of an archive changes a program or a reference.

The agent's part is played by archives of any content, and by a program that swaps the archive while it is fetched.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dart_gym.core.outcomes import EvaluationStatus
from dart_gym.desktops.base.desktop import DesktopSpec
from dart_gym.desktops.factory import make_desktop
from dart_gym.tasks.evaluation import desktop_archive, foreign_reward
from dart_gym.tasks.evaluation.desktop_archive import Spoiled, plain_name, unpack
from dart_gym.tasks.evaluation.foreign_reward import run_reward

pytestmark = pytest.mark.security

GT = "tmp/tmp_workspace/gt"


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o6777
    return info, data


def archive_of(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def unpacked(tmp_path: Path, data: bytes, **options: object) -> dict[str, str]:
    """What is in the tree afterwards: path -> content, or where a link leads."""
    root = tmp_path / "root"
    (root / GT).mkdir(parents=True, exist_ok=True)
    (root / GT / "expected").write_text("right")
    (tmp_path / "archive").write_bytes(data)
    unpack(str(tmp_path / "archive"), str(root), [GT], **options)
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize(
    "hostile",
    [
        member("cache/references.tar", b"wrong"),
        member("cache/bundle/reward.py", b"wrong"),
        member("run/evaluator/given/bundle/reward.py", b"wrong"),
        member(f"{GT}/expected", b"wrong"),
        member(f"./{GT}/expected", b"wrong"),
        member("tmp//tmp_workspace/gt/expected", b"wrong"),
        member("tmp/x/../tmp_workspace/gt/expected", b"wrong"),
        member("/tmp/tmp_workspace/gt/expected", b"wrong"),
        member("/etc/passwd", b"wrong"),
        member("../outside", b"wrong"),
        member("home/user/../../outside", b"wrong"),
        member("home/userx/file", b"wrong"),
        member("home/user/" + "d/" * 100 + "deep", b"wrong"),
        member("tmp/fifo", kind=tarfile.FIFOTYPE),
        member("tmp/device", kind=tarfile.CHRTYPE),
        member("tmp/disk", kind=tarfile.BLKTYPE),
        member("tmp/hard", kind=tarfile.LNKTYPE, link=f"{GT}/expected"),
        member("tmp/sparse", b"x" * 512, kind=tarfile.GNUTYPE_SPARSE),
        member("tmp/contiguous", b"x", kind=tarfile.CONTTYPE),
        member("tmp/unknown", b"x", kind=b"Z"),
        member("tmp/out", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("tmp/up", kind=tarfile.SYMTYPE, link="../../../../etc/passwd"),
        member("tmp/proc", kind=tarfile.SYMTYPE, link="/proc/self/environ"),
        member("tmp/answer", kind=tarfile.SYMTYPE, link=f"/{GT}/expected"),
        member("tmp/answers", kind=tarfile.SYMTYPE, link="tmp_workspace/gt"),
        member("tmp/tmp_workspace/gt", kind=tarfile.SYMTYPE, link="/tmp"),
        member("tmp/empty", kind=tarfile.SYMTYPE, link=""),
    ],
)  # fmt: skip
def test_no_member_leaves_the_desktop_s_own_folders(tmp_path, hostile):
    (tmp_path / "outside").write_text("kept")
    found = unpacked(tmp_path, archive_of(member("home/user/kept", b"good"), hostile))
    assert found == {"home/user/kept": "good", f"{GT}/expected": "right"}
    assert (tmp_path / "outside").read_text() == "kept"


def test_links_do_not_lead_out_by_way_of_each_other(tmp_path):
    symbolic = tarfile.SYMTYPE
    found = unpacked(
        tmp_path,
        archive_of(
            member("tmp/a", kind=symbolic, link="b/gt/expected"),  # harmless until there is a `b`
            member("tmp/b", kind=symbolic, link="tmp_workspace"),
            member("tmp/c", kind=symbolic, link="/run"),
            member("tmp/c/made", kind=symbolic, link="/tmp/x"),
            member("tmp/c/written", b"wrong"),
            member("tmp/loop", kind=symbolic, link="loop"),
            member("tmp/x", b"good"),
            member("tmp/y", kind=symbolic, link="x"),
        ),
    )
    assert "tmp/a" not in found and (tmp_path / "root/tmp/y").read_text() == "good"
    assert not (tmp_path / "root/run").exists() and found[f"{GT}/expected"] == "right"


def test_a_second_member_of_a_name_changes_nothing_and_rights_are_plain(tmp_path):
    found = unpacked(
        tmp_path, archive_of(member("tmp/x", b"first"), member("tmp/x", b"second"), member("tmp/x/y", b"z"))
    )
    assert found["tmp/x"] == "first"
    assert (tmp_path / "root/tmp/x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 300, b"garbage" * 200, archive_of(member("tmp/x", b"y" * 5000))[:3000],
        archive_of(member("tmp/x", b"y" * 5000)), archive_of(*[member(f"tmp/{n}", b"y") for n in range(30)]),
    ],
)  # fmt: skip
def test_what_is_no_archive_or_too_much_is_said(tmp_path, data, monkeypatch):
    monkeypatch.setattr(desktop_archive, "MOST_MEMBERS", 20)
    with pytest.raises(Spoiled):
        unpacked(tmp_path, data, most_bytes=4000)


def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path):
    info, _ = member("tmp/x")
    info.size = 1 << 40
    with pytest.raises(Spoiled):
        unpacked(tmp_path, info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)


def test_names_of_the_desktop_s_own_files_are_taken():
    assert plain_name("home/user/a b/ü.txt") == "home/user/a b/ü.txt" and plain_name("./tmp/x/") == "tmp/x"
    assert plain_name("tmp") == "tmp" and plain_name("") is None and plain_name(".") is None


# --- on desktops

CHECK = """
import os
assert open("/tmp_workspace/gt/expected").read() == "right", "forged"
bundle = os.environ["DART_BUNDLE"]
for path in (bundle + "/reward.py", "/tmp_workspace/gt/expected", bundle + "/new"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        pass
answer = "/home/user/answer"
print("REWARD:", 1.0 if os.path.exists(answer) and open(answer).read() == "right" else 0.0)
"""
# In the desktop: replace the archive again and again, whatever it is called, by one with hostile members.
SWAP = """
import glob, os, shutil
while True:
    for place in glob.glob("/tmp/.reward-*/files"):
        try:
            shutil.copy("/home/user/hostile", place + ".new"); os.rename(place + ".new", place)
        except OSError: pass
"""


@pytest.fixture
async def desktop():
    machine = make_desktop(DesktopSpec(width=320, height=240))
    await machine.start()
    yield machine
    await machine.stop()


def bundle_of(place: Path, program: str = CHECK) -> Path:
    (place / "bundle/gt").mkdir(parents=True)
    (place / "bundle/gt/expected").write_text("right")
    (place / "bundle/reward.py").write_text(program)
    return place / "bundle"


REWARD = {"type": "python", "url": "./reward.py"}


@pytest.mark.desktop
async def test_a_program_that_swaps_the_archive_changes_no_reward(desktop, tmp_path):
    forged = b"print('REWARD: 1.0')"
    hostile = archive_of(
        member("home/user/answer", b"wrong"),
        member("cache/references.tar", archive_of(member(f"{GT}/expected", b"wrong"))),
        *[member(f"{place}/reward.py", forged) for place in ("cache/bundle", "run/evaluator/given/bundle")],
        member(f"{GT}/expected", b"wrong"),
        member("run/evaluator/worker_main.py", forged),
        member("home/user/link", kind=tarfile.SYMTYPE, link=f"/{GT}/expected"),
    )
    await desktop.write_file("/home/user/hostile", hostile)
    await desktop.write_file("/home/user/swap.py", SWAP.encode())
    await desktop.launch(["python3", "/home/user/swap.py"])
    bundle = bundle_of(tmp_path)
    for _ in range(3):
        done = await run_reward(desktop, REWARD, bundle)
        assert (done.status, done.score) == (EvaluationStatus.OK, 0.0), done
        assert "wrote" not in done.detail


@pytest.mark.desktop
async def test_an_archive_that_was_spoiled_is_worth_0(desktop, tmp_path, monkeypatch):
    bundle = bundle_of(tmp_path, "print('REWARD: 1.0')")
    for number, spoil in enumerate(
        ("echo no archive > $d/files", "rm $d/files", "rm $d/files; mkfifo $d/files", "mkdir -p $d/files2", "d=/etc")
    ):
        snapshot = foreign_reward.SNAPSHOT.replace("\necho", f"\n{spoil}\necho")
        with monkeypatch.context() as patch:
            patch.setattr(foreign_reward, "SNAPSHOT", snapshot)
            done = await run_reward(desktop, REWARD, bundle)
        assert (done.status, done.score) == (EvaluationStatus.OK, 1.0 if number == 3 else 0.0), (spoil, done)


@pytest.mark.desktop
async def test_what_the_desktop_has_made_of_its_own_files_is_kept(desktop, tmp_path):
    made = "cd ~; echo right > a; ln a hard; ln -s a soft; ln -s ~/a whole; mkdir d; echo x > d/y; chmod +x d/y"
    await desktop.execute(["sh", "-c", made])
    program = """
import os
os.chdir("/home/user")
assert all(open(name).read() == "right\\n" for name in ("a", "hard", "soft", "whole"))
assert os.path.islink("soft") and os.readlink("whole") == "/home/user/a" and os.access("d/y", os.X_OK)
print("REWARD: 1.0")
"""
    done = await run_reward(desktop, REWARD, bundle_of(tmp_path, program))
    assert done.score == 1.0, done
