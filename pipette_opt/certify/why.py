"""Explanation why a configuration is not the plan: a broken rule, a stage that does not fit, or lost time."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.units import counted, gib, percent, three_digits
from pipette_opt.candidates import (
    Enumeration,
    SearchSpace,
    enumerate_with_reasons,
    with_data_parallelism_alone,
)
from pipette_opt.candidates.coverage import DIMENSIONS, listed
from pipette_opt.candidates.known import only
from pipette_opt.certify.conflicts import conflicts, in_words
from pipette_opt.certify.labels import pinned
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck
from pipette_opt.parallel import ParallelConfig, tile_placement, without_overlap
from pipette_opt.plans.plan import PROVEN_WITHIN, IterationTime, Plan
from pipette_opt.prepare import Prepared, Question, fitting_candidates, load_predictor, prepare, prunes
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.simulate.estimate import estimate
from pipette_opt.solver.pruning import FirstPlan, prune
from pipette_opt.specs import Instance
from pipette_opt.verify.space import recorded_space
from pipette_opt.worlds.factor import job_factor

Verdict = Literal[
    "illegal",
    "too big",
    "cannot be placed",
    "slower",
    "not faster",
    "less plain",
    "may win",
    "not searched",
    "the plan",
]

ILLEGAL_S = 1.0
"""Seconds for finding further sets of conflicting pins. Chosen."""

MAX_RULES = 9
"""Largest number of broken rules that an answer lists. Chosen so that the answer fits on a screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """
    Answer to the question why configurations are not the plan.

    Parameters
    ----------
    reasons
        Short sentences with numbers.
    listed
        Sentences on the hosts in listed order, which a placement replaces.
    config
        Nearest legal configuration: the one that fits best, or is fastest; ``None`` if none is legal.
    bound_s
        Lower bound on all plans of these configurations, seconds; ``None`` if none fits.
    listed_s
        Time of the fastest of these configurations on hosts in listed order, seconds; ``None`` if not simulated.
    best_s
        Time to beat, seconds; ``None`` if no plan is known.
    ruled_out_by
        Step that rules the configurations out, with its name in a certificate's proof; empty if none does.
    space
        Search space with only the configurations in question.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    listed: tuple[str, ...] = ()
    config: ParallelConfig | None = None
    bound_s: float | None = None
    listed_s: float | None = None
    best_s: float | None = None
    ruled_out_by: str = ""
    space: SearchSpace = field(default_factory=SearchSpace, repr=False)


def why(
    instance: Instance,
    space: SearchSpace,
    text: str,
    max_oom_risk: float,
    plan: Plan | None = None,
) -> Why:
    """
    Explain why the configurations that a text describes are not the plan.

    Parameters
    ----------
    plan
        Plan to compare with; by default, the fastest configuration of the space on hosts in listed order.
    """
    narrow = with_data_parallelism_alone(instance, pinned(space, text))
    if plan is not None and text == plan.config.label():
        return replace(_of_plan(plan), space=narrow)
    narrow = _of_label(instance, narrow, text)
    return replace(_why(instance, space, narrow, max_oom_risk, plan), space=narrow)


def _of_label(instance: Instance, narrow: SearchSpace, text: str) -> SearchSpace:
    """Return the space of the configuration whose whole label a text is; else the space itself: the rest is free."""
    whole = " ".join(text.split())
    found = (config for config in enumerate_with_reasons(instance, narrow).candidates if config.label() == whole)
    config = next(found, None)
    return narrow if config is None else only(config)


def _of_plan(plan: Plan) -> Why:
    """Return the answer for the plan's own configuration."""
    reason = (
        f"{plan.config.label()} is the plan's own configuration, and takes {three_digits(plan.estimate.expected_s)} s"
    )
    return Why(verdict="the plan", reasons=(reason,), config=plan.config, best_s=plan.estimate.iteration_time_s)


def _why(instance: Instance, space: SearchSpace, narrow: SearchSpace, max_oom_risk: float, plan: Plan | None) -> Why:
    """Explain why the configurations of the space ``narrow`` are not the plan."""
    enumeration = enumerate_with_reasons(instance, narrow)
    if not enumeration.candidates:
        together = in_words(conflicts(instance, narrow, IGNORED_RISK, ILLEGAL_S)).splitlines()
        reasons = (*together, *_broken_rules(enumeration))
        return Why(verdict="illegal", reasons=reasons, ruled_out_by="legality rules")
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        miss = min(memory.rejected, key=attrgetter("short_bytes"))
        stages = _too_big(miss, int(memory.capacity_bytes.max()))
        head = f"none of {len(memory.rejected)} legal configurations fits; nearest: {miss.config.label()}"
        return Why(verdict="too big", reasons=(head, *stages), config=miss.config, ruled_out_by="memory")
    fitting = {fits.config for fits in memory.fitting}
    if plan is not None and plan.config in fitting:
        return _of_plan(plan)
    fastest = None if plan is None else plan.fastest
    if plan is not None and fastest is not None and fastest.config in fitting:
        best_s, factor = plan.certificate.best_s, plan.estimate.factor
        head = f"{fastest.config.label()} is the fastest found, and takes {three_digits(factor * best_s)} s"
        reasons = (head, f"the plan is plainer, and takes {three_digits(plan.estimate.expected_s)} s")
        return Why(verdict="less plain", reasons=reasons, config=fastest.config, best_s=best_s)
    prepared = prepare(Question(instance, narrow, max_oom_risk, keep=prunes))
    if plan is None:
        return _compared(prepared, *_fastest_listed(instance, space, max_oom_risk), 0.0)
    missing = _not_searched(instance, plan, memory)
    proven_s = 0.0 if missing else plan.certificate.lower_bound_s
    answer = _compared(prepared, "the plan", plan.estimate, proven_s, plan.certificate.best_s)
    if missing and answer.verdict == "may win":
        return replace(answer, verdict="not searched", reasons=(*missing, *answer.reasons))
    return answer


def _broken_rules(enumeration: Enumeration) -> tuple[str, ...]:
    """List the broken rules, most frequent first, each with the number of combinations that break it and an example."""
    rules = [
        f"{rule}: {enumeration.examples[rule]} ({count:,} of {enumeration.num_combinations:,} combinations)"
        for rule, count in enumeration.rejected.items()
    ]
    if len(rules) > MAX_RULES:
        rules[MAX_RULES:] = [f"and {counted(len(rules) - MAX_RULES, 'rule')} more that fewer break"]
    return tuple(rules)


def _too_big(miss: CheckedConfig, room: int) -> list[str]:
    """List each stage that does not fit, with the excess and the parts of its memory in GiB."""
    found = []
    for stage, need in enumerate(miss.need_bytes.tolist()):
        if need <= room:
            continue
        over, parts = gib(need - room), miss.prediction.components_of(stage)
        largest = sorted(parts, key=lambda part: -parts[part])
        named = ", ".join(f"{part} {gib(parts[part]):.1f}" for part in largest if parts[part] > 0)
        found.append(
            f"stage {stage} needs up to {gib(need):.1f} GiB of {gib(room):.1f}, {over:.1f} too many; predicted: {named}"
        )
    return found or [f"too few hosts have the memory: {gib(miss.short_bytes):.1f} GiB are lacking"]


def _not_searched(instance: Instance, plan: Plan, memory: MemoryCheck) -> tuple[str, ...]:
    """Explain why the plan's search did not contain all configurations in question; empty if it did."""
    if "search" not in plan.inputs:
        return ("the plan does not record which configurations were searched",)
    found = enumerate_with_reasons(instance, recorded_space(plan))
    searched = set(found.candidates)
    asked = [replace(fits.config, recompute_num_layers=1) for fits in memory.fitting]  # for every number of layers
    missing = [config for config in asked if config not in searched]
    if not missing:
        return ()
    head = f"the plan's search had {len(asked) - len(missing):,} of the {len(asked):,} configurations asked for"
    values = {}
    for name, property_name in DIMENSIONS.items():
        wanted, had = getattr(missing[0], property_name), found.values(property_name)
        if wanted not in had:
            values[name.replace("_", " ")] = f"{wanted}, but only {listed(had)} were searched"
    differences = tuple(f"{name}: {text}" for name, text in values.items())
    return (head, *(differences or ("these layers per stage, or this combination, were not searched",)))


def _compared(
    prepared: Prepared, name: str, best: IterationTime | None, proven_s: float, found_s: float = float("inf")
) -> Why:
    """
    Compare the configurations in question, which fit, with the time to beat.

    Parameters
    ----------
    name
        Name of the plan that has the time to beat.
    proven_s
        Lower bound that a search proved for the configurations, seconds.
    found_s
        Time of the fastest plan found, seconds; may be below that of a plainer plan to beat.
    """
    pruned = prepared.pruned
    assert pruned is not None
    bound_s = max(proven_s, min(pruned.bounds_s.values()))
    lower = prepared.problem
    if all(optimistic_ticks(lower, candidate) >= UNUSABLE_TICKS for candidate in lower.candidates):
        reason = "too few hosts have the memory, or links were not measured"
        return Why(verdict="cannot be placed", reasons=(reason,), ruled_out_by="no placement")
    fastest = min(pruned.bounds_s, key=lambda config: pruned.bounds_s[config])
    own = None if pruned.first is None else _time(prepared.instance, pruned.first)
    config = fastest if pruned.first is None else pruned.first.config
    factor = job_factor(prepared.instance)
    least_s = factor * pruned.bounds_s[without_overlap(config)]
    reasons = [f"{config.label()} takes at least {three_digits(least_s)} s over the best links"]
    at_hand = (
        [] if own is None else [f"on the hosts as they are listed {three_digits(factor * own.iteration_time_s)} s"]
    )
    best_s = None if best is None else best.iteration_time_s
    verdict: Verdict = "may win"
    by = ""
    if best is not None:
        reasons.append(f"{name} takes {three_digits(factor * best.iteration_time_s)} s")
        slower = bound_s / best.iteration_time_s - 1
        if slower >= 0:
            verdict, by = "slower", "work alone" if without_overlap(fastest) in pruned.by_work else "best links"
            layers = "" if config.pipeline_model_parallel_size == 1 else "with usual layers "
            reasons.append(f"{layers}every placement is at least {percent(slower)} slower")
        elif bound_s > (1 - PROVEN_WITHIN) * min(found_s, best.iteration_time_s):
            verdict, by = "not faster", "search"
            reasons.append("the plan's search proved that none that it had is faster than the fastest found")
        if own is not None:
            at_hand += _where(own, best, factor)
    return Why(
        verdict=verdict,
        reasons=tuple(reasons),
        listed=tuple(at_hand),
        config=config,
        bound_s=bound_s,
        listed_s=None if own is None else own.iteration_time_s,
        best_s=best_s,
        ruled_out_by=by,
    )


def _where(own: IterationTime, best: IterationTime, factor: float) -> list[str]:
    """List up to three causes that take longer than in the plan to beat, largest first, with expected seconds."""
    more = {name: seconds - best.breakdown.get(name, 0.0) for name, seconds in own.breakdown.items()}
    causes = sorted((name for name in more if more[name] > 0), key=lambda name: -more[name])[:3]
    return [f"{name.replace('_', ' ')}: {factor * more[name]:+.3g} s on the listed hosts" for name in causes]


def _fastest_listed(instance: Instance, space: SearchSpace, max_oom_risk: float) -> tuple[str, IterationTime | None]:
    """Return the fastest configuration on hosts in listed order, as text, and its time; ``None`` if none fits."""
    enumeration = enumerate_with_reasons(instance, space)
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        return "", None
    first = prune(WorkBounds(instance), fitting_candidates(memory), memory.capacity_bytes).first
    if first is None:
        return "", None
    return f"the fastest there, {first.config.label()},", _time(instance, first)


def _time(instance: Instance, plan: FirstPlan) -> IterationTime:
    return estimate(instance, plan.config, tile_placement(plan.config, plan.tile, plan.nodes))
