"""
torchrun: every host starts its own agent, which starts consecutive ranks.

The rendezvous is static: with any other, torchrun deals node ranks out as the hosts happen to arrive.
"""

from pipette_opt.errors import InputError
from pipette_opt.export.megatron import argument_arrays
from pipette_opt.export.shell import CUDA_CONNECTIONS, JOB_ARGUMENTS, MASTER_PORT, comment, launchable, quoted
from pipette_opt.plan import Plan, rank_rows


def export_torchrun(plan: Plan) -> dict[str, str]:
    """
    Node order, and a script that holds each node's launch line.

    Raises ``InputError`` if the hosts do not have equally many consecutive ranks, GPUs in rank order.
    """
    order, per_node = node_order(plan)
    return {"nodes.txt": "".join(f"{host}\n" for host in order), "launch.sh": _launch(plan, order, per_node)}


def node_order(plan: Plan) -> tuple[list[str], int]:
    """Hosts by node rank, and the ranks of each; ``InputError`` at the first rank that torchrun cannot put there."""
    rows = rank_rows(plan)
    order = launchable(row.host for row in rows)
    per_node = sum(row.host == order[0] for row in rows)
    for row in rows:
        node, local_rank = divmod(row.rank, per_node)
        if node >= len(order) or row.host != order[node] or row.local_rank != local_rank:
            raise InputError(
                "format",
                f"torchrun gives each host equally many consecutive ranks, GPUs in rank order, but rank {row.rank} is "
                f"GPU {row.local_rank} of {row.host}. Export for slurm, or solve with --launcher torchrun.",
            )
    return order, per_node


def _launch(plan: Plan, order: list[str], per_node: int) -> str:
    head = order[0]
    lines = [_branch(rank, host, len(order), per_node, head) for rank, host in enumerate(order)]
    usage = comment(
        f"Run on every host of nodes.txt:  bash launch.sh NODE_RANK [arguments of pretrain_gpt.py]\n"
        f"NODE_RANK is the host's line in nodes.txt, counted from 0; {head} is 0 and the rendezvous.\n"
        "Without further arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set.\n"
        f"The plan's times assume NCCL's {plan.nccl_algorithm} algorithm."
    )
    return "\n".join(
        [
            "#!/bin/bash",
            usage,
            "set -euo pipefail",
            argument_arrays(plan).rstrip(),
            "NODE_RANK=${1:?the rank of this node is missing}",
            "shift",
            JOB_ARGUMENTS,
            CUDA_CONNECTIONS,
            "PRETRAIN=${PRETRAIN:-pretrain_gpt.py}",
            f"MASTER_ADDR=${{MASTER_ADDR:-{quoted([head])}}}",
            f"MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
            'case "$NODE_RANK" in',
            *lines,
            f'  *) echo "node rank must be 0 to {len(order) - 1}, got $NODE_RANK" >&2; exit 2 ;;',
            "esac",
            "",
        ]
    )


def _branch(rank: int, host: str, num_nodes: int, per_node: int, head: str) -> str:
    fixed = quoted(["torchrun", "--nnodes", num_nodes, "--nproc-per-node", per_node, "--node-rank", rank])
    rendezvous = '--rdzv-backend static --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
    program = '"$PRETRAIN" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"'
    return f"  {rank}) exec {fixed} {rendezvous} {program} ;;  # {host}"
