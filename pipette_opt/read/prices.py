"""Prices of GPU-hours from ``--gpu-price 2.5`` or ``--gpu-price gpu[03-04]=1.2``, in place of cluster files'."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import number_of
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.specs import ClusterSpec

MAX_PRICE = 1e6
"""Largest valid price of a GPU-hour, in any currency. Chosen to catch typing errors."""


def parse_prices(entries: Sequence[str], hosts: Sequence[str]) -> dict[str, float]:
    """
    Return the price of a GPU-hour by host; an entry without hosts is for all other hosts.

    ``InputError`` for an invalid price, an unknown host, or a host with two prices.
    """
    where, prices = "--gpu-price", dict[str, float]()
    for_all: list[float] = []
    for entry in entries:
        named, _, text = entry.rpartition("=")
        price = check_price(text.strip(), where)
        if not named:
            for_all.append(price)
            continue
        for host in expand_hosts(named, where):
            if host not in hosts:
                raise InputError(
                    where, f"host {host!r} is not among the hosts of the cluster.{did_you_mean(host, hosts)}"
                )
            if prices.setdefault(host, price) != price:
                raise InputError(
                    where, f"gives host {host} two prices, {prices[host]:g} and {price:g}; give each host one price."
                )
    if len(set(for_all)) > 1:
        raise InputError(where, f"gives all hosts two prices, {for_all[0]:g} and {for_all[1]:g}; give only one.")
    return {host: prices.get(host, *for_all[:1]) for host in hosts if host in prices or for_all}


def check_price(value: object, where: str) -> float:
    """Return a price as a number. ``InputError`` unless it is above 0 and at most ``MAX_PRICE``."""
    try:
        price = number_of(str(value))
    except ValueError:
        price = float("nan")
    if isinstance(value, bool) or not 0 < price <= MAX_PRICE:
        raise InputError(where, f"a price of a GPU-hour must be > 0 and at most {MAX_PRICE:g}, got {value!r}.")
    return price


def with_prices(cluster: ClusterSpec, prices: Mapping[str, float]) -> ClusterSpec:
    """Return the cluster with these prices of hosts, which override the prices in its file."""
    if not prices:
        return cluster
    nodes = (replace(node, price_per_gpu_hour=prices.get(node.host, node.price_per_gpu_hour)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def recorded_prices(record: object, where: str) -> dict[str, float]:
    """Return the price of each host that a plan records."""
    if record is None:
        return {}
    if not isinstance(record, Mapping):
        raise InputError(where, f"must be hosts and their prices, or null, got {record!r}.")
    return {host: check_price(price, where) for hosts, price in record.items() for host in expand_hosts(hosts, where)}
