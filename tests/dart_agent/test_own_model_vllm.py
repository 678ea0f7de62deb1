"""docs/own_model.md's section on vLLM against a real server, started by the page's own command line."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator

import pytest

from dart_agent.models.tiny_model import build_tiny_model
from tests.dart_agent.test_own_model_page import SECTIONS, shell
from tests.helpers.vllm_server import served, tiny_config

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
SECTION = SECTIONS["vLLM as it is installed"]
SERVE = re.findall(r"^vllm serve (.*)$", SECTION, re.MULTILINE)[0]


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    """The page's server with an untrained tiny model under the name of the page's model."""
    name, *options = shlex.split(SERVE)
    folder = tmp_path_factory.mktemp("vllm-page")
    length = int(options[options.index("--max-model-len") + 1])
    model = build_tiny_model(folder / "model", seed=11, config=dataclasses.replace(tiny_config(), max_length=length))
    with served(model, folder / "server.log", "--served-model-name", name, *options) as found:
        yield found


def test_the_commands_of_the_page_play_every_episode(url, tmp_path):
    script = "".join(re.findall(r"^```bash\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
    done = shell(script.replace("http://127.0.0.1:8000", url), tmp_path, tmp_path / "no-ca")
    assert done.returncode == 0, done.stderr
    assert re.search(r"fake/click-button +20 .* 0 *$", done.stdout, re.MULTILINE), done.stdout
    assert "ended as: 20 parse_error" in done.stdout  # it is untrained: what it writes is no action


MISFITS = {
    "more images than `--limit-mm-per-prompt`": "fake/two-steps --config agent.yaml --screenshots 2 --patience 3",
    "`--max-tokens 9000`, more than `--max-model-len`": "fake/click-button --config agent.yaml --max-tokens 9000",
    "another name than it serves": "fake/click-button --config agent.yaml --model my-model",
}
"""By row of the section's table, what is evaluated."""


@pytest.mark.parametrize("row", MISFITS)
def test_a_setting_that_does_not_fit_the_server_ends_as_the_page_says(row: str, url, tmp_path):
    (message,) = re.findall(rf"^\| {re.escape(row)} \| `(.+)` \|$", SECTION, re.MULTILINE)
    command = f"dart-agent eval {MISFITS[row]} --n 2 --engine-url {url}/v1"
    failed = shell(f"dart-agent init vllm --out v; cd v; {command}", tmp_path, tmp_path / "no-ca")
    assert failed.returncode == 1 and failed.stderr.splitlines()[-1].endswith(message), failed.stderr
