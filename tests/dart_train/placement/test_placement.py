"""Which GPUs go to whom: what a configuration names exactly or not at all, what it leaves out sensibly and said."""

from __future__ import annotations

import pytest

from dart_train.config.run_config import RunConfig, parse_config
from dart_train.placement.gpu_discovery import GPU, GPUError, gpus_here
from dart_train.placement.placement import PlacementError, demand, place
from tests.helpers.gpus import H100, RTX_4090, fake_gpus, gpu_rows


def config(*, engine: dict | None = None, trainer: dict | None = None, **resources: object) -> RunConfig:
    return parse_config(
        {
            "name": "some",
            "resources": resources,
            "rollout": {"tasks": ["fake/click-button"], "engine": {"kind": "vllm", **(engine or {})}},
            "trainer": trainer or {},
        }
    )


def h100s(count: int, used: tuple[int, ...] = ()) -> list[GPU]:
    return [GPU(index, *H100, dict(enumerate(used)).get(index, 4)) for index in range(count)]


def test_gpus_are_those_that_the_driver_lists(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_here() == []
    fake_gpus(monkeypatch, tmp_path / "bin", gpu_rows(H100, RTX_4090, used=(70_000,)))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert gpus_here() == [GPU(0, *H100, 70_000), GPU(1, *RTX_4090, 4)]
    assert [gpu.occupied for gpu in gpus_here()] == [True, False]


@pytest.mark.parametrize(
    ("visible", "indices"), [("1", [1]), ("2,0", [2, 0]), ("", []), ("-1", []), ("1,-1,2", [1]), ("GPU-00000002", [2])]
)
def test_only_visible_gpus_count(monkeypatch, tmp_path, visible, indices):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(H100, H100, H100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in gpus_here()] == indices


def test_a_name_of_no_gpu_and_a_driver_that_fails_are_one_message_each(monkeypatch, tmp_path):
    fake_gpus(monkeypatch, tmp_path, gpu_rows(H100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(GPUError, match="names '3'; the GPUs here are 0"):
        gpus_here()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    fake_gpus(monkeypatch, tmp_path, "NVIDIA-SMI has failed because it couldn't communicate with the driver.", 9)
    with pytest.raises(GPUError, match=r"does not list the GPUs \(NVIDIA-SMI has failed .*mend the driver"):
        gpus_here()
    fake_gpus(monkeypatch, tmp_path, "No devices were found", 6)
    assert gpus_here() == []


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "1 engine on the CPU; trainer on the CPU"),
        (1, "1 engine on GPU 0; trainer on GPU 0 (engines take 40% of its memory)"),
        (2, "1 engine on GPU 1; trainer on GPU 0"),
        (4, "2 engines on GPU 2 | 3; trainer on GPU 0-1 in 2 ranks"),
        (8, "4 engines on GPU 4 | 5 | 6 | 7; trainer on GPU 0-3 in 4 ranks"),
    ],
)
def test_what_is_left_out_is_split_sensibly_and_said(count, said):
    assert place(config(), h100s(count)).sentence == said


def test_what_is_named_is_given_exactly():
    found = place(config(engine={"replicas": 2}, engine_gpus=2, trainer_ranks=3), h100s(8))
    assert (found.engines, found.trainer) == (((3, 4), (5, 6)), (0, 1, 2))
    left = place(config(engine={"replicas": 2}, engine_gpus=2), h100s(8))
    assert left.trainer == (0, 1, 2, 3) and left.demand.ranks == 4
    elsewhere = place(config(engine={"urls": ["http://10.0.0.1:8000"]}), h100s(4))
    assert elsewhere.engines == () and elsewhere.sentence.startswith("engines run elsewhere; trainer on GPU 0-3 in 4")


def test_shared_gpus_have_a_part_of_the_memory_each():
    found = place(config(engine={"replicas": 2}, trainer_ranks=2, share_gpus=True, engine_memory=0.5), h100s(2))
    assert (found.engines, found.trainer) == (((0,), (1,)), (0, 1))
    assert (found.demand.gpus, found.demand.engine_memory, found.demand.trainer_memory) == (2, 0.5, pytest.approx(0.45))


def test_the_quick_start_is_the_same_run_on_every_machine():
    quick = config(engine={"kind": "transformers", "replicas": 2}, trainer={"use_cpu": True})
    for gpus in (h100s(0), h100s(1), h100s(8)):
        assert place(quick, gpus).sentence == "2 engines on the CPU; trainer on the CPU"


@pytest.mark.parametrize(
    ("gpus", "settings", "said"),
    [
        ([], {"trainer_ranks": 4}, "none for engines, 4 for the trainer, 4 in all; this machine has no GPU"),
        ([], {"engine_gpus": 1}, "1 x 1 for engines, 0 for the trainer, 1 in all; this machine has no GPU"),
        (h100s(4), {"engine": {"replicas": 4}, "trainer_ranks": 4}, "4 x 1 for engines, 4 for the trainer, 8 in all"),
        (
            h100s(2, used=(70_000,)),
            {"trainer_ranks": 2},
            r"this machine has 2 GPUs, 1 of them in use by others \(GPU 0: 68.4 of 79.6 GiB; `nvidia-smi` says by whom",
        ),
        (
            [GPU(0, *H100), GPU(1, *RTX_4090), GPU(2, *RTX_4090)],
            {"trainer_ranks": 3, "engine": {"urls": ["http://10.0.0.1:8000"]}},
            "3 GPUs of one kind are wanted, and 1 x NVIDIA H100 80GB HBM3, 2 x NVIDIA GeForce RTX 4090 are free",
        ),
        (h100s(1), {"trainer": {"fsdp": True}}, "trainer.fsdp shards the model among ranks, and there is one"),
        (
            h100s(7),
            {"trainer": {"fsdp": True, "context_parallel": 4}, "trainer_ranks": 6},
            "trainer.context_parallel 4 does not divide the 6 ranks of a machine: set it to a divisor of them, or "
            "resources.trainer_ranks to a multiple",
        ),
    ],
)
def test_what_does_not_do_is_refused_with_the_numbers(gpus, settings, said):
    with pytest.raises(PlacementError, match=said) as error:
        place(config(**settings), gpus)
    assert "\n" not in str(error.value)


def test_an_occupied_gpu_is_passed_over():
    assert place(config(), h100s(3, used=(0, 50_000))).sentence == "1 engine on GPU 2; trainer on GPU 0"


def test_kinds_are_not_mixed_within_a_replica_or_among_ranks():
    mixed = [GPU(0, *RTX_4090), GPU(1, *H100), GPU(2, *RTX_4090), GPU(3, *H100)]
    found = place(config(engine={"replicas": 1}, engine_gpus=2, trainer_ranks=2), mixed)
    assert (found.trainer, found.engines) == ((1, 3), ((0, 2),))


def test_desktops_get_the_last_cores():
    found = place(config(desktop_cores=3), [], cores=tuple(range(8)))
    assert found.cores == (5, 6, 7) and found.sentence.endswith("; desktops on cores 5-7")
    with pytest.raises(PlacementError, match="desktop_cores is 9, and this machine has 8"):
        place(config(desktop_cores=9), [], cores=tuple(range(8)))


def test_a_cluster_is_asked_for_numbers_alone():
    wanted = demand(config(engine={"replicas": 16}, engine_gpus=2, trainer_ranks=8), 40)
    assert (wanted.replicas, wanted.engine_gpus, wanted.ranks, wanted.trainer_gpus, wanted.gpus) == (16, 2, 8, 8, 40)


def test_ranks_that_are_not_named_are_whole_groups_that_share_rows():
    sharing = {"trainer": {"fsdp": True, "context_parallel": 4}}
    assert demand(config(engine={"replicas": 1}, **sharing), 8).ranks == 4
    assert demand(config(engine={"replicas": 5}, trainer_nodes=2, **sharing), 16).ranks == 8
    with pytest.raises(PlacementError, match="context_parallel 4 does not divide the 2 ranks of a machine"):
        demand(config(trainer_ranks=4, trainer_nodes=2, **sharing), 16)


def test_ranks_are_spread_evenly_over_the_nodes_of_a_cluster():
    given = demand(config(engine={"replicas": 8}, trainer_ranks=8, trainer_nodes=2), 16)
    assert (given.ranks, given.trainer_gpus, given.trainer_nodes, given.gpus) == (8, 8, 2, 16)
    chosen = demand(config(engine={"replicas": 5}, trainer_nodes=2), 16)
    assert (chosen.ranks, chosen.replicas) == (10, 5)
    with pytest.raises(PlacementError, match=r"trainer_ranks 3 are not equally many on each of .*trainer_nodes 2"):
        demand(config(trainer_ranks=3, trainer_nodes=2), 16)
    with pytest.raises(PlacementError, match="for a Ray cluster: give --ray"):
        place(config(trainer_ranks=2, trainer_nodes=2), h100s(8))
