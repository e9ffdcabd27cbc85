"""Prices of GPU-hours by GPU type and by host."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipette_opt.specs import Instance


def priced(instance: "Instance", entries: "Sequence[str]") -> "tuple[Instance, dict[str, float]]":
    """Return the job with prices of its hosts, and the prices by GPU type, from entries of ``--gpu-price``."""
    from pipette_opt.read.gpus import read_gpu_catalogue, read_gpu_entry
    from pipette_opt.read.prices import check_price, parse_prices, with_prices

    names = {alias: kind for kind, entry in read_gpu_catalogue().items() for alias in (kind, *entry.aliases)}
    kinds: dict[str, float] = {}
    of_hosts = []
    for entry in entries:
        name, _, text = entry.rpartition("=")
        if name.strip() in names:
            kinds[read_gpu_entry(name.strip(), "--gpu-price").gpu.name] = check_price(text.strip(), "--gpu-price")
        else:
            of_hosts.append(entry)
    cluster = instance.cluster
    by_kind = {node.host: kinds[node.gpu.kind] for node in cluster.nodes if node.gpu.kind in kinds}
    given = by_kind | parse_prices(of_hosts, cluster.hosts)
    return replace(instance, cluster=with_prices(cluster, given)), kinds
