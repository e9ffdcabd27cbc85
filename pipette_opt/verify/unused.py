"""Rule on unused hosts: each is exchanged for the host that its recorded reason names, and simulated."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.plans.plan import Plan, why_unused
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify.common import on_cluster

PARTNER = re.compile(r"(?:^in place of|; as good as) (\S+)")
"""Pattern for the name of the used host in the reason why a host is unused."""


def unused_hosts_are_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: an unused host, exchanged for the used host that its reason names, costs what the reason states."""
    placement = on_cluster(instance, plan)
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    used = {instance.cluster.hosts[node] for node in placement.nodes_used}
    try:
        now = estimate(instance, plan.config, placement)
    except (InputError, ValueError):
        return  # estimate_is_reproduced says why
    for host, reason in plan.unused_hosts.items():
        named = PARTNER.search(reason)
        if named is None:
            if any(letter.isdigit() for letter in reason):
                yield f"{host} is left out because {reason!r}, which names no host to exchange it for"
            continue
        partner = named[1]
        if partner not in used:
            yield f"{host} is left out because {reason!r}, and {partner} has no rank"
            continue
        exchanged = replace(placement, node=np.where(placement.node == index[partner], index[host], placement.node))
        try:
            seconds = estimate(instance, plan.config, exchanged).iteration_time_s
        except InputError as error:
            yield f"{host} is left out because {reason!r}, and cannot take that place: {error}"
            continue
        expected = why_unused(partner, seconds, now.iteration_time_s)
        if reason != expected:
            yield f"{host} is left out because {reason!r}, but the simulator gives {expected!r}"
