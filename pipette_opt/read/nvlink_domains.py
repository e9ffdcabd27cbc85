"""NVLink domains of several hosts, recognised by flows between hosts that are faster than any NIC."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from pipette_opt.base.units import US, counted
from pipette_opt.read.evidence import LinkEvidence
from pipette_opt.read.gpus import CatalogueEntry, UsualHost
from pipette_opt.read.matrices import gb_text
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.levels import Level

ABOVE_CARD = 1.5
"""Factor by which a flow must exceed a NIC's bandwidth to count as NVLink. Chosen."""


def card_bytes_per_s(host: UsualHost) -> float:
    """Return the nominal bandwidth of a flow on a host's usual NICs, bytes/s: a NIC, or a GPU's share of several."""
    return host.nics.nominal_bytes_per_s / min(host.nics.count, host.gpus_per_node)


def nvlink_domains(
    evidence: LinkEvidence, hosts: Sequence[str], kinds: Mapping[str, CatalogueEntry], notes: list[str]
) -> Level | None:
    """
    Return the level of NVLink domains that measurements show; ``None`` if they show none.

    Two hosts are in one domain if their GPUs are sold in such domains and a flow between them is faster than a NIC.
    """
    rates: list[float] = []
    group = np.arange(len(hosts))
    index = {host: row for row, host in enumerate(hosts)}
    for flows in evidence.flows:
        for (sender, receiver), rate in evidence.settled(flows, "worst").items():
            if rate / flows > ABOVE_CARD * _card_between(kinds[sender], kinds[receiver]):
                rates.append(rate / flows)
                group[group == group[index[receiver]]] = group[index[sender]]
    if not rates:
        return None
    _, numbers = np.unique(group, return_inverse=True)
    measured_s = evidence.latency_s or 0.0
    latency_s = measured_s if measured_s > 0 else max(kinds[host].intra_node_latency_s for host in hosts)
    rate = statistics.median(rates)
    members = [np.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]
    named = ", ".join(compress_hosts(tuple(hosts[row] for row in rows.tolist())) for rows in members if len(rows) > 1)
    notes.append(
        f"NVLink domain: {counted(len(rates), 'link')} of {named} carry {gb_text(round(rate, -7))} GB/s a flow, more "
        f"than a card: written as a level that scales up, {latency_s / US:.1f} us, not as a matrix between hosts."
    )
    return Level(name="nvlink-domain", group_of_node=numbers, bytes_per_s=rate, latency_s=latency_s, scale_up=True)


def _card_between(sender: CatalogueEntry, receiver: CatalogueEntry) -> float:
    """Return the NIC bandwidth of a flow between hosts, bytes/s; infinite for GPUs not sold in such domains."""
    if (
        sender.usual_domain is None
        or receiver.usual_domain is None
        or sender.usual_host is None
        or receiver.usual_host is None
    ):
        return float("inf")
    return max(card_bytes_per_s(sender.usual_host), card_bytes_per_s(receiver.usual_host))
