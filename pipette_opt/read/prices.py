"""Prices of GPU-hours from ``--gpu-price``, in place of those in cluster files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipette_opt.base.units import ABOVE_ZERO, number_in
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.read.hosts import check_known, expand_hosts, recorded_values, values_by_name
from pipette_opt.specs import ClusterSpec

WHERE = "--gpu-price"
"""Option that errors name."""

MAX_PRICE = 1e6
"""Largest valid price of a GPU-hour, in any currency. Chosen to catch typing errors."""

ALL = "all hosts"
"""Name of a price that is given without hosts."""


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
    kinds = {alias: kind for kind, entry in read_gpu_catalogue().items() for alias in (kind, *entry.aliases)}

    def named(text: str) -> Sequence[str]:
        if not text or text in kinds:
            return [kinds[text] if text else ALL]
        hosts = expand_hosts(text, WHERE)
        check_known(hosts, cluster.hosts, WHERE, "among the hosts of the cluster", near=(*cluster.hosts, *kinds))
        return hosts

    given = values_by_name(entries, WHERE, "price", check_price, named)
    found = {node.host: given.get(node.host, given.get(node.gpu.kind, given.get(ALL))) for node in cluster.nodes}
    return Prices(
        of_hosts={host: price for host, price in found.items() if price is not None},
        of_kinds={kind: given[kind] for kind in dict.fromkeys(kinds.values()) if kind in given},
    )


def check_price(value: object, where: str) -> float:
    """Return a price as a number. ``InputError`` unless it is above 0 and at most ``MAX_PRICE``."""
    must = f"a price of a GPU-hour must be > 0 and at most {MAX_PRICE:g}"
    return number_in(value, where, must, ABOVE_ZERO, MAX_PRICE)


def with_prices(cluster: ClusterSpec, prices: Mapping[str, float]) -> ClusterSpec:
    """Return the cluster with these prices of hosts, which override the prices in its file."""
    if not prices:
        return cluster
    nodes = (replace(node, price_per_gpu_hour=prices.get(node.host, node.price_per_gpu_hour)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


def recorded_prices(record: object, where: str) -> dict[str, float]:
    """Return the price of each host that a plan records."""
    return recorded_values(record, where, "price", check_price)
