"""Every command line that the launcher builds for vLLM is one that the pinned vLLM takes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dart_agent.engines.base.engine_kind import Launch, Public
from dart_agent.engines.vllm.vllm_environment import VERSION
from dart_train.config.run_config import load_config
from tests.helpers.vllm_options import FILE, strict_parser
from tests.helpers.vllm_server import program

ROOT = Path(__file__).parents[3]
OPTIONS = ROOT / "tests" / "helpers" / "vllm_options.py"
PARSE_S = 600.0  # 20 s on an idle machine


def model_of(models: Path, family: str) -> str:
    """A model directory, as far as it says its family."""
    path = models / family
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": family}))
    return str(path)


def command_lines(models: Path) -> list[list[str]]:
    """Of each shipped configuration with vLLM: a GPU of its own, a shared one, two, and each way of new weights."""
    dense, mixture = (model_of(models, family) for family in ("qwen2_5_vl", "qwen3_5_moe"))
    usual = Launch("r0", 0, dense, 1, Path("/tmp"), gpus=(0,), gpu_memory=0.9)
    public = Public("127.0.0.1", 8000, "/certificate.pem", "/key.pem")
    launches = [
        usual,
        replace(usual, gpu_memory=0.46, images=1),
        replace(usual, gpus=(0, 1), transfer="nccl"),
        replace(usual, transfer="tcp"),
        replace(usual, transfer="adapter", lora_rank=24),
        replace(usual, transfer="adapter", lora_rank=24, path=mixture),
        replace(
            usual, transfer="adapter", lora_rank=24, path=mixture, lora_target_modules=("self_attn.q_proj", "v_proj")
        ),
        replace(usual, public=public),
        replace(usual, gpus=None, gpu_memory=None),
    ]
    kinds = [load_config(path).rollout.engine for path in sorted((ROOT / "configs").glob("*.yaml"))]
    commands = [
        kind.command(launch).argv
        for engine in kinds
        if engine.kind == "vllm"
        for kind, _ in engine.servers()[:1]
        for launch in launches
    ]
    return [list(argv[argv.index("serve") + 1 :]) for argv in commands]


def test_there_are_such_configurations(tmp_path):
    assert len(command_lines(tmp_path)) >= 3 * 7


def test_the_options_are_those_of_the_pinned_vllm(tmp_path):
    for line in command_lines(tmp_path):
        parsed = strict_parser().parse_args(line)
        assert Path(parsed.model).parent == tmp_path and parsed.served_model_name == ["policy"]
        assert parsed.logprobs_mode == "processed_logprobs" and parsed.enable_scale_out


def test_experts_that_tokens_are_routed_to_get_no_places_for_adapters(tmp_path):
    """vLLM would keep one for each expert, though no adapter has anything for them, and its kernels need a GPU."""
    for line in command_lines(tmp_path):
        parsed = strict_parser().parse_args(line)
        limited = bool(parsed.enable_lora) and parsed.model.endswith("qwen3_5_moe")
        assert ("v_proj" in (parsed.lora_target_modules or [])) == limited


def test_a_cache_of_a_given_size_may_be_set_beside_the_share_of_memory():
    """docs/guides/one_node.md advises it on a shared GPU; vLLM still wants the share free when it starts."""
    config = load_config(ROOT / "configs" / "lora_3b_24gb.yaml").rollout.engine
    known = config.options["options"]
    engine = config.model_copy(
        update={"options": {**config.options, "options": [*known, "--kv-cache-memory-bytes", "2400000000"]}}
    )
    ((kind, _),) = engine.servers()
    argv = kind.command(Launch("r0", 0, "/models/policy", 1, Path("/tmp"), gpus=(0,), gpu_memory=0.46)).argv
    parsed = vars(strict_parser().parse_args(list(argv[argv.index("serve") + 1 :])))
    assert parsed["kv_cache_memory_bytes"] == "2400000000" and 0.46 in parsed.values()


@pytest.mark.parametrize("wrong", [["--max-model-length", "9"], ["--logprobs-mode", "all"], ["--max-num-seqs", "few"]])
def test_the_list_of_options_is_strict(wrong):
    with pytest.raises(SystemExit):
        strict_parser().parse_args(["/models/policy", *wrong])


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_the_list_of_options_is_that_of_the_installed_vllm(tmp_path):
    """`python tests/helpers/vllm_options.py tests/data/vllm_serve_options.json`, in its environment, makes it anew."""
    written = tmp_path / "options.json"
    python = program().with_name("python")
    subprocess.run([python, OPTIONS, written], check=True, cwd=tmp_path, timeout=PARSE_S)
    assert json.loads(written.read_text()) == json.loads(FILE.read_text())
    version = subprocess.run(
        [python, "-c", "from importlib.metadata import version; print(version('vllm'))"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert version.stdout.partition("+")[0].strip() == VERSION


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllms_own_parser_takes_them(tmp_path):
    """Its checks of values against each other too, which need no model."""
    lines = tmp_path / "lines.json"
    lines.write_text(json.dumps([*command_lines(tmp_path), ["/models/policy", "--max-model-length", "9"]]))
    done = subprocess.run(
        [program().with_name("python"), OPTIONS, "--parse", lines], cwd=tmp_path, timeout=PARSE_S,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *taken, last = json.loads(done.stdout.splitlines()[-1])
    assert set(taken) == {""} and "max-model-length" in last
