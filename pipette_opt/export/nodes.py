"""Hosts in rank order, for launchers that start one agent per host and give it consecutive ranks."""

from typing import NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.export.hosts import hosts_are_named
from pipette_opt.export.shell import launchable
from pipette_opt.plans.plan import Plan, rank_rows


class NodeShare(NamedTuple):
    """One host and the GPU of each of its ranks, in rank order; ``host`` is ``None`` where it has no name."""

    host: str | None
    gpus: tuple[int, ...]

    @property
    def in_order(self) -> bool:
        """Whether local rank i has GPU i."""
        return self.gpus == tuple(range(len(self.gpus)))

    @property
    def visible_devices(self) -> str:
        """``CUDA_VISIBLE_DEVICES`` that makes local rank i find its GPU at place i."""
        return ",".join(map(str, self.gpus))


def node_shares(plan: Plan, target: str) -> list[NodeShare]:
    """
    Hosts by node rank; ``InputError`` at the first rank that an agent per host cannot start.

    Every host has equally many consecutive ranks. Their GPUs may be in any order.
    """
    rows, named = rank_rows(plan), hosts_are_named(plan)
    hosts = launchable(row.host for row in rows)
    per_node = sum(row.host == hosts[0] for row in rows)
    for row in rows:
        node = row.rank // per_node
        if node >= len(hosts) or row.host != hosts[node]:
            raise InputError(
                "--format",
                f"{target} gives each host equally many consecutive ranks, but rank {row.rank} is on "
                f"{row.host if named else f'host {hosts.index(row.host)}'}. "
                "Export for slurm or mpi, or solve with --launcher torchrun.",
            )
    return [
        NodeShare(
            host if named else None, tuple(row.local_rank for row in rows[node * per_node : (node + 1) * per_node])
        )
        for node, host in enumerate(hosts)
    ]
