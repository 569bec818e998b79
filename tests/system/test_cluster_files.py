"""What lies in `cluster/` for other launchers: KubeRay's manifests, Ray's launcher, and the image."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed import nodes
from tests.support.tiny import ROOT

FILES = ROOT / "cluster"
SCHEMA = json.loads((ROOT / "tests" / "data" / "kuberay.json").read_text())
MANIFESTS = ("raycluster", "rayjob")
LAUNCHED = ("ray-up", "ray-up-aws")


def manifest(name: str) -> Any:
    return yaml.safe_load((FILES / f"{name}.yaml").read_text())


def spec(name: str) -> Any:
    """A manifest's cluster."""
    tree = manifest(name)["spec"]
    return tree.get("rayClusterSpec", tree)


def pods(name: str) -> list[Any]:
    groups = [spec(name)["headGroupSpec"], *spec(name)["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


# Kubernetes


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_says_what_kuberay_knows(name: str) -> None:
    jsonschema.validate(manifest(name), SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "authOption"), {"mode": "token"}),
        (("spec", "authOptions", "mode"), "tokens"),
        (("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "workerGroupSpecs", 0, "replicas"), "2"),
        (("spec", "autoscalerOptions", "version"), "v3"),
        (("spec", "autoscalerOptions", "idleSeconds"), 60),
        (("spec", "workerGroupSpecs", 0, "template", "spec", "tolerations", 0, "effect"), "NoSchedul"),
        (("spec", "workerGroupSpecs", 0, "template", "spec", "containers", 0, "volumeMount"), []),
    ],
)
def test_a_manifest_with_a_mistake_would_be_found(path: tuple[Any, ...], value: Any) -> None:
    tree = node = manifest("raycluster")
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tree, SCHEMA)


def test_a_job_has_the_cluster_that_stands_alone() -> None:
    assert spec("rayjob") == spec("raycluster")


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_agrees_with_the_lock_and_the_profile(name: str) -> None:
    tree, profile = spec(name), clusters.read_cluster(FILES / "nodes.yaml")
    assert tree["rayVersion"] == nodes.installed_versions()["ray"]
    gpus = groups(name)["gpus"]
    (container,) = gpus["template"]["spec"]["containers"]
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) * gpus["maxReplicas"] == profile.train.workers


def groups(name: str) -> dict[str, Any]:
    """The groups of workers, by name."""
    return {group["groupName"]: group for group in spec(name)["workerGroupSpecs"]}


@pytest.mark.parametrize("name", MANIFESTS)
def test_workers_come_when_a_step_needs_them_and_may_be_spot_machines(name: str) -> None:
    """Steps without GPUs have pods that cannot be placed on machines with GPUs."""
    assert spec(name)["enableInTreeAutoscaling"] is True
    assert spec(name)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert groups(name).keys() == {"cpus", "gpus"}
    for kind, group in groups(name).items():
        assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]
        pod = group["template"]["spec"]
        assert pod["restartPolicy"] == "Never"  # the autoscaler, in version 2, replaces pods itself
        (container,) = pod["containers"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (kind == "gpus")
        keys = {toleration["key"] for toleration in pod["tolerations"]}
        assert keys >= {"spot", "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"}
        assert ("nvidia.com/gpu" in keys) == (kind == "gpus")


@pytest.mark.parametrize("name", MANIFESTS)
def test_only_the_autoscaler_has_an_account(name: str) -> None:
    """A step's code on the head cannot ask Kubernetes for anything."""
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    options = spec(name)["autoscalerOptions"]
    assert [mount["mountPath"] for mount in options["volumeMounts"]] == [place]
    assert options["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    head, *workers = pods(name)
    (volume,) = [volume for volume in head["volumes"] if volume["name"] == options["volumeMounts"][0]["name"]]
    sources = {key for source in volume["projected"]["sources"] for key in source}
    assert sources == {"serviceAccountToken", "configMap", "downwardAPI"}
    assert all(place != mount["mountPath"] for mount in head["containers"][0]["volumeMounts"])
    assert all("projected" not in volume for pod in workers for volume in pod["volumes"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_ask_for_a_token_and_have_no_rights(name: str) -> None:
    assert spec(name)["authOptions"] == {"mode": "token"}
    assert spec(name)["headGroupSpec"]["serviceType"] == "ClusterIP"  # nobody outside the cluster reaches it
    for pod in pods(name):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {mount["name"] for mount in container["volumeMounts"]} <= {
                volume["name"] for volume in pod["volumes"]
            }
            mounted = tuple(mount["mountPath"] + "/" for mount in container["volumeMounts"])
            assert all(variable["value"].startswith(mounted) for variable in container["env"])


def test_the_job_is_a_run_of_a_config_that_is_there() -> None:
    """All of it is the job: KubeRay's pod has a shell that reads the entrypoint behind `ray job submit ... --`."""
    words = shlex.split(submitted_line().partition(";")[0])
    assert words[:3] == ["cd", "/sparring", "&&"]
    assert "WORKDIR /sparring\n" in (FILES / "Dockerfile").read_text()
    from sparring.workflows.command_line import parser
    from sparring.workflows.experiments import loading

    arguments = parser().parse_args(words[words.index("workflows") + 1 :])
    assert arguments.command == "run"
    assert Path(arguments.store).is_absolute()
    assert arguments.runs.is_absolute()
    loading.read(ROOT / arguments.configs[0], [], arguments.runs)
    assert clusters.read_cluster(ROOT / arguments.cluster).address == "auto"


def submitted_line() -> str:
    """The line that the job gives to its shell."""
    shell = f"ray() {{ printf '%s\\n' \"$@\"; }}; ray job submit -- {manifest('rayjob')['spec']['entrypoint']} ;"
    submitted = subprocess.run(["bash", "-ce", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert submitted[:5] == ["job", "submit", "--", "sh", "-c"]
    (line,) = submitted[5:]
    return line


@pytest.mark.parametrize(("status", "ends", "said"), [(0, 0, ""), (1, 1, ""), (2, 0, "NOT DONE: "), (137, 137, "")])
def test_kuberay_repeats_no_mistake(status: int, ends: int, said: str) -> None:
    """A mistake, and nothing else, ends the job as a success, with a last line that says that it is none."""
    command, _, rest = submitted_line().partition(";")
    assert "python" in command
    done = subprocess.run(["sh", "-c", f"(exit {status});{rest}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:10]) == (ends, said)


# Ray's launcher


def launched(name: str) -> Any:
    return yaml.safe_load((FILES / f"{name}.yaml").read_text())


@pytest.mark.parametrize("name", LAUNCHED)
def test_rays_launcher_takes_its_file(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    tree = launched(name)
    schema = json.loads((Path(sys.modules["ray.autoscaler"].__path__[0]) / "ray-schema.json").read_text())
    jsonschema.validate(tree, schema)
    validate_config(prepare_config(tree))
    for source in tree["file_mounts"].values():
        assert source.startswith("~") or (ROOT / source).exists()


def test_rays_launcher_starts_all_machines_that_it_knows() -> None:
    tree = launched("ray-up")
    assert tree["max_workers"] == len(tree["provider"]["worker_ips"])


def test_rays_launcher_starts_spot_machines_when_a_step_needs_them() -> None:
    tree, profile = launched("ray-up-aws"), clusters.read_cluster(FILES / "nodes.yaml")
    head, *workers = (tree["available_node_types"][name] for name in ("head", "cpus", "gpus"))
    assert head["resources"]["CPU"] == 0
    assert "InstanceMarketOptions" not in head["node_config"]
    for group in workers:
        assert group["min_workers"] == 0
        assert group["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert tree["max_workers"] == sum(group["max_workers"] for group in workers)
    assert workers[1]["resources"]["GPU"] * workers[1]["max_workers"] == profile.train.workers


@pytest.mark.parametrize("name", LAUNCHED)
def test_rays_launcher_starts_it_with_a_token_and_on_loopback(name: str) -> None:
    tree = launched(name)
    starts = [
        command
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for command in tree[key]
        if "ray start" in command
    ]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]


# The image


def instructions() -> list[str]:
    """The image's instructions, each on one line."""
    text = (FILES / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [line for line in re.sub(r"\\\n\s*", "", lines).splitlines() if line]


def test_the_image_is_of_the_locks_python() -> None:
    assert instructions()[0].startswith("FROM python:3.11-")
    assert instructions()[-1] == "USER 1000:1000"
    assert pods("raycluster")[0]["securityContext"]["runAsUser"] == 1000


def test_the_image_has_a_compiler_for_the_code_that_starts_kernels() -> None:
    """Triton calls it where `compile: auto` compiles the layers."""
    (line,) = [line for line in instructions() if "apt-get install" in line]
    assert {"gcc", "libc6-dev"} <= set(line.split())


def test_the_image_gets_the_code_and_nothing_else() -> None:
    from sparring.workflows.distributed.job_package import CODE

    copied = [line.split()[1] for line in instructions() if line.startswith("COPY")]
    assert sorted(copied) == sorted([*CODE, "sparring"])
    ignored = (FILES / "Dockerfile.dockerignore").read_text().splitlines()
    assert [line for line in ignored if not line.startswith("#")] == [
        "*",
        *(f"!{name}" for name in (*CODE, "sparring")),
        "**/__pycache__",
    ]


def test_the_image_pleases_the_linter() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert linter, "hadolint comes with the development packages: make setup"
    done = subprocess.run(
        [linter, "--no-color", str(FILES / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.install
@pytest.mark.timeout(1800)
def test_the_images_packages_install_in_a_clean_environment(tmp_path: Path) -> None:
    """Its own install line, with whatever index pip finds: for a CPU here or CUDA there, the same lock."""
    (line,) = [line.removeprefix("RUN ") for line in instructions() if "environment.py" in line]
    for name in ("cluster", "workflows", "components", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run(["sh", "-euc", line], cwd=tmp_path, env={**environment, "TORCH_WHEELS": ""}, check=True)
    shutil.copytree(ROOT / "sparring", tmp_path / "sparring", symlinks=True)
    (site,) = (tmp_path / ".venv" / "lib").glob("python*/site-packages")
    versions = {
        re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower(): package.version.partition("+")[0]
        for package in metadata.distributions(path=[str(site)])
    }
    locked = {name: line.split("==")[1].split(" ")[0] for name, line in nodes.locked().items()}
    assert {name: locked[name] for name in versions if name in locked}.items() <= versions.items()
    checks = ["-m", "workflows", "plan", "configs/demo.yaml"]
    subprocess.run([tmp_path / ".venv" / "bin" / "python", *checks], cwd=tmp_path, env=environment, check=True)
