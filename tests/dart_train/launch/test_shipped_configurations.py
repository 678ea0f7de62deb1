"""What each shipped configuration starts, as it is, on machines with 0, 1 and 8 GPUs: commands, environments, places.

The GPUs are a program `nvidia-smi`; nothing of a configuration is overridden.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dart_agent.presets import get_preset
from dart_train.config.run_config import load_config
from dart_train.launch.pipeline import cluster_server, place_here, placed, words_of
from dart_train.placement.placement import Placement, PlacementError
from dart_train.preflight.settings_check import library_check
from dart_train.rollout.fleet.engine_pool import EnginePool
from dart_train.rollout.fleet.replica import Weights
from dart_train.rollout.settings.rollout_config import EnginePlaces
from dart_train.run.supervisor import ProcessSpec, python_process
from tests.helpers.gpus import H100, RTX_4090, fake_gpus, gpu_rows

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
NONE = "{}; this machine has no GPU"
PLACES = {
    ("dart_osworld_7b", 0): NONE.format("2 x 1 for engines, 6 for the trainer, 8 in all"),
    ("dart_osworld_7b", 1): "2 x 1 for engines, 6 for the trainer, 8 in all; this machine has 1 GPU",
    ("dart_osworld_7b", 8): "2 engines on GPU 6 | 7; trainer on GPU 0-5 in 6 ranks",
    ("lora_7b_80gb", 0): NONE.format("1 x 1 for engines, 1 for the trainer on the same ones"),
    ("lora_7b_80gb", 1): "1 engine on GPU 0; trainer on GPU 0 (engines take 40% of its memory)",
    ("lora_7b_80gb", 8): "1 engine on GPU 0; trainer on GPU 0 (engines take 40% of its memory)",
    ("lora_3b_24gb", 0): NONE.format("1 x 1 for engines, 1 for the trainer on the same ones"),
    ("lora_3b_24gb", 1): "1 engine on GPU 0; trainer on GPU 0 (engines take 46% of its memory)",
    ("lora_3b_24gb", 8): "1 engine on GPU 0; trainer on GPU 0 (engines take 46% of its memory)",
}

ON_THE_CPU = {name for name in NAMES if (name, 0) not in PLACES}
"""Those that are the same run on every machine."""


def place_or_refusal(name: str) -> str:
    try:
        return place_here(load_config(CONFIGS / f"{name}.yaml")).sentence
    except PlacementError as error:
        return str(error)


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_where_each_configuration_runs(name, gpus, monkeypatch, tmp_path):
    kind = RTX_4090 if name == "lora_3b_24gb" else H100
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[kind] * gpus) if gpus else "No devices were found", 0 if gpus else 6)
    found = place_or_refusal(name)
    if name in ON_THE_CPU:
        engines = load_config(CONFIGS / f"{name}.yaml").rollout.engine.replicas or 1
        assert found == f"{engines} engine{'s' * (engines > 1)} on the CPU; trainer on the CPU"
    else:
        assert PLACES[name, gpus] in found and "\n" not in found


def modules(config_path: Path, placement: Placement) -> dict[str, ProcessSpec]:
    """The modules of the reinforcement learning as the launcher starts them."""
    names = ("learn", "rollout", "evaluate", "data", "warmup")
    specs = {name: python_process(name, "dart_train", *words_of(name, "c.yaml")) for name in names}
    specs["cluster"] = cluster_server("ws+unix:///run/cluster.sock", config_path)
    return {name: placed(spec, name, placement) for name, spec in specs.items()}


def test_the_commands_of_eight_gpus(monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[H100] * 8))
    config = load_config(CONFIGS / "dart_osworld_7b.yaml")
    placement = place_here(config)
    started = modules(CONFIGS / "dart_osworld_7b.yaml", placement)
    lines = {name: " ".join(spec.argv).removeprefix(f"{sys.executable} ") for name, spec in started.items()}
    assert lines["learn"] == (
        "-m dart_train.launch.rank_launcher --standalone --nproc-per-node=6 -m dart_train process c.yaml learn"
    )
    assert lines["warmup"] == lines["learn"].replace("c.yaml learn", "c.yaml warmup")
    assert started.pop("warmup").env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    for name, words in (("rollout", "process c.yaml rollout"), ("evaluate", "evaluate c.yaml")):
        assert lines[name] == f"-m dart_train {words} --engine-gpus 6 --engine-gpus 7 --gpu-memory 0.9"
    assert lines["data"] == "-m dart_train process c.yaml data" and " serve --config " in lines["cluster"]
    shown = {name: spec.env["CUDA_VISIBLE_DEVICES"] for name, spec in started.items()}
    assert shown == {"learn": "0,1,2,3,4,5", "rollout": "0", "evaluate": "0", "data": "", "cluster": ""}
    assert {spec.env["CUDA_DEVICE_ORDER"] for spec in started.values()} == {"PCI_BUS_ID"}
    places = EnginePlaces.parse(["6", "7"], 0.9)
    assert places.gpus == placement.engines
    pool = EnginePool(
        config.rollout.engine, Weights("/v1", 1), directory=tmp_path, sync=config.rollout.sync, places=places
    )
    for gpu, replica in zip(("6", "7"), pool.replicas, strict=True):
        command = replica.spec.command(Weights("/v1", 1))
        line = " ".join(command.argv)
        assert " serve /v1 --served-model-name policy --host 127.0.0.1 --port " in line
        assert line.endswith("--max-model-len 32768 --tensor-parallel-size 1 --gpu-memory-utilization 0.9")
        assert '{"image": 5, "video": 0}' in line and command.environment["CUDA_VISIBLE_DEVICES"] == gpu
    assert config.rollout.engine.start_timeout_s == 900
    assert len({replica.spec.command(Weights("/v1", 1)).url for replica in pool.replicas}) == 2, "a port each"


@pytest.mark.parametrize(
    ("name", "kind", "engine", "trainer"),
    [("lora_7b_80gb", H100, "0.4", "0.55"), ("lora_3b_24gb", RTX_4090, "0.46", "0.49")],
)
def test_the_commands_of_one_gpu_that_is_shared(name, kind, engine, trainer, monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(kind))
    started = modules(CONFIGS / f"{name}.yaml", place_here(load_config(CONFIGS / f"{name}.yaml")))
    assert started["learn"].argv[1:] == ("-m", "dart_train", "process", "c.yaml", "learn", "--gpu-memory", trainer)
    assert started["rollout"].argv[-4:] == ("--engine-gpus", "0", "--gpu-memory", engine)
    assert {started[module].env["CUDA_VISIBLE_DEVICES"] for module in ("learn", "rollout", "evaluate")} == {"0"}


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_the_commands_of_the_quick_start_see_no_gpu(gpus, monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[H100] * gpus))
    started = modules(CONFIGS / "quickstart.yaml", place_here(load_config(CONFIGS / "quickstart.yaml")))
    assert {spec.env["CUDA_VISIBLE_DEVICES"] for spec in started.values()} == {""}
    assert started["learn"].argv[1:] == ("-m", "dart_train", "process", "c.yaml", "learn")
    assert started["rollout"].argv[-4:] == ("--engine-gpus", "", "--engine-gpus", "")


def test_desktops_are_kept_to_their_cores(monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, "")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    path = CONFIGS / "quickstart.yaml"
    started = modules(path, place_here(load_config(path, ["resources.desktop_cores=2"])))
    assert started["cluster"].argv[:3] == ("taskset", "--cpu-list", "2,3") and started["learn"].argv[0] != "taskset"
    assert subprocess.run([*started["cluster"].argv[:2], "0", "true"], timeout=30).returncode == 0


@pytest.mark.train
@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_each_configuration_hold_for_its_ranks(name):
    if name in ("tiny_base_2", "tiny_base_3"):  # whose model a script fills in
        return
    config, ranks = load_config(CONFIGS / f"{name}.yaml"), 6 if name == "dart_osworld_7b" else 1
    library_check(config, ranks)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("dart_osworld_7b", 8),
        pytest.param("lora_7b_80gb", 1, marks=pytest.mark.slow),
        pytest.param("lora_3b_24gb", 1, marks=pytest.mark.slow),
    ],
)
def test_a_dry_run_says_what_is_missing_where_the_gpus_are(name, gpus, monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[H100] * gpus))
    command = [sys.executable, "-m", "dart_train", "run", str(CONFIGS / f"{name}.yaml"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and "model.path: no model" in done.stderr, "it is not on this machine"
    assert PLACES[name, gpus] in done.stdout and len(done.stdout.splitlines()) == 1
    assert "wants GPUs" not in done.stderr and "trainer." not in done.stderr


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_without_its_gpus_ends_with_one_message_and_leaves_nothing(monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path / "bin", gpu_rows(H100))
    command = [sys.executable, "-m", "dart_train", "run", str(CONFIGS / "dart_osworld_7b.yaml")]
    done = subprocess.run([*command, "--runs-dir", str(tmp_path / "runs")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 1 and not (tmp_path / "runs").exists() and "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if "waiting for " not in line]  # on a busy machine
    assert said[0].startswith("error: ") and "problems, and nothing was started" in done.stderr
    assert "this run wants GPUs: 2 x 1 for engines, 6 for the trainer, 8 in all; " in done.stderr


def test_the_monitors_engine_has_a_gpu_of_its_own(monkeypatch, tmp_path):
    """Without one it sees none (`CUDA_VISIBLE_DEVICES=""`), and vLLM ends."""
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[H100] * 9))
    config = load_config(CONFIGS / "dart_osworld_7b.yaml", ["evaluation.monitor.every_rollouts=100"])
    placement = place_here(config)
    assert placement.sentence.endswith("the monitor's engine on GPU 8")
    monitor = placed(python_process("monitor", "dart_train", *words_of("monitor", "c.yaml")), "monitor", placement)
    assert monitor.argv[-4:] == ("--engine-gpus", "8", "--gpu-memory", "0.9")
    assert monitor.env["CUDA_VISIBLE_DEVICES"] == "8"
    fake_gpus(monkeypatch, tmp_path / "eight", gpu_rows(*[H100] * 8))
    with pytest.raises(PlacementError, match="1 for the monitor's engine, 9 in all; this machine has 8 GPUs"):
        place_here(config)
    alone = load_config(CONFIGS / "lora_7b_80gb.yaml", ["evaluation.monitor.every_rollouts=100"])
    fake_gpus(monkeypatch, tmp_path / "two", gpu_rows(*[H100] * 2))
    assert place_here(alone).trainer == place_here(alone).engines[0] == (0,) and place_here(alone).monitor == (1,)
    fake_gpus(monkeypatch, tmp_path / "one", gpu_rows(H100))
    with pytest.raises(PlacementError, match="the monitor's engine"):
        place_here(alone)


def test_the_trainers_allocator_grows_its_pieces_unless_the_user_says_otherwise(monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(*[H100] * 8))
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    placement = place_here(load_config(CONFIGS / "dart_osworld_7b.yaml"))
    spec = python_process("learn", "dart_train", *words_of("learn", "c.yaml"))
    assert placed(spec, "learn", placement).env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in placed(spec, "learn", placement).env


def test_a_qwen_model_writes_in_the_format_of_its_version():
    """Each version counts coordinates in its own way: by another one's, every click lands elsewhere."""
    expected = get_preset("qwen2.5-vl").format
    first = ROOT.glob("dart_*/assets/first/*/*.yaml")
    found = []
    for path in (*first, *CONFIGS.glob("*.yaml")):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        model = settings.get("model") or ""
        if "Qwen2.5-VL" in (model if isinstance(model, str) else model.get("path", "")):
            found.append(path.name)
            assert settings.get("agent", settings)["format"] == expected, path
    assert sorted(found) == ["agent.yaml", "lora_3b_24gb.yaml", "run.yaml"]
