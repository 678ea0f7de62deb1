"""torchrun as a run starts it: it ends as the rank that failed, says nothing of its own, and takes its ranks along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dart_gym.utils.processes import free_port
from dart_train.nodes.cluster_nodes import FIRST, meeting
from dart_train.nodes.program_host import HOST, PORT
from dart_train.run.supervisor import last_error
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.train]
LAUNCHER = [sys.executable, "-m", "dart_train.launch.rank_launcher", "--standalone", "--nproc-per-node=2"]
FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("error: the disk is full;", "free some", file=sys.stderr, flush=True)
    sys.exit(78)
time.sleep(60)
"""
WAITS = """
import os, sys, time
from dart_gym.utils.processes import follow_parent
follow_parent()
open(sys.argv[1] + os.environ["RANK"], "w").write(f"{os.getpid()} {os.environ['WORLD_SIZE']}")
time.sleep(60)
"""


def test_it_ends_with_the_status_and_the_words_of_the_rank_that_failed(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(FAILS)
    done = subprocess.run([*LAUNCHER, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 78
    assert last_error(done.stderr) == "the disk is full; free some"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_their_launcher(signum, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(WAITS)
    with subprocess.Popen([*LAUNCHER, str(script), f"{tmp_path}/pid-"], start_new_session=True) as launcher:
        files = [tmp_path / f"pid-{rank}" for rank in (0, 1)]
        wait_until(lambda: all(file.exists() and " 2" in file.read_text() for file in files), 90)
        os.kill(launcher.pid, signum)
        launcher.wait(60)
    pids = [int(file.read_text().split()[0]) for file in files]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30)


MEETS = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["GLOO_SOCKET_IFNAME"], total.item())
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_ranks_of_several_nodes_meet_where_the_first_listens(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(MEETS)
    first = [word.replace(HOST, "127.0.0.1").replace(PORT, str(free_port("127.0.0.1"))) for word in meeting(2)]
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    started = [
        subprocess.Popen(
            [*LAUNCHER[:3], *(word.replace(FIRST, f"--node-rank={node}") for word in first), str(script)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for node in (0, 1)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    assert said == ["0 1 lo 2.0", "1 1 lo 2.0"]
