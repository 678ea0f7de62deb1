"""What is known to go wrong is said before anything starts, all of it in one list."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dart_agent.models.tiny_model import TinyModelConfig, build_tiny_model
from dart_train.commands.train_cli import app
from dart_train.config.run_config import load_config
from dart_train.preflight import machine_check
from dart_train.preflight.run_check import check_run
from tests.helpers.gpus import H100, RTX_4090, fake_cuda, fake_gpus, gpu_rows

CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
QUICK, PAPER, LORA = (CONFIGS / f"{name}.yaml" for name in ("quickstart", "dart_osworld_7b", "lora_7b_80gb"))
GPUS_WANTED = {"dart_osworld_7b": 8, "lora_7b_80gb": 1, "lora_3b_24gb": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    config = TinyModelConfig(hidden_size=32, layers=2, vision_hidden_size=32, vision_layers=1, max_length=32768)
    return build_tiny_model(tmp_path_factory.mktemp("model"), config=config)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with so many GPUs, as nvidia-smi and torch tell, and vLLM."""

    def make(count: int, *, kind=H100, used=()) -> None:
        printed = gpu_rows(*[kind] * count, used=used) if count else "No devices were found"
        fake_gpus(monkeypatch, tmp_path / "bin", printed, 0 if count else 6)
        program = tmp_path / "bin" / "vllm"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        fake_cuda(monkeypatch, count)
        monkeypatch.setenv("DART_VLLM", str(tmp_path / "no-vllm"))
        monkeypatch.setenv("DART_DATA_URL", f"sqlite:///{tmp_path}/data.sqlite")
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))

    return make


def problems(path: Path, *overrides: str, runs: Path = Path("runs")) -> list[str]:
    return list(check_run(load_config(path, list(overrides)), runs).problems)


def fitted(name: str, model: Path) -> list[str]:
    """Overrides that give a configuration a model that is here, and tasks."""
    config = load_config(CONFIGS / f"{name}.yaml")
    found = [] if config.model.path in ("tiny", "tiny-base", "tiny-copier", "tiny-actor") else [model]
    chosen = [f"model.path={path}" for path in found]
    chosen += ["data.files=null"] if config.data.files else []
    return chosen + (["rollout.tasks=[fake/click-button]"] if "osworld/*" in config.train_tasks else [])


@pytest.mark.train
@pytest.mark.parametrize("count", [8, 2, 1])
@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_is_checked_on_machines_with_gpus(name, count, machine, model, tmp_path):
    machine(count)
    words = [word for item in fitted(name, model) for word in ("--set", item)]
    config = str(CONFIGS / f"{name}.yaml")
    dry = CliRunner().invoke(app, ["run", config, "--dry-run", "--runs-dir", str(tmp_path / "runs"), *words])
    planned = CliRunner().invoke(app, ["plan", config, *words])
    assert not (tmp_path / "runs").exists()
    if count >= GPUS_WANTED.get(name, 0):
        assert dry.exit_code == 0 and planned.exit_code == 0, (dry.exception, planned.exception)
        assert dry.stdout.splitlines()[-1].endswith("no problem found, and nothing was started")
        assert len(dry.stdout.splitlines()) <= 3, "the verdict is not hidden"
    else:
        for done in (dry, planned):
            assert done.exit_code == 1 and "this run wants GPUs" in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.optim=adamwx", ["optim", "adamwx"]),
        ("trainer.optim=adamw_bnb_8bit", ["bitsandbytes"]),
        ("trainer.learning_rate=-1e-6", ["learning_rate"]),
        ("trainer.learning_rate=0", ["learning_rate"]),
        ("trainer.weight_decay=-0.1", ["weight_decay"]),
        ("trainer.adam_beta2=1.5", ["adam_beta2"]),
        ("trainer.max_grad_norm=-1", ["max_grad_norm"]),
        ("trainer.warmup_steps=-3", ["warmup_steps"]),
        ("trainer.lr_scheduler_type=cosin", ["cosin", "did you mean"]),
        ("trainer.lr_scheduler_type=reduce_lr_on_plateau", ["evaluations"]),
        ("trainer.report_to=wandbb", ["wandbb", "did you mean 'wandb'"]),
        ("trainer.report_to=[tensorboard, wandb]", ["wandb", "WANDB_API_KEY"]),
        ("trainer.report_to=mlflow", ["mlflow", "not installed"]),
        ("rollout.group_size=1", ["group_size", "trains nothing"]),
        ("rollout.budget_rollouts=3", ["budget_rollouts"]),
        ("cluster.desktops=1", ["cluster.desktops"]),
        ("cluster.provider=xvbf", ["cluster.provider", "xvfb"]),
        ("agent.format=ui_tarz", ["agent.format"]),
        ("evaluation.episodes=10001", ["evaluation.episodes"]),
        ("demonstrations.per_task=0", ["demonstrations"]),
        ("trainer.shown_rows=8", ["trainer.shown_rows", "demonstrations.shown_pages"]),
        ("rollout.tasks=[fake/click-buton]", ["rollout.tasks", "click-button"]),
        ("model.path=/nowhere/model", ["model.path", "/nowhere/model"]),
        ("trainer.lora_target_modules=[q_proj]", ["use_peft"]),
    ],
)
def test_each_foreseeable_problem_is_said(override, words, machine, tmp_path):
    machine(0)
    found = problems(QUICK, override)
    assert any(all(word in problem for word in words) for problem in found), found


def test_a_whole_run_has_none_and_needs_no_torch_for_that(machine):
    machine(0)
    assert problems(QUICK) == []


def test_group_sizes_against_each_other(model, machine):  # with torch whole before its GPUs are faked
    machine(0)
    curation = ("data.curation.dynamic_rollouts=true", "data.curation.min_rollouts=9", "rollout.group_size=8")
    warmup = ("trainer.fsdp=true", "resources.trainer_ranks=4", "warmup.batch_size=3")
    said = problems(QUICK, *curation, *warmup)
    assert any("min_rollouts 9" in problem for problem in said)
    assert any(problem.startswith("warmup.batch_size 3 leaves some of the 4 ranks") for problem in said)
    said = problems(QUICK, *warmup, "trainer.context_parallel=2", "warmup.batch_size=1")
    assert any(problem.startswith("warmup.batch_size 1 leaves some of the 2 groups of 2 ranks") for problem in said)
    said = problems(QUICK, *warmup, "trainer.context_parallel=2")
    assert not any(problem.startswith("warmup.batch_size") for problem in said)


def test_rows_that_cannot_be_divided_are_said_before_the_start(model, machine):
    """Ranks that the number does not divide, heads that it does not divide, and ranks that do not shard the model."""
    machine(8)
    chosen = (*fitted("dart_osworld_7b", model), "resources.trainer_ranks=6")
    assert not any("context_parallel" in problem for problem in problems(PAPER, *chosen, "trainer.context_parallel=2"))
    said = "\n".join(problems(PAPER, *chosen, "trainer.context_parallel=4"))
    assert "trainer.context_parallel 4 does not divide the 6 ranks of a machine: set it to a divisor" in said
    said = "\n".join(problems(PAPER, *chosen, "trainer.context_parallel=3"))
    assert "trainer.context_parallel 3 does not divide the model's 4 heads of attention: set it to 2" in said
    for own in ("tiny-base", "tiny"):
        sharing = (f"model.path={own}", "trainer.fsdp=true", "resources.trainer_ranks=3", "trainer.context_parallel=3")
        said = "\n".join(problems(QUICK, *sharing))
        assert "trainer.context_parallel 3 does not divide the model's 4 heads of attention" in said
    said = "\n".join(problems(PAPER, *chosen, "trainer.context_parallel=2", "trainer.fsdp=false"))
    assert "trainer.context_parallel 2 divides rows among ranks that shard a model, and fsdp is not set" in said


def test_all_are_one_list_of_run_and_dry_run(machine, tmp_path):
    machine(0)
    wrong = ("trainer.optim=adamwx", "model.path=/nowhere", "trainer.report_to=wandbb", "trainer.learning_rate=-1")
    words = [word for item in wrong for word in ("--set", item)]
    for command in (["run", "--dry-run"], ["run"]):
        done = CliRunner().invoke(app, [*command, str(QUICK), "--runs-dir", str(tmp_path / "runs"), *words])
        said = str(done.exception)
        assert done.exit_code == 1 and "4 problems" in said and not (tmp_path / "runs").exists()
        assert all(word in said for word in ("adamwx", "/nowhere", "wandbb", "learning_rate"))
    planned = CliRunner().invoke(app, ["plan", str(QUICK), *words])
    assert planned.exit_code == 1 and "adamwx" in str(planned.exception)


def test_a_tracker_with_credentials_is_no_problem(machine, monkeypatch, tmp_path):
    machine(0)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert problems(QUICK, "trainer.report_to=wandb") == []
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert problems(QUICK, "trainer.report_to=wandb") == []


# --- models -----------------------------------------------------------------------------------------------------


@pytest.mark.train
def test_a_model_that_is_not_whole(machine, model, tmp_path):
    machine(0)
    for file, word in (("tokenizer.json", "tokenizer"), ("model.safetensors", "weights"), ("config.json", "no model")):
        copy = tmp_path / f"without-{file}"
        shutil.copytree(model, copy)
        (copy / file).unlink()
        found = problems(QUICK, f"model.path={copy}")
        assert any(word in problem for problem in found), (file, found)
    copy = tmp_path / "cut-short"
    shutil.copytree(model, copy)
    os.truncate(copy / "model.safetensors", (copy / "model.safetensors").stat().st_size // 2)
    assert any("cannot be read" in problem for problem in problems(QUICK, f"model.path={copy}"))
    copy = tmp_path / "shards"
    shutil.copytree(model, copy)
    index = {"weight_map": {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert any("lacks 2 of 2" in problem for problem in problems(QUICK, f"model.path={copy}"))
    assert problems(QUICK, f"model.path={model}") == []


@pytest.mark.train
@pytest.mark.parametrize(
    ("targets", "word"),
    [
        ("[q_prj, v_proj]", "q_prj"),
        ("['.*language_model.*[qv]_prj']", "fits no layer"),
        ("['*q_proj']", "regular expression"),
        ("[q_proj, v_proj]", ""),
        (r"['.*language_model.*\.(q|v)_proj']", ""),
    ],
)
def test_layers_of_an_adapter(targets, word, machine, model):
    machine(0)
    found = problems(QUICK, f"model.path={model}", "trainer.use_peft=true", f"trainer.lora_target_modules={targets}")
    assert any(word in problem for problem in found) if word else found == []


@pytest.mark.train
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (["trainer.use_peft=true"], ""),
        ([], "sends a LoRA adapter, and none is trained"),
        (["trainer.use_peft=true", "trainer.lora_r=600"], "up to rank 512, not 600"),
    ],
)
def test_an_adapter_is_sent_where_one_is_trained(changes, word, machine, model):
    machine(0)
    vllm = ("rollout.engine.kind=vllm", "rollout.engine.options={}", "rollout.sync.transfer=adapter")
    found = [one for one in problems(QUICK, f"model.path={model}", *vllm, *changes) if "adapter" in one]
    assert any(word in problem for problem in found) if word else found == []


@pytest.mark.train
def test_experts_get_no_adapter(machine, tmp_path):
    machine(0)
    shape = TinyModelConfig(family="qwen3_vl_moe", hidden_size=32, layers=1, vision_hidden_size=32, vision_layers=1)
    path, targets = build_tiny_model(tmp_path / "mixture", config=shape), "[q_proj, gate_up_proj]"
    (problem,) = problems(
        QUICK, f"model.path={path}", "trainer.use_peft=true", f"trainer.lora_target_modules={targets}"
    )
    assert "no layer 'gate_up_proj'" in problem and "experts that tokens are routed to get no adapter" in problem


@pytest.mark.train
def test_experts_are_replayed_of_mixtures_by_engines_that_report_them(machine, model, tmp_path):
    machine(0)
    shape = TinyModelConfig(family="qwen3_5_moe", hidden_size=32, layers=1, vision_hidden_size=32, vision_layers=1)
    mixture = build_tiny_model(tmp_path / "mixture", config=shape)
    replayed = ("trainer.replay_routing=true", f"model.path={mixture}")
    assert problems(QUICK, *replayed) == []
    (problem,) = problems(QUICK, *replayed[:1], f"model.path={model}")
    assert "replay_routing is for mixtures of experts" in problem
    vllm = ("rollout.engine.kind=vllm", "rollout.engine.options={}")
    assert any(
        "does not report them: add --enable-return-routed-experts" in one for one in problems(QUICK, *replayed, *vllm)
    )
    told = "rollout.engine.options={options: [--enable-return-routed-experts]}"
    assert not any("report them" in one for one in problems(QUICK, *replayed, vllm[0], told))


# --- machines ---------------------------------------------------------------------------------------------------


@pytest.mark.train
def test_gpus_that_are_busy_or_too_few(machine, model):
    given = fitted("dart_osworld_7b", model)
    machine(8, used=(60_000,))
    found = problems(PAPER, *given)
    assert len(found) == 1 and "1 of them in use by others" in found[0] and "GPU 0" in found[0]
    machine(2)
    assert "this run wants GPUs" in problems(PAPER, *given)[0]


@pytest.mark.train
def test_a_gpu_that_is_too_small_a_driver_that_is_too_old_and_another_vllm(machine, model, monkeypatch, tmp_path):
    given = fitted("lora_7b_80gb", model)
    machine(1, kind=("NVIDIA Tiny", 1))
    assert any(
        "before the first token" in problem or "engine's weights" in problem for problem in problems(LORA, *given)
    )
    machine(1)
    assert problems(LORA, *given) == []
    monkeypatch.setattr(machine_check, "driver_rows", lambda: [("470.82.01", "7.5")])
    monkeypatch.setattr("torch.version.cuda", "12.8")
    found = problems(LORA, *given)
    assert any("470.82.01" in problem and "525" in problem for problem in found)
    assert any("compute capability" in problem for problem in found)
    monkeypatch.setattr(machine_check, "driver_rows", lambda: [("580.65", "9.0")])
    environment = tmp_path / "vllm"
    packages = environment / "lib" / "python3.12" / "site-packages" / "vllm-0.9.1.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.1\n")
    (environment / "bin").mkdir()
    shutil.copy(tmp_path / "bin" / "vllm", environment / "bin" / "vllm")
    monkeypatch.setenv("DART_VLLM", str(environment))
    assert any("0.9.1" in problem for problem in problems(LORA, *given))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert any("finds none" in problem for problem in problems(LORA, *given))


@pytest.mark.train
def test_programs_and_disk(machine, model, monkeypatch, tmp_path):
    machine(1)
    given = fitted("lora_7b_80gb", model)
    (tmp_path / "bin" / "vllm").unlink()
    monkeypatch.setattr(machine_check, "missing_programs", lambda: {"Xvfb": "xvfb"})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1000))
    found = problems(LORA, *given, runs=tmp_path / "runs" / "deeper")
    for words in (["Xvfb", "apt-get install xvfb"], ["vllm", "engines install"], ["free", "keep_published"]):
        assert any(all(word in problem for word in words) for problem in found), (words, found)


def test_small_gpus_and_large_ones_are_not_mixed(machine):
    machine(1, kind=RTX_4090)
    assert problems(QUICK) == []


@pytest.mark.parametrize("key", ["self_imitation_rows=8", "shown_rows=8", "rehearsal_steps=2"])
def test_what_is_rehearsed_needs_a_weight(key, machine):
    machine(0)
    found = problems(QUICK, "trainer.supervised_coef=0", f"trainer.{key}")
    assert any(f"trainer.{key.split('=')[0]}" in problem and "trainer.supervised_coef" in problem for problem in found)
