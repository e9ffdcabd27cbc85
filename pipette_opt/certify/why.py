"""Explanation why a configuration is not the plan: a broken rule, a stage that does not fit, or lost time."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.units import counted, difference, gib, three_digits
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
from pipette_opt.options.names import option_name
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

LIGHTER_ENDS = "with even layers or lighter ends "
"""Words for the splits of the layers that the configurations of a search space have."""

EVEN_IF = {"work alone": "even if messages took no time", "best links": "even if every link were the fastest"}
"""Words for what a lower bound assumes, by the bound that rules configurations out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """
    Answer to the question why configurations are not the plan.

    Parameters
    ----------
    answer
        The answer in one line, with its number.
    reasons
        Short sentences with numbers that explain the answer.
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
    answer: str
    reasons: tuple[str, ...] = ()
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
    answer = f"the plan itself: {plan.config.label()} takes {three_digits(plan.estimate.expected_s)} s"
    return Why(verdict="the plan", answer=answer, config=plan.config, best_s=plan.estimate.iteration_time_s)


def _why(instance: Instance, space: SearchSpace, narrow: SearchSpace, max_oom_risk: float, plan: Plan | None) -> Why:
    """Explain why the configurations of the space ``narrow`` are not the plan."""
    enumeration = enumerate_with_reasons(instance, narrow)
    if not enumeration.candidates:
        return _illegal(instance, space, narrow, enumeration)
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        return _too_big(memory, max_oom_risk)
    fitting = {fits.config for fits in memory.fitting}
    if plan is not None and plan.config in fitting:
        return _of_plan(plan)
    fastest = None if plan is None else plan.fastest
    if plan is not None and fastest is not None and fastest.config in fitting:
        best_s, factor = plan.certificate.best_s, plan.estimate.factor
        return Why(
            verdict="less plain",
            answer=f"{against('the plan', factor * best_s, plan.estimate.expected_s)}, but less plain",
            reasons=(f"{fastest.config.label()} is the fastest plan found; take it with --prefer fastest",),
            config=fastest.config,
            best_s=best_s,
        )
    prepared = prepare(Question(instance, narrow, max_oom_risk, keep=prunes))
    if plan is None:
        return _compared(prepared, *_fastest_listed(instance, space, max_oom_risk), 0.0)
    missing = _not_searched(instance, plan, memory)
    proven_s = 0.0 if missing else plan.certificate.lower_bound_s
    answer = _compared(prepared, "the plan", plan.estimate, proven_s, plan.certificate.best_s)
    if missing and answer.verdict == "may win":
        return replace(answer, verdict="not searched", reasons=(*missing, *answer.reasons))
    return answer


def _illegal(instance: Instance, space: SearchSpace, narrow: SearchSpace, enumeration: Enumeration) -> Why:
    """Return the answer for a space without a legal configuration: what would be legal, conflicts, broken rules."""
    together = in_words(conflicts(instance, narrow, IGNORED_RISK, ILLEGAL_S)).splitlines()
    legal = ", or with ".join(_legal_values(instance, space, narrow))
    return Why(
        verdict="illegal",
        answer=f"illegal; legal with {legal}" if legal else "illegal; no change of a single value makes it legal",
        reasons=(*together, *_broken_rules(enumeration)),
        ruled_out_by="legality rules",
    )


def _legal_values(instance: Instance, space: SearchSpace, narrow: SearchSpace) -> Iterator[str]:
    """Yield each option of an illegal space with the values that are legal if all others stay as they are."""
    for name, property_name in DIMENSIONS.items():
        if getattr(narrow, name) == getattr(space, name):
            continue
        with contextlib.suppress(InputError):  # another option needs this one
            free = replace(narrow, **{name: getattr(space, name)})
            values = enumerate_with_reasons(instance, free).values(property_name)
            if values:
                yield f"{option_name(name)} {listed(values).replace(' or ', ', ', max(len(values) - 2, 0))}"


def _broken_rules(enumeration: Enumeration) -> tuple[str, ...]:
    """List the broken rules, most frequent first, each with an example; the first of equally frequent ones."""
    tried = enumeration.num_combinations
    rules = []
    for rule, count in enumeration.rejected.items():
        reasons = {reason: times for (broken, reason), times in enumeration.reasons.items() if broken == rule}
        example = min(reasons, key=lambda reason: (-reasons[reason], reason))
        broken_by = f" (in {count:,} of {tried:,} combinations)" if count < tried else ""
        rules.append(f"{rule}: {example}{broken_by}")
    if len(rules) > MAX_RULES:
        rules[MAX_RULES:] = [f"and {counted(len(rules) - MAX_RULES, 'rule')} more that fewer break"]
    return tuple(rules)


def _too_big(memory: MemoryCheck, max_oom_risk: float) -> Why:
    """Return the answer for configurations of which none fits: the nearest, its stages, and what they lack."""
    miss = min(memory.rejected, key=attrgetter("short_bytes"))
    room, need = int(memory.capacity_bytes.max()), int(miss.need_bytes.max())
    sizes = f"it may need {three_digits(gib(need))} of {three_digits(gib(room))} GiB"
    short = f"too few hosts have the memory, {three_digits(gib(miss.short_bytes))} GiB are lacking"
    nearest = f"the nearest of {counted(len(memory.rejected), 'legal configuration')} is {miss.config.label()}"
    return Why(
        verdict="too big",
        answer=f"too big: {sizes if need > room else short} at the accepted risk of {100 * max_oom_risk:.3g} %",
        reasons=(nearest, *_stages_too_big(miss, room)),
        config=miss.config,
        ruled_out_by="memory",
    )


def _stages_too_big(miss: CheckedConfig, room: int) -> list[str]:
    """List each stage that does not fit, with the excess and the predicted parts of its memory in GiB."""
    found = []
    for stage, need in enumerate(miss.need_bytes.tolist()):
        if need <= room:
            continue
        parts = miss.prediction.components_of(stage)
        largest = sorted((part for part in parts if parts[part] > 0), key=lambda part: -parts[part])
        named = ", ".join(f"{part} {three_digits(gib(parts[part]))}" for part in largest)
        over, predicted = three_digits(gib(need - room)), three_digits(gib(sum(parts.values())))
        found.append(f"stage {stage}: {over} GiB too many; predicted {predicted}: {named}")
    return found


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
    head = f"the plan's search had {len(asked) - len(missing):,} of {counted(len(asked), 'such configuration')}"
    values = {}
    for name, property_name in DIMENSIONS.items():
        wanted, had = getattr(missing[0], property_name), found.values(property_name)
        if wanted not in had:
            values[name.replace("_", " ")] = f"only {listed(had)} searched, not {listed([wanted])}"
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
        answer = "cannot be placed: too few hosts have the memory, or links were not measured"
        return Why(verdict="cannot be placed", answer=answer, ruled_out_by="no placement")
    fastest = min(pruned.bounds_s, key=lambda config: pruned.bounds_s[config])
    own = None if pruned.first is None else _time(prepared.instance, pruned.first)
    config = fastest if pruned.first is None else pruned.first.config
    factor = job_factor(prepared.instance)
    best_s = None if best is None else best.iteration_time_s
    verdict: Verdict = "may win"
    answer, by = f"may win: its lower bound is {three_digits(factor * bound_s)} s", ""
    reasons: tuple[str, ...] = ()
    if best_s is not None:
        answer += f", and {name} takes {three_digits(factor * best_s)} s"
        if bound_s >= best_s:
            verdict, by = "slower", "work alone" if without_overlap(fastest) in pruned.by_work else "best links"
            is_even = config.pipeline_model_parallel_size > 1
            answer = against(name, factor * bound_s, factor * best_s, "at least ")
            least = f"no placement takes less than {three_digits(factor * bound_s)} s"
            reasons = (f"{LIGHTER_ENDS if is_even else ''}{least}, {EVEN_IF[by]}",)
        elif bound_s > (1 - PROVEN_WITHIN) * min(found_s, best_s):
            verdict, by = "not faster", "search"
            answer = "not faster than the fastest plan found"
            reasons = ("the plan's search proved that nothing it searched is faster",)
    return Why(
        verdict=verdict,
        answer=answer,
        reasons=reasons,
        listed=() if own is None else (_listed(config, own, best, factor),),
        config=config,
        bound_s=bound_s,
        listed_s=None if own is None else own.iteration_time_s,
        best_s=best_s,
        ruled_out_by=by,
    )


def against(name: str, own_s: float, best_s: float, least: str = "") -> str:
    """Compare two times: ``18.5 % slower than the plan: 5.30 s against 4.47 s``."""
    words = difference(own_s / best_s, f"slower than {name}", f"faster than {name}", f"as fast as {name}")
    return f"{least}{words}: {three_digits(own_s)} s against {three_digits(best_s)} s"


def _listed(config: ParallelConfig, own: IterationTime, best: IterationTime | None, factor: float) -> str:
    """Return the time on hosts as listed, and up to three causes that take longer than in the plan to beat."""
    takes = f"{config.label()} takes {three_digits(factor * own.iteration_time_s)} s on the hosts as listed"
    if best is None:
        return takes
    more = {name: seconds - best.breakdown.get(name, 0.0) for name, seconds in own.breakdown.items()}
    causes = sorted((name for name in more if more[name] > 0), key=lambda name: -more[name])[:3]
    longer = (f"{name.replace('_', ' ')} +{three_digits(factor * more[name])} s" for name in causes)
    return f"{takes}: {', '.join(longer)}" if causes else takes


def _fastest_listed(instance: Instance, space: SearchSpace, max_oom_risk: float) -> tuple[str, IterationTime | None]:
    """Return the fastest configuration on hosts in listed order, as text, and its time; ``None`` if none fits."""
    enumeration = enumerate_with_reasons(instance, space)
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        return "", None
    first = prune(WorkBounds(instance), fitting_candidates(memory), memory.capacity_bytes).first
    if first is None:
        return "", None
    return first.config.label(), _time(instance, first)


def _time(instance: Instance, plan: FirstPlan) -> IterationTime:
    return estimate(instance, plan.config, tile_placement(plan.config, plan.tile, plan.nodes))
