"""Jobs of trials: hosts of each of several trials at once, and the fingerprint that tells jobs apart."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.legality import check_legal
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.specs import Instance
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.tune.folder import TrialRecord

SAME_PEAK = 0.99
"""Least ratio of a recorded time to the time at the GPUs' peak; rounding stays above it. Chosen."""


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


def least_time_s(instance: Instance, num_gpus: int) -> float:
    """Return the seconds that the model's FLOPs of an iteration take at the peak of the job's fastest GPUs."""
    training = instance.training
    precision = training.precision if training.recipe is None else training.recipe.peak
    peak = max(gpu.peak_flops.get(precision, inf) for gpu in instance.cluster.gpu_kinds)
    return training.tokens * instance.model.flops_per_token(training.attended_length) / (num_gpus * peak)


def check_record(instance: Instance, record: TrialRecord, where: str) -> None:
    """Raise ``InputError`` for a trial's record that cannot be of this job, whoever wrote it."""
    hosts, config = set(record.hosts), record.config
    if not hosts or len(hosts) < len(record.hosts) or not hosts <= set(instance.cluster.hosts):
        raise InputError(where, f"hosts must be different hosts of the job's cluster, got {shown(record.hosts)}.")
    if config.world_size > len(hosts) * instance.cluster.gpus_per_node:
        gpus = f"the GPUs of {counted(len(hosts), 'host')}"
        raise InputError(where, f"config must have at most as many ranks as {gpus}, got {config.world_size}.")
    if broken := check_legal(instance.model, instance.training, config):
        raise InputError(where, f"config is not legal for this job: {broken[0]}.")
    least_s = least_time_s(instance, config.world_size)
    for name, time_s in (("predicted_s", record.predicted_s), ("time_s", record.time_s)):
        if time_s is not None and time_s < SAME_PEAK * least_s:
            raise InputError(where, f"{name} must be at least {least_s:.3g}, as the GPUs' peak allows, got {time_s:g}.")
    largest = max(gpu.memory_bytes for gpu in instance.cluster.gpu_kinds)
    if record.peak_bytes is not None and record.peak_bytes > largest:
        raise InputError(where, f"peak_bytes must be at most the GPUs' {largest:g}, got {record.peak_bytes:g}.")


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
