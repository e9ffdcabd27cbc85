"""Today's launch as a first plan of the search, so that the answer is never slower than the launch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipette_opt.base.errors import InputError, MissingLinkError

if TYPE_CHECKING:
    from pipette_opt.candidates import SearchSpace
    from pipette_opt.read.megatron_args import MegatronArgs
    from pipette_opt.solver.pruning import FirstPlan
    from pipette_opt.specs import Instance


def with_layout_of(
    instance: "Instance",
    space: "SearchSpace",
    given: "MegatronArgs",
    max_oom_risk: float,
    nodes: Sequence[int] | None = None,
) -> "tuple[SearchSpace, FirstPlan | None, str]":
    """
    Convert the layout in Megatron arguments into a first plan of the search.

    Parameters
    ----------
    nodes
        Indices of the hosts that the ranks fill in turn; by default all hosts as listed.

    Returns
    -------
    tuple
        1. The search space, extended by the layout's configuration unless pinned options exclude it.
        2. The first plan; ``None`` if the layout cannot run, does not fit in memory, or is outside of the space.
        3. The reason for ``None``; otherwise empty.
    """
    try:
        return _with_layout(instance, space, given, max_oom_risk, nodes)
    except InputError as error:
        return space, None, error.problem
    except MissingLinkError as error:
        return space, None, str(error)


def _with_layout(
    instance: "Instance",
    space: "SearchSpace",
    given: "MegatronArgs",
    max_oom_risk: float,
    nodes: Sequence[int] | None,
) -> "tuple[SearchSpace, FirstPlan | None, str]":
    import numpy as np

    from pipette_opt.candidates import broken_rules, tensor_overlaps, with_known, world_sizes
    from pipette_opt.certify.first_plans import first_plan
    from pipette_opt.costs.compute import check_timed
    from pipette_opt.memory.fewest import check_memory
    from pipette_opt.parallel import identity_placement, with_tensor_overlap
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.estimate import estimate

    per_node, sizes = instance.cluster.gpus_per_node, world_sizes(instance, space)
    config = given.parallel_config(instance.model.num_layers, max(sizes))
    broken = broken_rules(instance.model, instance.training, config)
    if broken:
        return space, None, "; ".join(broken.values())
    check_timed(instance.model, config)
    predictor = load_predictor(max_oom_risk, instance)
    if not config.tp_comm_overlap and True in tensor_overlaps(
        instance, space, config.tensor_model_parallel_size, config.sequence_parallel
    ):
        overlapped = with_tensor_overlap(config, True)
        if check_memory(instance, [overlapped], predictor, max_oom_risk).fitting:
            config = overlapped  # the layout is searched without it only where it does not fit with it
    wider = with_known(space, config)
    if config not in wider.more_configs:
        return space, None, f"pinned options exclude {config.label()}"
    hosts = np.arange(instance.cluster.num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)
    placement = identity_placement(config, per_node, hosts[: -(-config.world_size // per_node)], given.rank_order)
    seconds = estimate(instance, config, placement).iteration_time_s
    first = first_plan(instance, config, placement, seconds)
    if first is None:
        return space, None, f"{config.label()} does not divide the hosts into equal blocks of stages and replicas"
    fitting = check_memory(instance, [config], predictor, max_oom_risk).fitting
    if not any(candidate.config == config for candidate in fitting):
        return wider, None, f"{config.label()} is predicted to run out of memory"
    return wider, first, ""
