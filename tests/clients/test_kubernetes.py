"""Published schemas accept our manifests: Kubernetes', JobSet's and the training operator's."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import BARE, ask
from factories import make_plan

from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.targets import export
from pipette_opt.plans.plan import rank_rows

CORE = """
import json
import kubernetes_validate
for manifest in json.load(open("manifests.json")):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
print(json.dumps(kubernetes_validate.latest_version()))
"""
JOBSET = """
import json
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
manifest = json.load(open("manifests.json"))
print(json.dumps(JobsetV1alpha2JobSet.from_dict(manifest).to_dict()))
"""
PYTORCHJOB = f"""{BARE}
import importlib, json, re
for name in ("kubeflow", "kubeflow.training", "kubeflow.training.models"):
    bare(name)

def model(name):
    file = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().replace("v1_", "v1_")
    for candidate in (file, file.replace("py_torch", "py_torch")):
        return getattr(importlib.import_module(f"kubeflow.training.models.{{candidate}}"), name)

def check(name, entries):
    kind = model(name)
    known = {{json_name: attribute for attribute, json_name in kind.attribute_map.items()}}
    unknown = set(entries) - set(known)
    assert not unknown, (name, unknown)
    kind(**{{known[key]: value for key, value in entries.items()}})
    for key, value in entries.items():
        wanted = kind.openapi_types[known[key]]
        inner = re.fullmatch(r"dict\\(str, (Kubeflow\\w+)\\)", wanted)
        if inner:
            for one in value.values():
                check(inner[1], one)
        elif wanted.startswith("Kubeflow"):
            check(wanted, value)
        elif wanted in ("int", "str"):
            assert type(value).__name__ == wanted, (name, key, value)

check("KubeflowOrgV1PyTorchJob", json.load(open("manifests.json")))
print("true")
"""


def manifests(target: str, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the job."""
    (text,) = export(make_plan(), target, ExportOptions(image="registry.example/pretrain:1", **options)).values()
    first, second = yaml.safe_load_all(text)
    return first, second


def pods(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Pod templates of a job."""
    spec = job["spec"]
    for one in spec.get("replicatedJobs", ()):
        yield one["template"]["spec"]["template"]
    for one in spec.get("pytorchReplicaSpecs", {}).values():
        yield one["template"]


def question(tmp_path: Path, code: str, content: object) -> Any:
    """Ask about manifests."""
    (tmp_path / "manifests.json").write_text(json.dumps(content))
    return ask(code, tmp_path)


FULL = {
    "job_name": "llama",
    "rdma_resource": ["rdma/hca_shared_devices_a=8"],
    "host_network": True,
    "host_ipc": True,
    "shm_size": "64Gi",
}
"""Every option of a pod."""


@pytest.mark.client("kubernetes_validate")
@pytest.mark.parametrize("options", [{}, FULL])
@pytest.mark.parametrize("target", ["kubernetes", "pytorchjob"])
def test_core_schemas(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    """ConfigMap, Jobs and Pods, strictly: no field that Kubernetes does not know."""
    config_map, job = manifests(target, **options)
    parts = [config_map]
    for number, template in enumerate(pods(job)):
        metadata = {**template.get("metadata", {}), "name": f"pod-{number}"}
        parts.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    for one in job["spec"].get("replicatedJobs", ()):
        parts.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": one["name"]}, **one["template"]})
    assert len(parts) == (9 if target == "kubernetes" else 3)
    question(tmp_path, CORE, parts)
    parts[1]["spec"]["nodeAffinity"] = {}
    with pytest.raises(AssertionError, match="nodeAffinity"):
        question(tmp_path, CORE, parts)


@pytest.mark.client("kubeflow_trainer_api")
def test_jobset_schema(tmp_path: Path) -> None:
    """The published model reads it and writes the same back: nothing unknown, nothing of another type."""
    for options in (FULL, {}):
        _, job = manifests("kubernetes", **options)
        assert question(tmp_path, JOBSET, job) == job
    job["spec"]["network"]["enableDNS"] = True
    assert question(tmp_path, JOBSET, job) != job


@pytest.mark.client("kubeflow")
def test_pytorchjob_schema(tmp_path: Path) -> None:
    """Every field is one of the training operator's, of its type; required ones are there."""
    _, job = manifests("pytorchjob")
    question(tmp_path, PYTORCHJOB, job)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = 3
    with pytest.raises(AssertionError, match="replica"):
        question(tmp_path, PYTORCHJOB, job)


def test_pods_know_their_host() -> None:
    """One pod for each host, by affinity; the rank of its node is the host's place in rank order."""
    hosts = list(dict.fromkeys(row.host for row in rank_rows(make_plan())))
    _, jobset = manifests("kubernetes")
    for rank, (host, pod) in enumerate(zip(hosts, pods(jobset), strict=True)):
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == [host]
        assert pod["spec"]["containers"][0]["command"][2].startswith(f"NODE_RANK={rank}; ")
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    _, job = manifests("pytorchjob")
    assert [one["replicas"] for one in job["spec"]["pytorchReplicaSpecs"].values()] == [1, 3]
    for pod, wanted in zip(pods(job), (hosts[:1], hosts[1:]), strict=True):
        affinity = pod["spec"]["affinity"]
        terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["values"] == wanted
        assert affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"]
        assert "[n3]=0 [n0]=1 [n4]=2 [n1]=3" in pod["spec"]["containers"][0]["command"][2]


def test_config_map_has_torchruns_script() -> None:
    """Byte for byte what the torchrun export writes."""
    config_map, _ = manifests("kubernetes")
    assert config_map["data"]["launch.sh"] == export(make_plan(), "torchrun")["launch.sh"]


SHIM = f"""#!{sys.executable}
import os, sys
print(sys.argv[sys.argv.index("--node-rank") + 1], os.environ["MASTER_ADDR"])
"""


@pytest.mark.parametrize(
    ("target", "master"), [("kubernetes", "pretrain-node-0-0-0.pretrain"), ("pytorchjob", "pretrain-master-0")]
)
def test_pods_start_their_node(target: str, master: str, tmp_path: Path) -> None:
    """Each pod's command, run on each host that it may land on, under a stand-in for torchrun."""
    hosts = list(dict.fromkeys(row.host for row in rank_rows(make_plan())))
    config_map, job = manifests(target)
    (tmp_path / "launch.sh").write_text(config_map["data"]["launch.sh"])
    (tmp_path / "torchrun").write_text(SHIM)
    (tmp_path / "torchrun").chmod(stat.S_IRWXU)
    started = []
    for pod in pods(job):
        (container,) = pod["spec"]["containers"]
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        for host in term["matchExpressions"][0]["values"]:
            done = subprocess.run(
                [word.replace("/plan/", f"{tmp_path}/") for word in container["command"]],
                env={
                    "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                    "NODE_NAME": host,
                    "MASTER_ADDR": "what the controller sets",
                },
                capture_output=True,
                text=True,
                check=True,
            )
            started.append((host, *done.stdout.split()))
    assert started == [(host, str(rank), master) for rank, host in enumerate(hosts)]


def test_a_pod_on_another_node_starts_nothing(tmp_path: Path) -> None:
    """A node whose name is not in the plan has no rank."""
    config_map, job = manifests("pytorchjob")
    (tmp_path / "launch.sh").write_text(config_map["data"]["launch.sh"])
    (container,) = next(pods(job))["spec"]["containers"]
    done = subprocess.run(
        [word.replace("/plan/", f"{tmp_path}/") for word in container["command"]],
        env={"PATH": os.environ["PATH"], "NODE_NAME": "elsewhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "the rank of this node is missing" in done.stderr
