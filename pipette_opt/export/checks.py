"""Checks of a plan before any launch file is written."""

from pipette_opt.base.errors import InputError
from pipette_opt.export.recorded import refuse_async_sends
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.recompute import OPERATIONS
from pipette_opt.plans.plan import Plan, rank_rows
from pipette_opt.specs import TrainingSpec


def check_map(plan: Plan) -> None:
    """Raise ``InputError`` for the first rank whose GPU does not exist or is used by another rank."""
    owner: dict[tuple[str, int], int] = {}
    for row in rank_rows(plan):
        gpu = (row.host, row.local_rank)
        if not 0 <= row.local_rank < plan.gpus_per_node:
            raise InputError(
                f"placement[{row.rank}].local_rank",
                f"is {row.local_rank}, but host {row.host} has GPUs 0 to {plan.gpus_per_node - 1}.",
            )
        if gpu in owner:
            raise InputError(
                f"placement[{row.rank}]",
                f"is on GPU {row.local_rank} of {row.host}, like rank {owner[gpu]}; every rank needs a GPU of its own.",
            )
        owner[gpu] = row.rank


def check_equal_microbatches(target: str, plan: Plan) -> None:
    """
    Raise ``InputError`` unless all replicas have the same number of micro-batches, as launchers require.

    Megatron-Core (``ConstantNumMicroBatchesCalculator``), DeepSpeed (``_batch_assertion``) and torchtitan (``Trainer``)
    assert that data-parallel size times micro-batch size divides the global batch.
    """
    config, batch = plan.config, plan.global_batch_size
    shares = config.microbatches_of_replicas(batch)
    if shares[0] > shares[-1]:
        padded = len(shares) * shares[0] * config.micro_batch_size
        raise InputError(
            "global_batch_size",
            f"is {batch}, which {len(shares)} replicas cannot share in equal numbers of micro-batches of "
            f"{config.micro_batch_size}, so {target} cannot run this plan. Solve with --micro-batches equal, or use a "
            f"global batch of {padded}, which takes the same time; if {padded - batch} of its sequences are padding, "
            "give them a loss mask of 0.",
        )


def refuse_operations(config: ParallelConfig) -> None:
    """Raise ``InputError`` for recomputation by operation, which no framework on Megatron-Core has."""
    if config.recompute_granularity == "selective" and config.recompute_modules == OPERATIONS:
        problem = (
            "is by operation (ops), which Megatron-Core cannot do; torchtitan can. Solve with --recompute none,full."
        )
        raise InputError("recompute_modules", problem)


def context_levels(training: TrainingSpec, config: ParallelConfig) -> tuple[int, int] | None:
    """Return the ranks that exchange heads and those of a ring, if context groups have these two levels."""
    if training.cp_comm_type != "a2a+p2p" or config.context_parallel_size == 1:
        return None
    return config.context_a2a_size, config.context_parallel_size // config.context_a2a_size


def expert_tensor_size(plan: Plan, num_experts: int | None) -> int | None:
    """
    Return the expert tensor-parallel size to pass to megatron-core; ``None`` for its default.

    ``initialize_model_parallel`` (0.16) numbers the ranks of experts even for a model without experts. In the rank
    order that ends with data parallelism it needs ``etp * ep == tp * cp``, so that experts have as many data-parallel
    ranks as other layers. Without experts, passing the size is enough; with experts, raise ``InputError`` if the sizes
    differ.
    """
    config = plan.config
    if config.expert_model_parallel_size > 1 and num_experts is None:
        raise InputError(
            "expert_model_parallel_size",
            f"is {config.expert_model_parallel_size}, but the model of the plan has no experts.",
        )
    chosen = config.expert_tensor_parallel_size
    dense = config.tensor_model_parallel_size * config.context_parallel_size
    expert = config.expert_tensor_size * config.expert_model_parallel_size
    if plan.placement.order == "tp-cp-ep-dp-pp" or config.pipeline_model_parallel_size == 1 or expert == dense:
        return chosen
    if num_experts is None and chosen is None:
        return dense
    raise InputError(
        "rank_order",
        f"is {plan.placement.order}; for this order megatron-core needs expert tensor size * "
        "expert_model_parallel_size, here "
        f"{expert}, to be tensor * context parallel size, here {dense}.",
    )


def check_megatron_can(target: str, plan: Plan, *, most_sharded: int = 1) -> None:
    """Raise ``InputError`` if the plan assumes asynchronous sends or a ZeRO stage above ``most_sharded``."""
    refuse_async_sends(target, plan)
    stage = plan.config.sharding_stage
    if stage > most_sharded:
        raise InputError(
            "zero_stage",
            f"is {stage}, but {target} supports only stages 0 and 1; solve with "
            "--data-parallel-sharding-strategy optim.",
        )
