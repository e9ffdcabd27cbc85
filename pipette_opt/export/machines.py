"""Conversion of plans on blocks of GPUs, which are parts of hosts, to the hosts themselves."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.plans.plan import Plan
from pipette_opt.specs.host_names import host_and_first_gpu


def on_machines(target: str, plan: Plan, any_count: Sequence[str]) -> Plan:
    """
    Return the plan with blocks replaced by their hosts, and GPU numbers of the hosts; ranks keep their order.

    ``any_count`` names the formats that allow different numbers of ranks per host. Raise ``InputError`` if the plan has
    blocks and the format needs the same number of ranks on every host.
    """
    blocks = [host_and_first_gpu(name) for name in plan.hosts]
    if all(name == host for name, (host, _) in zip(plan.hosts, blocks, strict=True)):
        return plan
    if target not in any_count:
        raise InputError(
            "--format",
            f"{target} needs the same number of GPUs on all hosts, but the plan's hosts have different numbers; export "
            f"for {', '.join(any_count)} instead.",
        )
    hosts = tuple(dict.fromkeys(host for host, _ in blocks))
    host_of_block = np.array([hosts.index(host) for host, _ in blocks])
    first = np.array([number for _, number in blocks])
    node = plan.placement.node
    placement = replace(plan.placement, node=host_of_block[node], local_rank=plan.placement.local_rank + first[node])
    return replace(plan, hosts=hosts, placement=placement, gpus_per_node=int(first.max()) + plan.gpus_per_node)
