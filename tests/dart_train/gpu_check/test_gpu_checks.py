"""The checks' decisions on machines with 8, 2, 1 and no GPUs, their verdicts, and the checks themselves on the CPU."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from dart_train.commands.train_cli import app
from dart_train.core.device_peaks import peak_flops, utilisation
from dart_train.gpu_check import attention_checks, device_checks, rank_checks, training_checks
from dart_train.gpu_check.check_list import CHECKS, chosen, reason_to_skip
from dart_train.gpu_check.check_setting import CheckSetting
from dart_train.gpu_check.gpu_report import as_values, outcome_table
from dart_train.gpu_check.outcome import Outcome, Status, verdict
from dart_train.gpu_check.training_checks import planned_memory, step_shape
from dart_train.trainer.attention import kernels

GIB = 1 << 30
OK, FAILED = Outcome("one", Status.OK, "1 s"), Outcome("two", Status.FAILED, "wrong", advice="mend it")
SKIPPED, SLOW = Outcome("three", Status.SKIPPED, "no GPU"), Outcome("four", Status.WARNING, "slow")


def setting(devices: int, *, device: str = "cuda", vllm: bool = True) -> CheckSetting:
    return CheckSetting(device, devices, Path("/model"), False, Path("/scratch"), vllm)


@pytest.mark.parametrize(
    ("outcomes", "ready"),
    [([OK], True), ([OK, SLOW, SKIPPED], True), ([OK, FAILED], False), ([SKIPPED], False), ([], False)],
)
def test_the_verdict(outcomes, ready):
    found, sentence = verdict(outcomes)
    assert found is ready and as_values(outcomes, 1.0)["ready"] is ready
    assert all(item.name in sentence for item in outcomes if item.status is Status.FAILED)


def test_outcomes_survive_json_and_show_their_advice():
    assert Outcome.read(json.loads(json.dumps(FAILED.as_values()))) == FAILED
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(outcome_table([OK, FAILED]))
    assert "mend it" in console.export_text()


@pytest.mark.parametrize(("devices", "vllm", "skipped"), [
    (8, True, set()), (2, True, set()), (1, True, {"fsdp", "context", "weights-group"}),
    (1, False, {"fsdp", "context", "weights-group", "parity-vllm"}),
])  # fmt: skip
def test_a_check_is_skipped_with_its_reason(devices, vllm, skipped):
    reasons = {check.name: reason_to_skip(check, setting(devices, vllm=vllm)) for check in CHECKS}
    assert {name for name, reason in reasons.items() if reason} == skipped


@pytest.mark.parametrize(
    ("heads", "keys", "devices", "largest"), [(28, 4, 8, 4), (28, 4, 6, 2), (28, 4, 7, 1), (16, 8, 8, 8), (3, 1, 2, 1)]
)
def test_the_largest_groups_that_heads_allow_are_checked(heads, keys, devices, largest):
    config = {"text_config": {"num_attention_heads": heads, "num_key_value_heads": keys}}
    assert rank_checks.largest_group(config, devices) == largest


def test_checks_are_chosen_by_name():
    assert [check.name for check in chosen(["parity"])] == ["parity"] and len(chosen(None)) == len(CHECKS)
    found = CliRunner().invoke(app, ["check-gpu", "--only", "parrity"])
    assert found.exit_code != 0 and "parity" in str(found.exception)


@pytest.mark.parametrize("memory", [180, 80, 40, 24, 16, 12])
def test_the_step_fits_the_device(memory):
    shape = step_shape("cuda", memory * GIB)
    planned = planned_memory(shape, training_checks.ROW_TOKENS["cuda"], half=True).peak
    assert planned <= training_checks.USABLE * memory * GIB
    assert shape.lora == (memory < 80) and 1 <= shape.layers <= 28


@pytest.fixture
def fake_gpus(monkeypatch):
    """`torch.cuda` as of a machine with GPUs, at its lowest level; nothing computes on them."""

    def fake(count: int, *, free_gib: float = 79.0, capability: tuple[int, int] = (9, 0)) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H100 80GB HBM3")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (int(free_gib * GIB), 80 * GIB))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
        monkeypatch.setattr(device_checks, "matrix_product", lambda device, title: OK)

    return fake


@pytest.mark.parametrize("count", [8, 2, 1])
def test_every_gpu_is_looked_at(count, fake_gpus):
    fake_gpus(count)
    outcomes = device_checks.check_devices(setting(count))
    assert [item.name for item in outcomes[::2]] == [f"cuda:{index}" for index in range(count)]
    assert all(item.status is Status.OK and "H100" in item.found for item in outcomes[::2])


def test_a_busy_gpu_is_a_warning_and_an_old_one_a_failure(fake_gpus):
    fake_gpus(1, free_gib=30.0)
    assert device_checks.check_devices(setting(1))[0].status is Status.WARNING
    fake_gpus(1, capability=(7, 0))
    assert device_checks.check_devices(setting(1))[0].status is Status.FAILED


def test_gpus_that_are_not_there_are_refused(fake_gpus):
    fake_gpus(0)
    assert "no GPU" in str(CliRunner().invoke(app, ["check-gpu", "--device", "cuda"]).exception)
    fake_gpus(2)
    assert "finds 2" in str(CliRunner().invoke(app, ["check-gpu", "--gpus", "8"]).exception)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090"])
def test_known_devices_have_a_peak(name):
    peak = peak_flops(name)
    assert peak is not None and utilisation(peak, 2.0, name) == 0.5 and utilisation(peak, 1.0, name, 2) == 0.5
    assert peak_flops("CPU") is None and utilisation(1.0, 1.0, "CPU") is None


def test_the_longer_name_counts():
    assert peak_flops("NVIDIA H100 PCIe") != peak_flops("NVIDIA H100 80GB HBM3")


@pytest.mark.train
def test_attention_is_right_on_the_cpu():
    outcomes = attention_checks.check_attention(setting(2, device="cpu"))
    assert {item.status for item in outcomes if "sdpa" in item.name} == {Status.OK}
    assert {item.status for item in outcomes if "flash" in item.name} == {Status.SKIPPED}


@pytest.mark.train
def test_wrong_attention_is_found(monkeypatch):
    right = kernels.FLEX_COMPUTE["sdpa"]
    monkeypatch.setitem(kernels.FLEX_COMPUTE, "sdpa", lambda *given: 1.01 * right(*given))
    outcomes = attention_checks.check_attention(setting(2, device="cpu"))
    found = {item.name: item.status for item in outcomes}
    assert found["attention sdpa float32"] is Status.FAILED


@pytest.mark.scale
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_whole_command_on_the_cpu(tmp_path):
    path = tmp_path / "check.json"
    done = CliRunner().invoke(app, ["check-gpu", "--device", "cpu", "--json", str(path)])
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    status = {item["name"]: item["status"] for item in found["outcomes"]}
    assert found["ready"] and "failed" not in status.values()
    ranks = ("FSDP2 over 2 ranks", "rows shared by 2 of 2 ranks", "weights by gloo")
    for name in ("training step", *ranks, "parity, embedded engine"):
        assert status[name] == "ok"
