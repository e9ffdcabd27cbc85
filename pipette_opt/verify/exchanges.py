"""Hosts of the plan exchanged for others: what refutes a bound without a search where placements are too many."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from pipette_opt.parallel import Placement
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.verify.common import on_cluster
from pipette_opt.verify.space import Searched

MAX_EXCHANGES = 1000
"""Exchanges that are simulated, those for unused hosts first; about a second for a hundred hosts. Chosen."""


def no_exchange_is_faster(searched: Searched, plan: Plan) -> Iterator[str]:
    """No host of the plan, exchanged for another of its kind, makes the plan faster than the certificate's bound."""
    if plan.config not in searched.bounded.open_configs:
        return  # all of its placements are bounded
    placement, hosts = on_cluster(searched.instance, plan), searched.instance.cluster.hosts
    pairs = list(islice(_pairs(searched.instance, placement), MAX_EXCHANGES))
    if not pairs:
        return
    times = estimate_many(searched.instance, [(plan.config, _exchanged(placement, *pair)) for pair in pairs])
    best = int(times.argmin())
    if times[best] < searched.claimed_s:
        one, other = (hosts[node] for node in pairs[best])
        yield (
            f"lower_bound_s is {plan.certificate.lower_bound_s}, with {one} and {other} exchanged the plan takes "
            f"{times[best]} s"
        )


def _pairs(instance: Instance, placement: Placement) -> Iterator[tuple[int, int]]:
    """A used host and another of its kind: all that are not used, then all that are."""
    used, kind = placement.nodes_used.tolist(), instance.cluster.kind_of_node
    unused = sorted(set(range(instance.cluster.num_nodes)) - set(used))
    for others in (unused, used):
        for one in used:
            yield from (
                (one, other) for other in others if kind[one] == kind[other] and (others is unused or one < other)
            )


def _exchanged(placement: Placement, one: int, other: int) -> Placement:
    """The two hosts in each other's place."""
    node = placement.node
    return replace(placement, node=np.where(node == one, other, np.where(node == other, one, node)))
