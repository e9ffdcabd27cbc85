"""
The rules of the layouts study, each solved with and without, for one model and one cluster.

J. Hagemann, S. Weinbach, K. Dobler, M. Schall, G. de Melo, "Efficient Parallelization Layouts for Large-Scale
Distributed Model Training" (arXiv 2311.05610), drawn from sweeps on A100 of 13 to 65 billion parameters. A rule holds
if the best plan that keeps it is not slower than the best plan that breaks it; it is proven if the bound of one side
says so. The best plan of the whole space is the better side already, unless a rule says nothing about it.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import AS_GOOD, Plan, why_slower
from pipette_opt.plans.watcher import Watcher
from pipette_opt.specs import Instance

Job = tuple[Instance, SearchSpace]

Side = Callable[[Instance, SearchSpace], Job | None]
"""What is left of a job on one side of a rule; ``None`` if nothing."""

LARGE_PARAMETERS, LONG_SEQUENCE = 30e9, 2048
"""From which sizes on the study advises sequence parallelism: more than 30 billion parameters, or 2,048 tokens."""

Verdict = Literal["holds", "does not hold", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """
    One recommendation.

    Parameters
    ----------
    kept, broken
        The job that keeps it, and the one that breaks it.
    is_kept
        Whether a configuration of an instance keeps it; ``None`` if the rule says nothing about it.
    """

    name: str
    kept: Side
    broken: Side
    is_kept: Callable[[Instance, ParallelConfig], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """
    What became of a rule.

    Parameters
    ----------
    verdict
        ``open``: neither side has a plan.
    is_proven
        Whether bounds say so, and not only the best plans found.
    kept_s, broken_s
        Iteration times of the best plans; ``None`` where nothing fits.
    why
        What the slower side loses, or why it has no plan.
    """

    rule: str
    verdict: Verdict
    is_proven: bool
    kept: str
    broken: str
    kept_s: float | None
    broken_s: float | None
    why: str

    @property
    def gain(self) -> float | None:
        """Time of the plan that breaks the rule over that of the one that keeps it, minus one."""
        return None if self.kept_s is None or self.broken_s is None else self.broken_s / self.kept_s - 1.0


def _one_sample(instance: Instance, space: SearchSpace) -> Job | None:
    if space.micro_batch_size is not None and 1 not in space.micro_batch_size:
        return None
    return instance, replace(space, micro_batch_size=(1,))


def _more_samples(instance: Instance, space: SearchSpace) -> Job | None:
    batch = instance.training.global_batch_size
    sizes = space.micro_batch_size or [size for size in range(2, space.max_micro_batch_size + 1) if batch % size == 0]
    larger = tuple(size for size in sizes if size > 1)
    return (instance, replace(space, micro_batch_size=larger)) if larger else None


def _recompute(instance: Instance, space: SearchSpace, wanted: bool) -> Job | None:
    left = tuple(one for one in space.recompute if (one is not None) == wanted)
    return (instance, replace(space, recompute=left)) if left else None


def _trained(instance: Instance, space: SearchSpace, **changes: object) -> Job:
    return replace(instance, training=replace(instance.training, **changes)), space  # type: ignore[arg-type]


def _sequence(instance: Instance, space: SearchSpace, wanted: bool) -> Job | None:
    """Among configurations with tensor parallelism; others have nothing to spread."""
    gpus = instance.cluster.num_nodes * instance.cluster.gpus_per_node
    degrees = space.tensor_parallel or tuple(degree for degree in range(2, gpus + 1) if gpus % degree == 0)
    several = tuple(degree for degree in degrees if degree > 1)
    if not several or (space.sequence_parallel is not None and wanted not in space.sequence_parallel):
        return None
    return instance, replace(space, sequence_parallel=(wanted,), tensor_parallel=several)


def _advises_sequence(instance: Instance) -> bool:
    large = instance.model.num_parameters > LARGE_PARAMETERS
    return large or instance.training.seq_length > LONG_SEQUENCE


def _keeps_attention(instance: Instance, _: ParallelConfig) -> bool:
    return instance.training.attention_kernel == "flash" and instance.training.flash_version == 2


def _keeps_sequence(instance: Instance, config: ParallelConfig) -> bool | None:
    if config.tensor_model_parallel_size == 1:
        return None
    return config.sequence_parallel == _advises_sequence(instance)


RULES = (
    LayoutRule(
        name="micro-batches of one sample",
        kept=_one_sample,
        broken=_more_samples,
        is_kept=lambda _, config: config.micro_batch_size == 1,
    ),
    LayoutRule(
        name="more model parallelism rather than recomputation",
        kept=lambda instance, space: _recompute(instance, space, False),
        broken=lambda instance, space: _recompute(instance, space, True),
        is_kept=lambda _, config: config.recompute_granularity is None,
    ),
    LayoutRule(
        name="FlashAttention-2",
        kept=lambda instance, space: _trained(instance, space, attention_kernel="flash", flash_version=2),
        broken=lambda instance, space: _trained(instance, space, attention_kernel="unfused"),
        is_kept=_keeps_attention,
    ),
    LayoutRule(
        name="fused norms",
        kept=lambda instance, space: _trained(instance, space, fused_norm=True),
        broken=lambda instance, space: _trained(instance, space, fused_norm=False),
        is_kept=lambda instance, _: instance.training.fused_norm,
    ),
    LayoutRule(
        name="sequence parallelism beyond 30 billion parameters or 2,048 tokens, not below",
        kept=lambda instance, space: _sequence(instance, space, _advises_sequence(instance)),
        broken=lambda instance, space: _sequence(instance, space, not _advises_sequence(instance)),
        is_kept=_keeps_sequence,
    ),
)
"""In the order of the study."""


def check_rules(
    instance: Instance, space: SearchSpace, params: OptimizeParams, watcher: Watcher | None = None
) -> Iterator[RuleRow]:
    """
    The rules one after the other, as they are solved: the job as it is first, then the other side of each.

    Parameters
    ----------
    params
        Of each solve, the time limit included.

    Raises
    ------
    InfeasibleError
        If the job as it is has no plan.
    """
    stop = threading.Event() if watcher is None else watcher.stop
    best = optimize(instance, space, params, watcher)
    for rule in RULES:
        if stop.is_set():
            return
        is_kept = rule.is_kept(instance, best.config)
        kept, broken = (
            best if is_kept == wanted else _solved(side(instance, space), params, watcher)
            for wanted, side in ((True, rule.kept), (False, rule.broken))
        )
        yield _row(rule, kept, broken)


def _solved(job: Job | None, params: OptimizeParams, watcher: Watcher | None) -> Plan | str:
    """The best plan of a job, or why it has none."""
    if job is None:
        return "pinned options leave nothing of this side"
    try:
        return optimize(*job, params, watcher)
    except (InfeasibleError, InputError) as error:
        return str(error).splitlines()[0]


def _row(rule: LayoutRule, kept: Plan | str, broken: Plan | str) -> RuleRow:
    kept_s, broken_s = _time_s(kept), _time_s(broken)
    verdict: Verdict = "open"
    is_proven = False
    if isinstance(kept, str) and isinstance(broken, str):
        why = f"with it: {kept}; without it: {broken}"
    elif isinstance(kept, str):
        verdict, is_proven, why = "does not hold", True, f"with it: {kept}"
    elif isinstance(broken, str):
        verdict, is_proven, why = "holds", True, f"without it: {broken}"
    elif kept.estimate.iteration_time_s <= broken.estimate.iteration_time_s * (1 + AS_GOOD):
        verdict, is_proven = "holds", kept.estimate.iteration_time_s <= broken.certificate.lower_bound_s * (1 + AS_GOOD)
        why = f"without it {why_slower(kept.estimate, broken.estimate)}"
    else:
        verdict = "does not hold"
        is_proven = broken.estimate.iteration_time_s < kept.certificate.lower_bound_s
        why = f"with it {why_slower(broken.estimate, kept.estimate)}"
    return RuleRow(
        rule=rule.name,
        verdict=verdict,
        is_proven=is_proven,
        kept="-" if isinstance(kept, str) else kept.config.label(),
        broken="-" if isinstance(broken, str) else broken.config.label(),
        kept_s=kept_s,
        broken_s=broken_s,
        why=why,
    )


def _time_s(plan: Plan | str) -> float | None:
    return None if isinstance(plan, str) else plan.estimate.iteration_time_s
