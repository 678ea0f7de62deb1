"""Which users desktops of a root server get, and what it says where it cannot give them any."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dart_gym.core.errors import ConfigurationError
from dart_gym.desktops.confinement import user_ids
from dart_gym.desktops.confinement.user_ids import uid_range

WHOLE = "         0          0 4294967295\n"
CONTAINER = "         0     100000      65536\n"


def test_a_range_that_nobody_uses_is_taken():
    assert uid_range(None, WHOLE)[0] > 1_879_048_191  # the last that systemd knows a use for
    assert uid_range("5000-5009", WHOLE) == range(5000, 5010)


def test_a_container_with_few_ids_gives_its_last_ones():
    found = uid_range("", CONTAINER)
    assert len(found) >= 1000 and 60_000 < found[0] and found[-1] < 65_534


@pytest.mark.parametrize(
    ("named", "mapped", "words"),
    [
        ("12", WHOLE, "is no range"),
        ("0-9", WHOLE, "is no range"),
        ("9-5", WHOLE, "is no range"),
        ("70000-70009", CONTAINER, "not within the user ids"),
        (None, "0 1000 1\n", "too few .*next step: map 65536"),
    ],
)
def test_what_is_no_range_is_refused(named, mapped, words):
    with pytest.raises(ConfigurationError, match=words):
        uid_range(named, mapped)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no other")
def test_numbers_are_taken_once_and_given_back(monkeypatch, tmp_path):
    monkeypatch.setattr(user_ids, "LOCKS", tmp_path / "uids")
    monkeypatch.setenv(user_ids.VARIABLE, "1899999000-1899999001")
    first, second = user_ids.take_user_id(), user_ids.take_user_id()
    assert {first.number, second.number} == {1899999000, 1899999001}
    with pytest.raises(ConfigurationError, match="all 2 user ids .* next step: name a wider range"):
        user_ids.take_user_id()
    first.release()
    assert user_ids.take_user_id().number == first.number


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no other")
def test_programs_of_a_holder_that_died_are_ended_before_its_number_is_given_out(monkeypatch, tmp_path):
    monkeypatch.setattr(user_ids, "LOCKS", tmp_path / "uids")
    monkeypatch.setenv(user_ids.VARIABLE, "1899999100-1899999100")
    holder = user_ids.take_user_id()
    left = subprocess.Popen([*user_ids.as_user(holder.number), "sleep", "1000"])
    while left.poll() is None and os.stat(f"/proc/{left.pid}").st_uid != holder.number:
        pass
    os.close(holder.lock)  # as the kernel does when it dies
    user_ids.take_user_id()
    assert left.wait(timeout=10) == -9


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no other")
def test_root_without_the_right_to_become_others_says_so():
    program = "from dart_gym.desktops.sandbox.sandbox_check import check_sandbox; print(check_sandbox())"
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "root without CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID" in said.stdout, said.stderr
    assert "next step: run it as an ordinary user" in said.stdout
