"""Rule on exchanges of the plan's hosts: a faster one refutes the lower bound if placements are too many to list."""

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
"""Most exchanges that are simulated, unused hosts first; about a second for a hundred hosts. Chosen."""


def no_exchange_is_faster(searched: Searched, plan: Plan) -> Iterator[str]:
    """Rule: no exchange of two hosts with equal GPU type makes the plan faster than the certificate's lower bound."""
    if plan.config not in searched.bounded.open_configs:
        return  # all of its placements are bounded
    placement, hosts = on_cluster(searched.instance, plan), searched.instance.cluster.hosts
    pairs = list(islice(_pairs(searched.instance, placement), MAX_EXCHANGES))
    if not pairs:
        return
    times = estimate_many(searched.instance, [(plan.config, _exchanged(placement, *pair)) for pair in pairs])
    best = int(times.argmin())
    if times[best] < searched.claimed_s:
        first, second = (hosts[node] for node in pairs[best])
        yield (
            f"lower_bound_s is {plan.certificate.lower_bound_s}, but with {first} and {second} exchanged the "
            "plan takes "
            f"{times[best]} s"
        )


def _pairs(instance: Instance, placement: Placement) -> Iterator[tuple[int, int]]:
    """Yield pairs of a used host and another host with the same GPU type: unused hosts first, then used hosts."""
    used, kind = placement.nodes_used.tolist(), instance.cluster.kind_of_node
    unused = sorted(set(range(instance.cluster.num_nodes)) - set(used))
    for others in (unused, used):
        for first in used:
            yield from (
                (first, second)
                for second in others
                if kind[first] == kind[second] and (others is unused or first < second)
            )


def _exchanged(placement: Placement, first: int, second: int) -> Placement:
    """Return the placement with two hosts exchanged."""
    node = placement.node
    return replace(placement, node=np.where(node == first, second, np.where(node == second, first, node)))
