"""
torchrun: every host starts an agent, which starts consecutive ranks.

The rendezvous is static: other backends assign node ranks in the order in which hosts arrive. The agent gives local
rank i the i-th visible GPU, so ``CUDA_VISIBLE_DEVICES`` sets another order of GPUs.
"""

from collections.abc import Sequence

from pipette_opt.export.environment import Setting, megatron_settings, setting_lines
from pipette_opt.export.hosts import unnamed_note
from pipette_opt.export.megatron import argument_arrays
from pipette_opt.export.nodes import NodeShare, node_shares
from pipette_opt.export.shell import FOREIGN_SOURCE, JOB_ARGUMENTS, comment, master_lines, quoted
from pipette_opt.plans.plan import Plan


def export_torchrun(plan: Plan) -> dict[str, str]:
    """
    Return the node order, and a script that launches a node.

    Raise ``InputError`` unless every host has the same number of consecutive ranks.
    """
    shares = node_shares(plan, "torchrun")
    return {**nodes_file(shares), "launch.sh": megatron_launch(plan, shares)}


def nodes_file(shares: Sequence[NodeShare]) -> dict[str, str]:
    """Return ``nodes.txt``, a host per line in the order of node ranks; empty if hosts have no names."""
    if shares[0].host is None:
        return {}
    return {"nodes.txt": "".join(f"{share.host}\n" for share in shares)}


def megatron_launch(plan: Plan, shares: Sequence[NodeShare]) -> str:
    """Return the launch script for Megatron-LM's training script."""
    usage = (
        "Without further arguments a trial run on made-up tokens. PRETRAIN, MASTER_ADDR and MASTER_PORT may be set;\n"
        "ARGUMENTS names another file of arguments, e.g. that of `pipette-opt export --format nemo`."
    )
    setup = [
        argument_arrays(plan).rstrip(),
        'if [[ -n "${ARGUMENTS:-}" ]]; then',
        f"  {FOREIGN_SOURCE}",
        '  source "$ARGUMENTS"',
        "fi",
    ]
    program = '"${PRETRAIN:-pretrain_gpt.py}" "${MEGATRON_ARGS[@]}" "${JOB_ARGS[@]}"'
    settings = megatron_settings(plan)
    return launch_script(shares, usage=usage, settings=settings, program=program, setup=setup, job=[JOB_ARGUMENTS])


def launch_script(
    shares: Sequence[NodeShare],
    *,
    usage: str,
    settings: list[Setting],
    program: str,
    setup: Sequence[str] = (),
    job: Sequence[str] = (),
    agent: Sequence[str] | None = None,
) -> str:
    """
    Return a bash script that starts the agent of a node; its first argument is the node rank.

    Parameters
    ----------
    usage
        Text of the comment below the usage line.
    settings
        Environment variables of the job.
    program
        Program that the agent starts, as words of bash.
    setup
        Bash lines before the script reads its arguments.
    job
        Bash lines that use the arguments after the node rank.
    agent
        Command and options of the agent, as lines of bash without ends; ``None`` for torchrun.
    """
    if agent is None:
        agent = [
            f'torchrun --nnodes {len(shares)} --nproc-per-node {len(shares[0].gpus)} --node-rank "$NODE_RANK"',
            '--rdzv-backend static --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"',
        ]
    place = (
        f"NODE_RANK is the host's place in rank order (its line in nodes.txt), counted from 0; {shares[0].host} is 0 "
        "and the rendezvous."
    )
    if shares[0].host is None:
        place = (
            f"NODE_RANK numbers your hosts from 0; MASTER_ADDR is the address of host 0.\n{unnamed_note(len(shares))}"
        )
    head = comment(f"Run on every host:  bash launch.sh NODE_RANK [arguments of the training script]\n{place}\n{usage}")
    return "\n".join(
        [
            "#!/bin/bash",
            head,
            "set -euo pipefail",
            *setup,
            "NODE_RANK=${1:?the rank of this node is missing}",
            "shift",
            f'if ! [[ "$NODE_RANK" =~ ^[0-9]+$ ]] || (( 10#$NODE_RANK >= {len(shares)} )); then',
            f'  echo "node rank must be 0 to {len(shares) - 1}, got $NODE_RANK" >&2',
            "  exit 2",
            "fi",
            *job,
            *setting_lines(settings),
            *master_lines(shares[0].host),
            *_device_lines(shares),
            "exec " + " \\\n  ".join([*agent, program]),
            "",
        ]
    )


def _device_lines(shares: Sequence[NodeShare]) -> list[str]:
    """Return bash lines that set ``CUDA_VISIBLE_DEVICES`` on nodes whose local rank i does not use GPU i."""
    branches = [
        f"  {rank}) export CUDA_VISIBLE_DEVICES={quoted([share.visible_devices])} ;;"
        + (f"  # {share.host}" if share.host else "")
        for rank, share in enumerate(shares)
        if not share.in_order
    ]
    return ['case "$NODE_RANK" in', *branches, "esac"] if branches else []
