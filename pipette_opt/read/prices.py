"""Prices of GPU-hours from ``--gpu-price``, in place of those in cluster files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import number_of
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.gpus import read_gpu_catalogue, read_gpu_entry
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.specs import ClusterSpec

WHERE = "--gpu-price"
"""Option that errors name."""

MAX_PRICE = 1e6
"""Largest valid price of a GPU-hour, in any currency. Chosen to catch typing errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a GPU-hour: of hosts of a cluster, and of GPU types by their name, in the cluster or not."""

    of_hosts: Mapping[str, float]
    of_kinds: Mapping[str, float]


def parse_prices(entries: Sequence[str], cluster: ClusterSpec) -> Prices:
    """
    Return the prices in entries such as ``2.5``, ``gpu[03-04]=1.2`` or ``h100=2.9``.

    An entry of hosts counts before one of a GPU type, and this before one for all. ``InputError`` for an invalid price,
    an unknown host, or two prices for the same.
    """
    names = {alias: kind for kind, entry in read_gpu_catalogue().items() for alias in (kind, *entry.aliases)}
    for_all: dict[str, float] = {}
    kinds: dict[str, float] = {}
    hosts: dict[str, float] = {}
    for entry in entries:
        named, _, text = (part.strip() for part in entry.rpartition("="))
        price = check_price(text, WHERE)
        if not named:
            _set(for_all, "all hosts", price)
        elif named in names:
            _set(kinds, read_gpu_entry(named, WHERE).gpu.name, price)
        else:
            for host in expand_hosts(named, WHERE):
                if host not in cluster.hosts:
                    near = did_you_mean(host, (*cluster.hosts, *names))
                    raise InputError(WHERE, f"host {host!r} is not among the hosts of the cluster.{near}")
                _set(hosts, host, price)
    usual = for_all.get("all hosts")
    found = {node.host: hosts.get(node.host, kinds.get(node.gpu.kind, usual)) for node in cluster.nodes}
    of_hosts = {host: price for host, price in found.items() if price is not None}
    return Prices(of_hosts=of_hosts, of_kinds=kinds)


def _set(prices: dict[str, float], name: str, price: float) -> None:
    if prices.setdefault(name, price) != price:
        raise InputError(WHERE, f"gives {name} two prices, {prices[name]:g} and {price:g}; give only one.")


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
