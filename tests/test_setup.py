"""`scripts/setup.sh` in a copy of its own, with stand-ins for everything that it would install with."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[1]
APPLICATIONS = "dart_gym/desktops/applications/debian_applications.py"
TOOLS = (
    "bash sh cat sha256sum cut mktemp rm df awk grep tail head touch readlink mkdir chmod cp mv dirname env tr wc sed "
    "timeout true uname"
).split()
PYTHON = r"""#!/bin/sh
echo "python $*" >>"$CALLS"
case "$*" in
  *debian_applications.py*) exec /usr/bin/python3 -I "$@" ;;
  *"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit 0 ;;
  - | -\ *)  # a program of the scripts: which torch is here, and whether it multiplies
    case $(cat) in
      *importlib.metadata*) [ ! -e .venv/torch ] || cat .venv/torch ;;
      *matrix*) [ -z "$BROKEN" ] || { echo "ImportError: $BROKEN"; exit 1; } ;;
    esac ;;
  *"-m pip config list"*) echo "$PIP_CONFIG" ;;
  *"-m pip index versions torch"*) echo "Available versions: $CPU_BUILDS" ;;
  *"-m pip install"*--no-index*torch==*) [ -n "$LOCAL" ] && echo "$LOCAL" >.venv/torch; exit ;;
  *"-m pip install"*-e*) [ -z "$FAIL" ] || { echo "no network"; exit 1; }; 
    { echo "#!$(pwd -P)/.venv/bin/python"; sed 1d "$0"; } >.venv/bin/dart-train; chmod +x .venv/bin/dart-train ;;
  *"-m pip install"*--target*)
    [ -z "$FAIL" ] || { echo "no network"; exit 1; }
    while [ "$1" != --target ]; do shift; done; mkdir "$2/pyautogui" ;;
  *"-m pip install"*.venv/torch.txt*) echo "2.13.0 cuda" >.venv/torch ;;
  *"-m pip install"*"--extra-index-url"*torch==*) echo "2.13.0+cpu cpu" >.venv/torch ;;
esac
exit 0
"""


class Machine:
    """A copy of the project on a machine of which the test says what is installed."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "project", root / "bin", root / "calls"
        self.bin.mkdir()
        scripts = [f"scripts/{name}.sh" for name in ("setup", "common", "indexes", "torch")]
        for name in (*scripts, "pyproject.toml", "requirements", APPLICATIONS):
            copy = self.root / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, copy)
        self.desktop_python = root / "data" / "dart-gym" / "desktop-python"
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.program("dpkg-query", "echo installed")
        self.program("id", "echo 0")
        self.program("chromium", "")
        self.program("dpkg", "")
        self.program("apt-get", 'echo "apt-get $*" >>"$CALLS"')
        self.program("df", "echo header; echo 'x 1 1 99999999 1% /'")
        self.script("python3", PYTHON)

    def program(self, name: str, body: str) -> None:
        self.script(name, f"#!/bin/sh\n{body}\n")

    def script(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        stand_ins = dict.fromkeys(("FAIL", "BROKEN", "PIP_CONFIG", "CPU_BUILDS"), "")
        variables = {
            "PATH": str(self.bin),
            "CALLS": str(self.calls),
            "LOCAL": "2.13.0+cpu cpu",
            **stand_ins,
            **environment,
        }
        variables["XDG_DATA_HOME"] = str(self.desktop_python.parents[1])
        command = [str(self.root / "scripts" / "setup.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60)

    def called(self, words: str) -> bool:
        return words in self.calls.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_second_time_it_returns_at_once_and_installs_nothing(machine):
    first = machine.setup()
    assert first.returncode == 0, first.stderr
    assert machine.called("-m venv") and machine.called("pip install") and not machine.called("apt-get")
    again = machine.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert not machine.called("-m pip") and not machine.called("-m venv") and not machine.called("python - ")


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements/train.txt"])
def test_a_new_version_of_the_project_is_installed_into_the_same_environment(machine, name):
    machine.setup()
    with (machine.root / name).open("a") as file:
        file.write("# changed\n")
    assert machine.setup().returncode == 0
    assert machine.called("pip install") and not machine.called("-m venv") and not machine.called("torch==")
    assert len(list((machine.root / ".venv").glob(".dart-setup-*"))) == 1


def test_only_locked_packages_are_installed_and_none_of_the_tests(machine):
    machine.setup()
    installed = [line for line in machine.calls.read_text().splitlines() if "pip install" in line]
    assert all("--no-deps" in line for line in installed), installed
    assert machine.called("-r requirements/train.txt") and not machine.called("requirements/test.txt")
    machine.setup("test")
    assert machine.called("-r requirements/test.txt") and not machine.called("torch==")


def test_uv_installs_the_packages_where_there_is_one_and_pip_where_it_fails(machine):
    machine.program("uv", 'echo "uv $*" >>"$CALLS"')
    assert machine.setup().returncode == 0
    assert machine.called("uv pip install") and not machine.called("python -m pip install -r")
    machine.program("uv", "exit 1")
    assert machine.setup("test").returncode == 0
    assert machine.called("-r requirements/test.txt")


def test_an_interrupted_set_up_is_continued(machine):
    failed = machine.setup(FAIL="1")
    assert failed.returncode == 1 and "no network" in failed.stderr and "continues where it was" in failed.stderr
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert not machine.called("-m venv") and not machine.called("torch==")  # those were whole already


def test_it_ends_with_a_product_of_matrices_and_says_what_to_do_where_that_fails(machine):
    broken = machine.setup(BROKEN="libcudnn.so.9: cannot open shared object file")
    assert broken.returncode == 1 and "libcudnn.so.9" in broken.stderr
    assert "does not work" in broken.stderr and "rm -rf .venv" in broken.stderr
    assert machine.setup(BROKEN="still").returncode == 1  # it is not taken for finished
    assert machine.setup().returncode == 0


@pytest.mark.parametrize("stamped", [False, True])
def test_a_broken_environment_is_made_anew(machine, stamped):
    if stamped:
        machine.setup()
    python = machine.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.called("-m venv --clear")


@pytest.mark.parametrize("put", [shutil.move, shutil.copytree])
def test_a_checkout_that_was_moved_or_copied_gets_an_environment_of_its_own(machine, tmp_path, put):
    machine.setup()
    put(machine.root, tmp_path / "another place")
    machine.root = tmp_path / "another place"
    assert machine.setup().returncode == 0
    assert machine.called("-m venv --clear") and machine.called("-r requirements/train.txt")
    assert f"#!{machine.root}/.venv" in (machine.root / ".venv" / "bin" / "dart-train").read_text()
    assert machine.setup().stderr == ""


def test_a_linked_environment_of_another_checkout_stays_as_it_is(machine, tmp_path):
    machine.setup()
    other = tmp_path / "other"
    shutil.copytree(machine.root / ".venv", other)
    shutil.rmtree(machine.root / ".venv")
    (other / "bin" / "dart-train").write_text("#!/other/.venv/bin/python\n")
    before = sorted(other.rglob("*"))
    (machine.root / ".venv").symlink_to(other)
    assert machine.setup().returncode == 0
    assert not (machine.root / ".venv").is_symlink() and sorted(other.rglob("*")) == before
    assert f"#!{machine.root}/.venv" in (machine.root / ".venv" / "bin" / "dart-train").read_text()
    assert (other / "bin" / "dart-train").read_text() == "#!/other/.venv/bin/python\n"


def test_missing_packages_are_installed_by_root(machine):
    machine.program("dpkg-query", 'case "$*" in *xvfb*) ;; *) echo installed ;; esac')
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.called("install -y -qq --no-install-recommends xvfb\n")


def test_without_the_right_to_install_it_says_what_to_ask_for(machine):
    machine.program("dpkg-query", 'case "$*" in *xvfb* | *bubblewrap*) ;; *) echo installed ;; esac')
    machine.program("id", "echo 1000")
    result = machine.setup()
    assert result.returncode == 1
    assert "neither root nor sudo is at hand" in result.stderr
    assert "apt-get install --no-install-recommends xvfb bubblewrap" in result.stderr
    assert not machine.called("apt-get") and not (machine.root / ".venv").exists()


def test_with_sudo_it_installs(machine):
    machine.program("dpkg-query", 'case "$*" in *xvfb*) ;; *) echo installed ;; esac')
    machine.program("id", "echo 1000")
    machine.program("sudo", 'echo "sudo $*" >>"$CALLS"; exec "$@"')
    assert machine.setup().returncode == 0
    assert machine.called("sudo env DEBIAN_FRONTEND=noninteractive apt-get")


def test_a_user_whom_sudo_refuses_is_told_what_to_ask_for(machine):
    machine.program("dpkg-query", 'case "$*" in *xvfb*) ;; *) echo installed ;; esac')
    machine.program("id", "echo 1000")
    machine.program("sudo", 'echo "sudo $*" >>"$CALLS"; echo "user is not in the sudoers file." >&2; exit 1')
    result = machine.setup()
    assert result.returncode == 1 and "not in the sudoers file" in result.stderr
    assert "ask an administrator to run: apt-get install --no-install-recommends xvfb\n" in result.stderr
    assert machine.calls.read_text().count("sudo ") == 1  # a password is asked for once


def test_what_apt_says_is_shown(machine):
    machine.program("dpkg-query", "true")
    machine.program("apt-get", "echo 'E: no such mirror'; exit 100")
    result = machine.setup()
    assert result.returncode == 1 and "E: no such mirror" in result.stderr and "apt could not install" in result.stderr


def test_another_distribution_is_told_what_is_missing(machine):
    machine.program("dpkg-query", "exit 1")
    (machine.bin / "apt-get").unlink()
    result = machine.setup()
    assert result.returncode == 1 and "no Debian or Ubuntu" in result.stderr and "bubblewrap" in result.stderr


def test_too_little_disk_space_is_said_before_anything_is_fetched(machine):
    machine.program("df", "echo header; echo 'x 1 1 1000000 1% /'")
    result = machine.setup()
    assert result.returncode == 1 and "only 976 MiB are free" in result.stderr
    assert not machine.called("pip install")


def test_no_python_that_is_new_enough(machine):
    machine.program("python3", "exit 1")
    result = machine.setup()
    assert result.returncode == 1 and "no Python 3.11 or newer" in result.stderr


def test_a_machine_without_python_gets_it_with_the_other_packages(machine):
    shutil.move(machine.bin / "python3", machine.bin / "python3.later")
    machine.program("dpkg-query", 'case "$*" in *python3*) ;; *) echo installed ;; esac')
    later = f'[ -e "{machine.bin}/python3" ] || mv "{machine.bin}/python3.later" "{machine.bin}/python3"'
    machine.program("apt-get", f'echo "apt-get $*" >>"$CALLS"; {later}')
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.called("python3 python3-venv\n")


def test_a_python_that_can_make_environments_is_preferred_to_a_newer_one(machine):
    machine.program("python3.13", 'echo "python3.13 $*" >>"$CALLS"; case "$*" in *ensurepip*) exit 1 ;; esac')
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    assert machine.called("python -m venv") and not machine.called("python3.13 -m") and not machine.called("apt-get")


def test_the_python_that_the_user_names_is_taken_or_refused(machine):
    machine.program("python3.12", "exit 1")
    refused = machine.setup(PYTHON="python3.12")
    assert refused.returncode == 1 and "python3.12" in refused.stderr and "3.11 or newer" in refused.stderr
    assert not (machine.root / ".venv").exists()


def test_a_users_settings_that_install_elsewhere_are_set_aside(machine):
    with (machine.bin / "python3").open("r+") as file:
        text = file.read().replace(
            '"$CALLS"\n', '"$CALLS"\necho "$PYTHONPATH$PIP_TARGET user=$PIP_USER" >>"$CALLS"\n', 1
        )
        file.seek(0)
        file.write(text)
    assert machine.setup(PYTHONPATH="/opt/ros", PIP_TARGET="/elsewhere", PIP_USER="1").returncode == 0
    assert machine.called("user=0") and not machine.called("/opt/ros") and not machine.called("/elsewhere")


def test_a_home_that_cannot_be_written_to_is_named(machine):
    (machine.desktop_python.parents[1]).mkdir()
    machine.program("mkdir", f'case "$*" in *data/dart-gym*) exit 1 ;; esac; exec {shutil.which("mkdir")} "$@"')
    result = machine.setup("apps")
    assert result.returncode == 1
    assert "cannot be written to" in result.stderr and "DART_GYM_DESKTOP_PYTHON" in result.stderr


@pytest.mark.parametrize("kind", ["link", "script"])
def test_a_snap_is_no_browser(machine, tmp_path, kind):
    (machine.bin / "chromium").unlink()
    if kind == "link":
        (tmp_path / "snap").mkdir()
        shutil.copy(machine.bin / "dpkg", tmp_path / "snap" / "chromium")
        (machine.bin / "chromium").symlink_to(tmp_path / "snap" / "chromium")
    else:
        machine.program("chromium-browser", 'exec /snap/bin/chromium "$@"')
    result = machine.setup()
    assert machine.called("apt-get") or "no Chromium that can run in a sandbox" in result.stderr


def test_applications_are_a_set_up_of_their_own(machine):
    assert machine.setup().returncode == 0
    assert not machine.desktop_python.exists()
    machine.program("dpkg-query", 'case "$*" in *gimp* | *vlc-plugin-qt*) ;; *) echo installed ;; esac')
    done = machine.setup("apps")
    assert done.returncode == 0, done.stderr
    assert machine.called("install -y -qq --no-install-recommends gimp vlc-plugin-qt\n")
    assert (machine.desktop_python / "pyautogui").is_dir()
    machine.program("dpkg-query", "echo installed")
    again = machine.setup("apps")
    assert (again.returncode, again.stderr) == (0, "")
    assert not machine.called("pip install")


def test_packages_of_the_desktop_are_whole_or_absent(machine):
    machine.setup()
    failed = machine.setup("apps", FAIL="1")
    assert failed.returncode == 1 and "no network" in failed.stderr
    assert not machine.desktop_python.exists()
    assert machine.setup("apps").returncode == 0
    with (machine.root / "requirements" / "desktop.txt").open("a") as file:
        file.write("another==1.0\n")
    assert machine.setup("apps").returncode == 0
    assert machine.called("pip install") and (machine.desktop_python / "pyautogui").is_dir()
    assert [path.name for path in machine.desktop_python.parent.iterdir()] == ["desktop-python"]


def test_an_unknown_set_up_is_refused(machine):
    result = machine.setup("aps")
    assert result.returncode == 1 and "no set-up named aps" in result.stderr and "choose: apps" in result.stderr


@pytest.mark.parametrize(
    ("target", "setup"),
    [
        ("setup", ""), ("quickstart", ""), ("controls", ""), ("apps", "apps"), ("docs", "docs"), ("test-unit", "unit"),
        *[(target, "test") for target in ("lint", "test", "test-all", "test-slow", "test-docker", "lock")],
    ],
)  # fmt: skip
def test_targets_of_make(target, setup):
    result = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"scripts/setup.sh ?(.*)", result.stdout) == [setup]


def test_the_first_target_explains_the_others():
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "quickstart" in shown and "test-all" in shown
