"""Hosts in rank order, for launchers that start an agent per host with consecutive ranks."""

from typing import NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.export.hosts import hosts_are_named
from pipette_opt.export.shell import launchable
from pipette_opt.plans.plan import Plan, rank_rows


class NodeShare(NamedTuple):
    """A host and the GPU of each of its ranks, in rank order; ``host`` is ``None`` if hosts have no names."""

    host: str | None
    gpus: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Return whether local rank i uses GPU i."""
        return self.gpus == tuple(range(len(self.gpus)))

    @property
    def visible_devices(self) -> str:
        """Value of ``CUDA_VISIBLE_DEVICES`` that puts the GPU of local rank i at position i."""
        return ",".join(map(str, self.gpus))


def node_shares(plan: Plan, target: str) -> list[NodeShare]:
    """
    Return the hosts in the order of node ranks.

    Raise ``InputError`` unless every host has the same number of consecutive ranks; GPUs may be in any order.
    """
    rows, named = rank_rows(plan), hosts_are_named(plan)
    hosts = launchable(row.host for row in rows)
    per_node = sum(row.host == hosts[0] for row in rows)
    for row in rows:
        node = row.rank // per_node
        if node >= len(hosts) or row.host != hosts[node]:
            raise InputError(
                "--format",
                f"{target} gives each host the same number of consecutive ranks, but rank {row.rank} is on "
                f"{row.host if named else f'host {hosts.index(row.host)}'}. "
                "Export for slurm or mpi, or solve with --launcher torchrun.",
            )
    return [
        NodeShare(
            host if named else None, tuple(row.local_rank for row in rows[node * per_node : (node + 1) * per_node])
        )
        for node, host in enumerate(hosts)
    ]
