"""Speeds of hosts as shares of their GPU's peak, from ``--speed gpu[03-04]=0.8``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import number_of
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.cluster import MAX_SPEED, MIN_SPEED
from pipette_opt.specs.host_names import compress_hosts


def parse_speeds(entries: Sequence[str]) -> dict[str, float]:
    """Return the speed of each named host, a share of its GPU's peak, from entries such as ``gpu[03-04]=0.8``."""
    where, speeds = "--speed", dict[str, float]()
    for entry in entries:
        hosts, sign, text = entry.rpartition("=")
        if not sign or not hosts:
            raise InputError(where, f"must be hosts and their share of the peak, e.g. gpu[03-04]=0.8, got {entry!r}.")
        speed = check_speed(text.strip(), where)
        for host in expand_hosts(hosts, where):
            if speeds.setdefault(host, speed) != speed:
                raise InputError(
                    where, f"gives host {host} two speeds, {speeds[host]:g} and {speed:g}; give each host one speed."
                )
    return speeds


def check_speed(value: object, where: str) -> float:
    """Return a speed as a number. ``InputError`` unless it is from ``MIN_SPEED`` to ``MAX_SPEED``."""
    try:
        speed = number_of(str(value))
    except ValueError:
        speed = float("nan")
    if isinstance(value, bool) or not MIN_SPEED <= speed <= MAX_SPEED:
        limits = f"at least {MIN_SPEED:g} and at most {MAX_SPEED:g} (1: its kind's peak)"
        raise InputError(where, f"a speed must be {limits}, got {value!r}.")
    return speed


def with_speeds(cluster: ClusterSpec, speeds: Mapping[str, float], where: str = "--speed") -> ClusterSpec:
    """Return the cluster with these speeds of hosts. ``InputError`` if the cluster file gives a host another speed."""
    for host in speeds:
        if host not in cluster.hosts:
            hint = did_you_mean(host, cluster.hosts)
            raise InputError(where, f"host {host!r} is not in cluster {cluster.name}.{hint}")
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
    if record is None:
        return {}
    if not isinstance(record, Mapping):
        raise InputError(where, f"must be hosts and their speeds, or null, got {record!r}.")
    return {host: check_speed(speed, where) for hosts, speed in record.items() for host in expand_hosts(hosts, where)}
