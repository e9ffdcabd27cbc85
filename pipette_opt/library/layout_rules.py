"""
The rules of the layouts study, each solved with and without the rule, for one model and one cluster.

J. Hagemann, S. Weinbach, K. Dobler, M. Schall, G. de Melo, "Efficient Parallelization Layouts for Large-Scale
Distributed Model Training" (arXiv 2311.05610). The rules come from sweeps on A100 of models with 13 to 65 billion
parameters. A rule holds if the best plan that keeps the rule is not slower than the best plan that breaks it. A verdict
is proven if the lower bound of the slower side confirms it.
"""

import contextlib
import threading
from collections.abc import Callable
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
"""Function that restricts a job to plans that keep, or break, a rule; returns ``None`` if no configuration remains."""

LARGE_PARAMETERS, LONG_SEQUENCE = 30e9, 2048
"""Sizes above which the study advises sequence parallelism: parameters of the model, or tokens of a sequence."""

Verdict = Literal["holds", "does not hold", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """
    A rule of the layouts study.

    Parameters
    ----------
    kept, broken
        Functions that restrict a job to plans that keep, or break, the rule.
    is_kept
        Function that returns whether a configuration keeps the rule; ``None`` if the rule does not apply to it.
    changes_training
        Whether the rule concerns training settings, such as the attention kernel, and not the configuration.
    """

    name: str
    kept: Side
    broken: Side
    is_kept: Callable[[Instance, ParallelConfig], bool | None]
    changes_training: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """
    Result for a rule.

    Parameters
    ----------
    verdict
        ``holds``, ``does not hold``, or ``open`` if neither side has a plan.
    is_proven
        Whether lower bounds prove the verdict; otherwise it compares the best plans found.
    kept_s, broken_s
        Iteration time, in seconds, of the best plan that keeps, or breaks, the rule; ``None`` if no plan fits.
    why
        Cause of the slower side's extra time, or the reason why it has no plan.
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
        """Relative time lost by breaking the rule: ``broken_s / kept_s - 1``; ``None`` if a side has no plan."""
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
    left = tuple(kind for kind in space.recompute if (kind is not None) == wanted)
    return (instance, replace(space, recompute=left)) if left else None


def _trained(instance: Instance, space: SearchSpace, **changes: object) -> Job:
    return replace(instance, training=replace(instance.training, **changes)), space  # type: ignore[arg-type]


def _sequence(instance: Instance, space: SearchSpace, wanted: bool) -> Job | None:
    """Return the job with sequence parallelism fixed to ``wanted``, restricted to tensor-parallel sizes above 1."""
    gpus = instance.cluster.num_nodes * instance.cluster.gpus_per_node
    degrees = space.tensor_parallel or tuple(degree for degree in range(2, gpus + 1) if gpus % degree == 0)
    several = tuple(degree for degree in degrees if degree > 1)
    if not several or (space.sequence_parallel is not None and wanted not in space.sequence_parallel):
        return None
    return instance, replace(space, sequence_parallel=(wanted,), tensor_parallel=several)


def _advises_sequence(instance: Instance) -> bool:
    large = instance.model.num_parameters > LARGE_PARAMETERS
    return large or instance.training.seq_length > LONG_SEQUENCE


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
        kept=lambda instance, space: _trained(instance, space, attention_kernel="flash", flash_version=3),
        broken=lambda instance, space: _trained(instance, space, attention_kernel="unfused"),
        is_kept=lambda instance, _: (
            instance.training.attention_kernel == "flash" and instance.training.flash_version > 1
        ),
        changes_training=True,
    ),
    LayoutRule(
        name="fused norms",
        kept=lambda instance, space: _trained(instance, space, fused_norm=True),
        broken=lambda instance, space: _trained(instance, space, fused_norm=False),
        is_kept=lambda instance, _: instance.training.fused_norm,
        changes_training=True,
    ),
    LayoutRule(
        name="sequence parallelism beyond 30 billion parameters or 2,048 tokens, not below",
        kept=lambda instance, space: _sequence(instance, space, _advises_sequence(instance)),
        broken=lambda instance, space: _sequence(instance, space, not _advises_sequence(instance)),
        is_kept=_keeps_sequence,
    ),
)
"""Rules in the order of the study."""


@dataclass(slots=True)
class _Found:
    """Results for plans that keep, or break, a rule: the fastest plan, a lower bound, or why no plan exists."""

    plan: Plan | None = None
    bound_s: float = 0.0
    reason: str = ""

    def add(self, other: "_Found") -> None:
        """Merge the result of another solve: keep the faster plan, the higher bound, and the first reason."""
        if other.plan is not None and (self.plan is None or _time_s(other.plan) < _time_s(self.plan)):
            self.plan = other.plan
        self.bound_s = max(self.bound_s, other.bound_s)
        self.reason = self.reason or other.reason


def check_rules(
    instance: Instance, space: SearchSpace, params: OptimizeParams, watcher: Watcher | None = None
) -> list[RuleRow]:
    """
    Check every rule: solve the job, then the restricted jobs whose side the best plan is not on.

    Every plan found counts for each rule, on the side that it belongs to. Each restricted job is also solved with the
    degrees of the best plan so far, so that a time limit does not decide against a side.

    Parameters
    ----------
    params
        Settings of each solve, including its time limit.
    watcher
        Its stop ends the check after the current solve; only rules with both sides solved have a row.

    Raises
    ------
    InfeasibleError
        If the unrestricted job has no plan.
    """
    stop = threading.Event() if watcher is None else watcher.stop
    base = optimize(instance, space, params, watcher)
    plans, sides = [base], dict[tuple[str, bool], _Found]()
    of_training = [rule for rule in RULES if rule.changes_training]
    for rule in (candidate for candidate in RULES if not candidate.changes_training):
        for wanted, side in ((True, rule.kept), (False, rule.broken)):
            found = _Found(bound_s=base.certificate.lower_bound_s)
            if rule.is_kept(instance, base.config) != wanted and not stop.is_set():
                found.add(_solved(side(instance, space), min(plans, key=_time_s).config, params, watcher))
            if found.plan is not None:
                plans.append(found.plan)
            sides[rule.name, wanted] = found
    for (name, wanted), found in sides.items():
        (rule,) = (rule for rule in RULES if rule.name == name)
        for plan in plans:
            if rule.is_kept(instance, plan.config) == wanted:
                found.add(_Found(plan=plan))
    best = min(plans, key=_time_s)
    for rule in of_training:
        own = bool(rule.is_kept(instance, best.config))
        sides[rule.name, own] = _Found(plan=best, bound_s=base.certificate.lower_bound_s)
        other = sides[rule.name, not own] = _Found()
        if not stop.is_set():
            job = (rule.broken if own else rule.kept)(instance, space)
            other.add(_solved(job, best.config, params, watcher))
    rows = [_row(rule, sides[rule.name, True], sides[rule.name, False]) for rule in RULES]
    return [row for row in rows if row.verdict != "open" or row.why]


def _solved(job: Job | None, near: ParallelConfig, params: OptimizeParams, watcher: Watcher | None) -> _Found:
    """Return the best plan of a job and its bound, or why no plan exists; also tries the degrees of ``near``."""
    if job is None:
        return _Found(bound_s=float("inf"), reason="pinned options exclude every such configuration")
    try:
        plan = optimize(*job, params, watcher)
    except (InfeasibleError, InputError) as error:
        return _Found(bound_s=float("inf"), reason=str(error).splitlines()[0])
    found = _Found(plan=plan, bound_s=plan.certificate.lower_bound_s)
    if plan.certificate.status != "OPTIMAL":
        instance, space = job
        pinned = replace(
            space,
            tensor_parallel=(near.tensor_model_parallel_size,),
            pipeline_parallel=(near.pipeline_model_parallel_size,),
            data_parallel=(near.data_parallel_size,),
        )
        with contextlib.suppress(InfeasibleError, InputError):
            found.add(_Found(plan=optimize(instance, pinned, params, watcher)))
    return found


def _row(rule: LayoutRule, kept: _Found, broken: _Found) -> RuleRow:
    verdict: Verdict = "open"
    is_proven, why = False, ""
    if kept.plan is not None and broken.plan is not None:
        kept_s, broken_s = _time_s(kept.plan), _time_s(broken.plan)
        if kept_s <= broken_s * (1 + AS_GOOD):
            verdict, is_proven = "holds", kept_s <= broken.bound_s * (1 + AS_GOOD)
            why = f"without it {why_slower(kept.plan.estimate, broken.plan.estimate)}"
        else:
            verdict, is_proven = "does not hold", broken_s < kept.bound_s
            why = f"with it {why_slower(broken.plan.estimate, kept.plan.estimate)}"
    elif kept.plan is not None and broken.reason:
        verdict, is_proven, why = "holds", True, f"without it: {broken.reason}"
    elif broken.plan is not None and kept.reason:
        verdict, is_proven, why = "does not hold", True, f"with it: {kept.reason}"
    elif kept.reason or broken.reason:
        why = f"with it: {kept.reason or 'not solved'}; without it: {broken.reason or 'not solved'}"
    return RuleRow(
        rule=rule.name,
        verdict=verdict,
        is_proven=is_proven,
        kept="-" if kept.plan is None else kept.plan.config.label(),
        broken="-" if broken.plan is None else broken.plan.config.label(),
        kept_s=None if kept.plan is None else _time_s(kept.plan),
        broken_s=None if broken.plan is None else _time_s(broken.plan),
        why=why,
    )


def _time_s(plan: Plan) -> float:
    return plan.estimate.iteration_time_s
