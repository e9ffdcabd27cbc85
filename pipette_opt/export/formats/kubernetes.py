"""
Kubernetes: a ConfigMap with torchrun's launch script, and a pod per host that runs the script with its node rank.

A JobSet (jobset.x-k8s.io/v1alpha2) has a replicated job per host, whose node affinity names the host. A PyTorchJob
(kubeflow.org/v1) has a template for the first host and a template for all other hosts, spread by anti-affinity; each
pod finds its node rank from its node's name. Every pod requests all GPUs of its host: a device plug-in that hands out
fewer GPUs chooses them itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export.hosts import hosts_are_named, unnamed_note
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.nodes import NodeShare, node_shares
from pipette_opt.export.shell import MASTER_PORT, comment, quoted
from pipette_opt.export.target import OF_PODS, Target
from pipette_opt.export.torchrun import megatron_launch
from pipette_opt.plans.plan import Plan

HOST_LABEL = "kubernetes.io/hostname"
MAX_LABEL = 63
"""Maximum characters of a label's value (Kubernetes documentation, "Labels and Selectors")."""

Manifest = dict[str, Any]


def export_jobset(plan: Plan, options: ExportOptions) -> dict[str, str]:
    """Return ``jobset.yaml``: the ConfigMap, and the JobSet with a pod per host."""
    shares = _shares(plan)
    # JobSet's DNS names: <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>, the jobset's name by default.
    hosts = _names(shares)
    if hosts:
        master = f"{options.job_name}-{_job_name(0)}-0-0.{options.job_name}"
        pods = [_pod(plan, options, f"NODE_RANK={rank}", master, [host]) for rank, host in enumerate(hosts)]
        jobs = [_replicated_job(_job_name(rank), 1, {"spec": pod}) for rank, pod in enumerate(pods)]
    else:
        master = f"{options.job_name}-node-0-0.{options.job_name}"
        pod = _pod(plan, options, 'NODE_RANK="$JOB_COMPLETION_INDEX"', master, [])
        jobs = [_replicated_job("node", len(shares), _apart(options, pod))]
    job: Manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": options.job_name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        },
    }
    return {"jobset.yaml": _text(plan, "jobset.yaml", [_config_map(plan, options, shares), job])}


def export_pytorchjob(plan: Plan, options: ExportOptions) -> dict[str, str]:
    """Return ``pytorchjob.yaml``: the ConfigMap, and the PyTorchJob with its master on the first host."""
    shares = _shares(plan)
    hosts = _names(shares)
    replicas = {"Master": _replica(plan, options, hosts, 0, 1)}
    if len(shares) > 1:
        replicas["Worker"] = _replica(plan, options, hosts, 1, len(shares))
    job: Manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": options.job_name},
        "spec": {
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": replicas,
        },
    }
    return {"pytorchjob.yaml": _text(plan, "pytorchjob.yaml", [_config_map(plan, options, shares), job])}


def _replicated_job(name: str, pods: int, template: Manifest) -> Manifest:
    """Return a replicated job of a JobSet with ``pods`` pods."""
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    return {"name": name, "replicas": 1, "template": {"spec": {**spec, "template": template}}}


def _replica(plan: Plan, options: ExportOptions, hosts: Sequence[str], start: int, stop: int) -> Manifest:
    """
    Return the replica spec for the hosts with node ranks ``start`` to ``stop - 1``, a pod per host.

    Without host names the node rank is the environment variable ``RANK`` that the controller sets.
    """
    ranks = " ".join(f"[{host}]={rank}" for rank, host in enumerate(hosts))
    find = f'declare -A RANKS=({ranks}); NODE_RANK="${{RANKS[$NODE_NAME]}}"' if hosts else 'NODE_RANK="$RANK"'
    pod = _pod(plan, options, find, f"{options.job_name}-master-0", hosts[start:stop])
    return {"replicas": stop - start, "restartPolicy": "Never", "template": _apart(options, pod)}


def _apart(options: ExportOptions, pod: Manifest) -> Manifest:
    """Return a pod template with anti-affinity, so that no two pods share a host."""
    pod.setdefault("affinity", {})["podAntiAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": options.job_name}}, "topologyKey": HOST_LABEL}
        ]
    }
    return {"metadata": {"labels": {"app": options.job_name}}, "spec": pod}


def _pod(plan: Plan, options: ExportOptions, node_rank: str, master: str, hosts: Sequence[str]) -> Manifest:
    """
    Return the spec of a pod that runs on one of the hosts, or on any host if ``hosts`` is empty.

    The command sets the master address: the PyTorchJob controller appends its own ``MASTER_ADDR`` to the environment,
    and the last entry of a name wins.
    """
    script = f'{node_rank}; MASTER_ADDR={quoted([master])} MASTER_PORT={MASTER_PORT} bash /plan/launch.sh "$NODE_RANK"'
    devices = {"nvidia.com/gpu": str(plan.gpus_per_node)}
    devices |= {name: str(count) for name, count in options.devices.items()}
    rights: Manifest = {}
    if options.rdma_resource:  # needs locked memory
        rights = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    shared: Manifest = {"medium": "Memory"}
    if options.shm_size is not None:
        shared["sizeLimit"] = options.shm_size
    return {
        **_host_access(options),
        "restartPolicy": "Never",
        **(
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _on(hosts)}}}
            if hosts
            else {}
        ),
        "containers": [
            {
                "name": "pytorch",
                "image": options.image,
                "command": ["bash", "-c", script],
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "ports": [{"name": "rendezvous", "containerPort": MASTER_PORT, "protocol": "TCP"}],
                "resources": {"limits": devices},
                **rights,
                "volumeMounts": [{"name": "plan", "mountPath": "/plan"}, {"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [
            {"name": "plan", "configMap": {"name": f"{options.job_name}-plan"}},
            {"name": "shm", "emptyDir": shared},
        ],
    }


def _host_access(options: ExportOptions) -> Manifest:
    """Return the fields for the host's network and IPC namespace; the host's network needs a matching DNS policy."""
    shared: Manifest = {}
    if options.host_network:
        shared |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if options.host_ipc:
        shared["hostIPC"] = True
    return shared


def _on(hosts: Sequence[str]) -> Manifest:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": list(hosts)}]}]}


def _config_map(plan: Plan, options: ExportOptions, shares: Sequence[NodeShare]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{options.job_name}-plan"},
        "data": {"launch.sh": megatron_launch(plan, shares)},
    }


def _shares(plan: Plan) -> list[NodeShare]:
    shares = node_shares(plan, "torchrun, which runs in every pod,")
    for share in shares:
        if share.host is not None and len(share.host) > MAX_LABEL:
            raise InputError(
                "hosts", f"{share.host!r} has more than {MAX_LABEL} characters, the maximum of a Kubernetes node label."
            )
    return shares


def _names(shares: Sequence[NodeShare]) -> list[str]:
    """Return the names of the hosts; empty if the hosts have no names."""
    return [share.host for share in shares if share.host is not None]


def _job_name(rank: int) -> str:
    return f"node-{rank}"


def _text(plan: Plan, name: str, manifests: Sequence[Mapping[str, Any]]) -> str:
    num_hosts = len(plan.placement.nodes_used)
    named = f"Hosts are nodes, by their names and by their label {HOST_LABEL}."
    hosts = named if hosts_are_named(plan) else unnamed_note(num_hosts)
    head = comment(
        f"{plan.config.label()}, global batch {plan.global_batch_size}.  kubectl apply -f {name}\n"
        f"{hosts} A trial run on made-up tokens; for\n"
        "a real one give the arguments of the training script after the node rank in each command, and set PRETRAIN\n"
        "to its path."
    )
    return f"{head}\n{yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=1000)}"


class _Dumper(yaml.SafeDumper):
    """YAML writer that writes scripts as blocks and uses no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return a YAML node for text; text that looks like a number or boolean is quoted, such as the host name 12e4."""
    quotes = "'" if text[:1] in "0123456789.+-" or len(text) == 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else quotes)


_Dumper.add_representer(str, _text_node)


TARGET = Target(export_jobset, "jobset.yaml", takes=OF_PODS, needs_image=True, programs=("k8s", "kubectl", "jobset"))
