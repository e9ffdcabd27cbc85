"""What must hold of a plan before anything is written from it."""

from pipette_opt.errors import InputError
from pipette_opt.plan import Plan, rank_rows


def check_map(plan: Plan) -> None:
    """Every rank has a GPU of its own that its host has; ``InputError`` names the first that does not."""
    owner: dict[tuple[str, int], int] = {}
    for row in rank_rows(plan):
        gpu = (row.host, row.local_rank)
        if not 0 <= row.local_rank < plan.gpus_per_node:
            raise InputError(
                f"placement[{row.rank}].local_rank",
                f"is {row.local_rank}; host {row.host} has GPUs 0 to {plan.gpus_per_node - 1}.",
            )
        if gpu in owner:
            raise InputError(
                f"placement[{row.rank}]",
                f"is GPU {row.local_rank} of {row.host}, which rank {owner[gpu]} has; every rank needs its own.",
            )
        owner[gpu] = row.rank


def check_expert_groups(plan: Plan) -> None:
    """
    Expert and dense ranks share their pipeline groups, as ``initialize_model_parallel`` of megatron-core demands.

    In the order that ends with data parallelism that holds only if both have equally many data-parallel ranks, which
    with as many tensor ranks means ``ep == cp``; otherwise ``InputError``.
    """
    config = plan.config
    if plan.placement.order == "tp-cp-ep-dp-pp" or config.pipeline_model_parallel_size == 1:
        return
    experts, context = config.expert_model_parallel_size, config.context_parallel_size
    if experts not in (1, context):
        raise InputError(
            "expert_model_parallel_size",
            f"is {experts} with context_parallel_size {context} in rank order {plan.placement.order}; there "
            "megatron-core wants them equal. Solve for the order tp-cp-ep-dp-pp.",
        )
