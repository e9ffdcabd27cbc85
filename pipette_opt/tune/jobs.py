"""Jobs of trials: hosts of each of several trials at once, and the fingerprint that tells jobs apart."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.specs import Instance
from pipette_opt.specs.host_names import compress_hosts


def trial_space(instance: Instance, space: SearchSpace, parallel: int) -> SearchSpace:
    """Return the search space of a trial; several at once share the hosts equally if the number of GPUs is open."""
    cluster = instance.cluster
    if parallel == 1 or space.num_gpus is not None:
        return space
    if parallel > cluster.num_nodes:
        raise InputError("--parallel", f"must be at most the {cluster.num_nodes} hosts of the cluster, got {parallel}.")
    return replace(space, num_gpus=cluster.num_nodes // parallel * cluster.gpus_per_node)


def host_groups(instance: Instance, space: SearchSpace, parallel: int) -> list[tuple[str, ...]]:
    """
    Return disjoint groups of hosts, one for each trial at once; all hosts for a single trial.

    Raises
    ------
    InputError
        If the cluster has too few hosts for so many trials at once.
    """
    hosts = instance.cluster.hosts
    if parallel == 1:
        return [hosts]
    size = -(-(trial_space(instance, space, parallel).num_gpus or 0) // instance.cluster.gpus_per_node)
    if parallel * size > len(hosts):
        raise InputError(
            "--parallel",
            f"{parallel} trials of {counted(size, 'host')} need {parallel * size} hosts; the cluster has {len(hosts)}.",
        )
    return [hosts[size * place : size * (place + 1)] for place in range(parallel)]


def on_hosts(instance: Instance, hosts: Sequence[str]) -> Instance:
    """Return the job on some hosts of its cluster."""
    if set(hosts) < set(instance.cluster.hosts):
        return replace(instance, cluster=subset_cluster(instance.cluster, hosts))
    return instance


def inputs_on(instance: Instance, inputs: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, Any]:
    """Return the inputs of a plan on some hosts of the job's cluster."""
    others = [host for host in instance.cluster.hosts if host not in hosts]
    if not others:
        return dict(inputs)
    excluded = [word for word in (inputs.get("exclude_hosts"), compress_hosts(tuple(others))) if word]
    return {**inputs, "exclude_hosts": ",".join(excluded)}


def fingerprint(instance: Instance, space: SearchSpace) -> dict[str, str]:
    """Return a hash of each part of the job, by which the folder of another job is recognised."""
    parts = {
        "model": instance.model,
        "training": instance.training,
        "hosts": (instance.cluster.hosts, [gpu.name for gpu in instance.cluster.gpu_kinds]),
        "launcher": instance.launcher,
        "search space": space,
    }
    return {name: hashlib.sha256(repr(part).encode()).hexdigest()[:16] for name, part in parts.items()}
