"""
Interleaved variants of existing plans, in groups of more micro-batches than stages.

Megatron-Core interleaves groups of as many micro-batches as stages by default, so the micro-batches of a replica must
be a multiple of the number of stages. With ``microbatch_group_size_per_vp_stage`` groups are larger and the last group
is smaller, which allows any number of micro-batches. The search does not cover this option. Here it is tried on
existing plans, on the same GPUs.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.units import ceil_div
from pipette_opt.candidates.legality import check_legal
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.parallel.schedule import build_schedule, smallest_group
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.schedule_memory import schedule_memory
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.specs import Instance
from pipette_opt.verify.alternatives import nearest_placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """
    A plan interleaved in groups of ``group_size`` micro-batches.

    Parameters
    ----------
    global_batch_size
        Global batch size with padding, so that every replica has ``num_microbatches``.
    """

    config: ParallelConfig
    num_microbatches: int
    group_size: int
    global_batch_size: int
    iteration_time_s: float


def grouped(
    plans: Sequence[tuple[Instance, Plan]], max_oom_risk: float, chunks: Collection[int] | None = None
) -> Grouped | None:
    """
    Return the fastest interleaved variant of the plans, on their placements; ``None`` if no variant fits in memory.

    Parameters
    ----------
    plans
        Plans with their jobs. Plans and their alternatives are tried if they do not interleave already.
    chunks
        Allowed numbers of chunks per stage; ``None`` for all.
    """
    tried = [(instance, *pair) for instance, plan in plans for pair in _placed(instance, plan)]
    found = [way for placed in tried for way in _ways(*placed, max_oom_risk, chunks)]
    return min(found, key=lambda way: way.iteration_time_s, default=None)


def _placed(instance: Instance, plan: Plan) -> list[tuple[ParallelConfig, Placement]]:
    """
    Return a plan and its alternatives as configurations with placements.

    An alternative records no placement: of the possible ones, the one whose time is nearest to the recorded time is
    taken.
    """
    found = [(plan.config, plan.placement)]
    for alternative in plan.alternatives:
        if alternative.iteration_time_s is not None:
            found.append((alternative.config, nearest_placement(instance, alternative)[0]))
    return found


def _ways(
    instance: Instance,
    old: ParallelConfig,
    placement: Placement,
    max_oom_risk: float,
    chunks: Collection[int] | None,
) -> Iterator[Grouped]:
    training = instance.training
    pp, replicas = old.pipeline_model_parallel_size, old.data_parallel_size
    num_microbatches = ceil_div(training.global_batch_size, replicas * old.micro_batch_size)
    group_size = smallest_group(pp, num_microbatches)
    if pp == 1 or old.num_chunks > 1 or group_size is None:
        return
    padded = num_microbatches * replicas * old.micro_batch_size
    whole = pp * replicas * old.micro_batch_size  # any batch of whole groups: other rules do not ask for its size
    job = replace(instance, training=replace(training, global_batch_size=padded, unequal_microbatches=False))
    predictor = load_predictor(max_oom_risk, job)
    for number in range(2, min(old.layers_per_stage) + 1):
        if any(layers % number for layers in old.layers_per_stage) or (chunks is not None and number not in chunks):
            continue
        config = replace(old, virtual_pipeline_model_parallel_size=number, pipeline_model_parallel_layout=None)
        if any(check_legal(job.model, replace(job.training, global_batch_size=whole), config)):
            continue
        schedule = build_schedule(pp, num_microbatches, number, group_size)
        own = stage_memory(job, config, placement, predictor, max_oom_risk)
        memory = schedule_memory(own, job, config, schedule, predictor, max_oom_risk)
        if any(stage.upper_bytes > stage.capacity_bytes for stage in memory):
            continue
        try:
            seconds = estimate(job, config, placement, schedule).iteration_time_s
        except MissingLinkError:  # interleaving sends from the last stage to the first
            return
        yield Grouped(
            config=config,
            num_microbatches=num_microbatches,
            group_size=group_size,
            global_batch_size=padded,
            iteration_time_s=seconds,
        )
