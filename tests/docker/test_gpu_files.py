"""What is written for machines and clusters with GPUs, without either: it is what a run starts, and hangs together."""

import json
import re
from pathlib import Path

import pytest
import yaml

from dart_agent.engines.base.engine_kind import Launch
from dart_agent.engines.kinds.vllm_server import VLLMServer
from dart_agent.engines.vllm.vllm_environment import VERSION
from dart_train.config.run_config import RunConfig, load_config
from dart_train.nodes.node_facts import DESKTOPS
from dart_train.placement.gpu_discovery import GPU
from dart_train.placement.placement import place
from tests.helpers.gpus import H100

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.gpu.yaml").read_text())
SERVICES = COMPOSE["services"]
KUBERAY = ROOT / "deploy" / "kuberay"
MANIFESTS = [one for path in sorted(KUBERAY.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())]
PAPER = ROOT / "configs" / "dart_osworld_7b.yaml"


def engine_options() -> list[str]:
    """What a run itself starts vLLM with for the paper's configuration, but for the model and the port."""
    section = load_config(PAPER).rollout.engine
    kind = VLLMServer.parse(section.options)
    launch = Launch("r0", 0, "/m", 0, Path("/s"), images=section.images, gpus=(6,), gpu_memory=0.9)
    argv = list(kind.command(launch).argv)
    del argv[argv.index("--host") : argv.index("--port") + 2]
    return argv[3:]


def without_address(options: list[str]) -> list[str]:
    options = list(options[1:])
    del options[options.index("--host") : options.index("--port") + 2]
    return options


def devices(service: str) -> list[str]:
    (device,) = SERVICES[service]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    return device["device_ids"]


def overrides() -> list[str]:
    command = SERVICES["train"]["command"]
    return [command[index + 1] for index, word in enumerate(command) if word == "--set"]


def train_config() -> RunConfig:
    return load_config(PAPER, overrides())


def test_the_engines_of_the_compose_file_are_started_as_a_run_starts_them():
    for name in ("engine-0", "engine-1"):
        assert without_address(SERVICES[name]["command"]) == engine_options()
    text = (ROOT / "docker" / "engine" / "Dockerfile").read_text()
    command = json.loads(re.search(r"^CMD (\[\"/models.*?\])$", text, re.MULTILINE | re.DOTALL)[1].replace("\\\n", ""))
    assert [
        *without_address(command),
        "--tensor-parallel-size",
        "1",
        "--gpu-memory-utilization",
        "0.9",
    ] == engine_options()
    assert f"ARG VLLM=vllm=={VERSION}\n" in text


def test_each_gpu_of_the_machine_belongs_to_one_service():
    given = [gpu for service in SERVICES if "deploy" in SERVICES[service] for gpu in devices(service)]
    assert sorted(given) == [str(index) for index in range(8)]


def test_the_trainer_of_the_compose_file_finds_the_others_and_fills_its_gpus():
    config = train_config()
    hosts = re.findall(r"//([\w-]+):", " ".join([*config.rollout.engine.urls, str(config.cluster.url)]))
    assert hosts == ["engine-0", "engine-1", "env"] and set(hosts) | {"mysql"} == set(SERVICES["train"]["depends_on"])
    placement = place(config, [GPU(index, *H100) for index in range(len(devices("train")))])
    assert placement.trainer == tuple(range(6)) and placement.sentence.startswith("engines run elsewhere")
    environment = SERVICES["train"]["environment"]
    assert {config.cluster.token_env, config.data.url_env} <= environment.keys()
    shared = [volume.split(":")[0] for name in ("engine-0", "train") for volume in SERVICES[name]["volumes"]]
    assert shared.count("runs") == 2, "versions are read where they are written"


def test_engines_are_reached_by_the_trainer_alone_and_nothing_beyond_loopback():
    assert COMPOSE["networks"]["engines"] == {"internal": True}
    on = {name: service.get("networks", []) for name, service in SERVICES.items()}
    assert {name for name, networks in on.items() if "engines" in networks} == {"engine-0", "engine-1", "train"}
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert "extends" in service or "no-new-privileges" in service["security_opt"]
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in COMPOSE["volumes"] or volume.startswith("${")


def test_what_is_extended_is_there():
    for service in SERVICES.values():
        if "extends" in service:
            other = yaml.safe_load((ROOT / "docker" / service["extends"]["file"]).read_text())
            assert service["extends"]["service"] in other["services"]
            assert set(other["volumes"]) <= set(COMPOSE["volumes"])


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_manifest_is_one_of_kubernetes(manifest):
    kinds = {
        "Service": "v1", "PersistentVolumeClaim": "v1", "StatefulSet": "apps/v1", "RayCluster": "ray.io/v1",
    }  # fmt: skip
    assert kinds[manifest["kind"]] == manifest["apiVersion"] and manifest["spec"]
    if manifest["kind"] == "StatefulSet":
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"] == labels
        services = [one for one in MANIFESTS if one["kind"] == "Service"]
        (service,) = [one for one in services if one["metadata"]["name"] == manifest["spec"]["serviceName"]]
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        ports = {port["containerPort"] for port in container["ports"]}
        assert service["spec"]["selector"] == labels and {port["port"] for port in service["spec"]["ports"]} == ports
    for pod in pods(manifest):
        claims = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", ())}
        volumes = claims | {volume["name"] for volume in pod.get("volumes", ())}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
            assert container["name"] in ("bucket", "engines") or container["resources"]["limits"]["memory"]


def pods(manifest: dict) -> list[dict]:
    spec = manifest["spec"]
    if manifest["kind"] == "RayCluster":
        return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    return [spec["template"]["spec"]] if "template" in spec else []


def test_the_ray_cluster_has_nodes_for_each_part_of_a_run():
    (cluster,) = [one for one in MANIFESTS if one["kind"] == "RayCluster"]
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    offered = json.loads(json.loads(groups["desktops"]["rayStartParams"]["resources"]))
    assert offered[DESKTOPS] > 0 and groups["desktops"]["minReplicas"] == groups["desktops"]["maxReplicas"]
    assert cluster["spec"]["enableInTreeAutoscaling"] and groups["gpus"]["minReplicas"] == 0
    (worker,) = groups["gpus"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "8"
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    names = {one["name"] for one in head["env"]}
    assert {"AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"} <= names and head["envFrom"] == [
        {"secretRef": {"name": "dart-stores"}}
    ]
    config = load_config(ROOT / "configs" / "quickstart_ray.yaml")
    created = (KUBERAY / "stores.yaml").read_text()
    assert f"--from-literal={config.data.url_env}=" in created, "the secret has what the configuration names"
    assert config.data.files.startswith("s3://dart/") or config.data.files == "s3://dart", "the bucket that is made"
