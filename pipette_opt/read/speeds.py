"""Speeds of hosts as shares of their GPU's peak, from ``--speed gpu[03-04]=0.8``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import number_in
from pipette_opt.read.hosts import check_known, expand_hosts, recorded_values, values_by_name
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.cluster import MAX_SPEED, MIN_SPEED
from pipette_opt.specs.host_names import compress_hosts


def parse_speeds(entries: Sequence[str]) -> dict[str, float]:
    """Return the speed of each named host, a share of its GPU's peak, from entries such as ``gpu[03-04]=0.8``."""
    where = "--speed"
    for entry in entries:
        if not entry.rpartition("=")[0]:
            raise InputError(where, f"must be hosts and their share of the peak, e.g. gpu[03-04]=0.8, got {entry!r}.")
    return values_by_name(entries, where, "speed", check_speed, lambda named: expand_hosts(named, where))


def check_speed(value: object, where: str) -> float:
    """Return a speed as a number. ``InputError`` unless it is from ``MIN_SPEED`` to ``MAX_SPEED``."""
    must = f"a speed must be at least {MIN_SPEED:g} and at most {MAX_SPEED:g} (1: its kind's peak)"
    return number_in(value, where, must, MIN_SPEED, MAX_SPEED)


def with_speeds(cluster: ClusterSpec, speeds: Mapping[str, float], where: str = "--speed") -> ClusterSpec:
    """Return the cluster with these speeds of hosts. ``InputError`` if the cluster file gives a host another speed."""
    check_known(speeds, cluster.hosts, where, f"in cluster {cluster.name}")
    nodes = []
    for node in cluster.nodes:
        speed = speeds.get(node.host, node.gpu.speed)
        if node.gpu.speed not in (1.0, speed):
            problem = (
                f"host {node.host} has speed {speed:g} here and {node.gpu.speed:g} in its cluster file; "
                "remove one of the two."
            )
            raise InputError(where, problem)
        nodes.append(replace(node, gpu=node.gpu.at_speed(speed)))
    return replace(cluster, nodes=tuple(nodes))


def speed_record(speeds: Mapping[str, float]) -> dict[str, float] | None:
    """Return the record of speeds for ``plan.json``: by host range such as ``gpu[03-04]``; ``None`` without."""
    return folded_by_value(speeds) or None


def folded_by_value(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values by host range: hosts of equal value share a key such as ``gpu[03-04]``."""
    return {
        compress_hosts(tuple(host for host, its in values.items() if its == value)): value
        for value in dict.fromkeys(values.values())
    }


def recorded_speeds(record: object, where: str) -> dict[str, float]:
    """Return the speed of each host that a plan records."""
    return recorded_values(record, where, "speed", check_speed)
