"""Why a configuration is not the plan: illegal by which rule, too big on which stage, or slower, by what."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipette_opt.base.errors import InputError
from pipette_opt.base.offload import OFFLOAD_WORDS, offload_of
from pipette_opt.base.units import counted, gib
from pipette_opt.candidates import Enumeration, SearchSpace, enumerate_with_reasons
from pipette_opt.candidates.coverage import DIMENSIONS, listed
from pipette_opt.certify.conflicts import conflicts, in_words
from pipette_opt.certify.finish import PROVEN_WITHIN
from pipette_opt.judge.estimate import estimate
from pipette_opt.judge.fullness import with_edge_loss
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck
from pipette_opt.memory.predictor import IGNORED_RISK
from pipette_opt.parallel import ParallelConfig, block_placement, without_overlap
from pipette_opt.parallel.config import SHARDING_STRATEGIES
from pipette_opt.parallel.recompute import RECOMPUTE_MODULES, known_word
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.prepare import Prepared, fitting_candidates, load_predictor, prepare
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.solver.pruning import FirstPlan, prune
from pipette_opt.specs import Instance
from pipette_opt.verify.space import recorded_space

Verdict = Literal[
    "illegal", "too big", "cannot be placed", "slower", "not faster", "may win", "not searched", "the plan"
]

SWITCH = {"on": True, "off": False, "yes": True, "no": False, "true": True, "false": False}
"""Words of a choice."""

WHERE = "the configuration"
"""What errors call the text that asks."""

ILLEGAL_S = 1.0
"""Seconds in which more sets of pins that exclude each other are looked for. Chosen."""

MOST_RULES = 9
"""Broken rules that an answer lists; chosen so that it fits on a screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """
    The answer.

    Parameters
    ----------
    reasons
        Short sentences, with the numbers.
    config
        The nearest legal configuration: that which fits best, or is fastest; ``None`` if none is legal.
    bound_s
        No plan of these configurations is faster; ``None`` if none fits.
    listed_s
        The fastest of them on the hosts as listed; ``None`` if that was not judged.
    best_s
        The time to beat; ``None`` if there is none.
    ruled_out_by
        Who rules them out, in the words of a certificate's proof; empty if nothing does.
    space
        What was asked for, as a search space.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    config: ParallelConfig | None = None
    bound_s: float | None = None
    listed_s: float | None = None
    best_s: float | None = None
    ruled_out_by: str = ""
    space: SearchSpace = field(default_factory=SearchSpace, repr=False)


def pinned(space: SearchSpace, text: str) -> SearchSpace:
    """
    The space with what a text pins: ``tp=8,pp=2,recompute=full``, or a label such as ``tp8 pp2 dp4 mbs1 sp full``.

    Raises ``InputError`` for an unknown name or value, with those that there are.
    """
    changes: dict[str, Any] = {}
    for name, value in _pairs(text):
        if name not in PINS:
            raise InputError(WHERE, f"knows {', '.join(PINS)}, e.g. tp=8,pp=2; got {name!r}.")
        field_name, read = PINS[name]
        try:
            changes[field_name] = read(value)
        except (KeyError, ValueError):
            raise InputError(WHERE, f"{name}={value}: {HELP_OF.get(name, 'must be a whole number >= 1')}.") from None
    return replace(space, **changes)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a text."""
    if "=" in text:
        for part in text.split(","):
            name, _, value = (word.strip() for word in part.partition("="))
            yield name, value
        return
    for word in text.split():
        if word in OF_LABELS:
            yield from OF_LABELS[word]
        elif word.startswith("layers"):
            yield "layers", word.removeprefix("layers")
        elif word.startswith("offload:"):
            yield "offload", word.removeprefix("offload:")
        elif word.startswith("block"):
            yield "recompute", "block"
        elif word.partition("+")[0] in RECOMPUTE_MODULES:
            yield "recompute", word
        else:
            name = word.rstrip("0123456789")
            yield name, word[len(name) :]


def why(
    instance: Instance,
    space: SearchSpace,
    text: str,
    max_oom_risk: float,
    plan: Plan | None = None,
) -> Why:
    """
    Why the configurations that a text pins are not the plan.

    Parameters
    ----------
    plan
        What to compare with; by default the fastest configuration of the space on the hosts as listed.
    """
    narrow = pinned(space, text)
    return replace(_why(instance, space, narrow, max_oom_risk, plan), space=narrow)


def _why(instance: Instance, space: SearchSpace, narrow: SearchSpace, max_oom_risk: float, plan: Plan | None) -> Why:
    """Why the configurations of a narrow space are not the plan."""
    enumeration = enumerate_with_reasons(instance, narrow)
    if not enumeration.candidates:
        together = in_words(conflicts(instance, narrow, IGNORED_RISK, ILLEGAL_S)).splitlines()
        reasons = (*together, *_broken_rules(enumeration))
        return Why(verdict="illegal", reasons=reasons, ruled_out_by="legality rules")
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        miss = min(memory.rejected, key=lambda one: one.short_bytes)
        stages = _too_big(miss, int(memory.capacity_bytes.max()))
        head = f"none of {len(memory.rejected)} legal configurations fits; nearest: {miss.config.label()}"
        return Why(verdict="too big", reasons=(head, *stages), config=miss.config, ruled_out_by="memory")
    if plan is not None and any(one.config == plan.config for one in memory.fitting):
        time_s = plan.estimate.iteration_time_s
        reasons = (f"{plan.config.label()} is the plan's own configuration, and takes {time_s:.4f} s",)
        return Why(verdict="the plan", reasons=reasons, config=plan.config, best_s=time_s)
    prepared = prepare(instance, narrow, max_oom_risk, keep=lambda config: False)
    if plan is None:
        return _compared(prepared, *_fastest_listed(instance, space, max_oom_risk), 0.0)
    missing = _not_searched(instance, plan, memory)
    answer = _compared(prepared, "the plan", plan.estimate, 0.0 if missing else plan.certificate.lower_bound_s)
    if missing and answer.verdict == "may win":
        return replace(answer, verdict="not searched", reasons=(*missing, *answer.reasons))
    return answer


def _broken_rules(enumeration: Enumeration) -> tuple[str, ...]:
    """Every rule once, with how many combinations break it and the first of them; those that most break first."""
    rules = [
        f"{rule}: {enumeration.examples[rule]} ({count:,} of {enumeration.num_combinations:,} combinations)"
        for rule, count in enumeration.rejected.items()
    ]
    if len(rules) > MOST_RULES:
        rules[MOST_RULES:] = [f"and {counted(len(rules) - MOST_RULES, 'rule')} more that fewer break"]
    return tuple(rules)


def _too_big(miss: CheckedConfig, room: int) -> list[str]:
    """Each stage that is too big, by how much, and what it is made of."""
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
    """Why the plan's search did not have all that is asked for; nothing if it had."""
    if "search" not in plan.inputs:
        return ("the plan does not say what was searched",)
    found = enumerate_with_reasons(instance, recorded_space(plan))
    searched = set(found.candidates)
    asked = [replace(one.config, recompute_num_layers=1) for one in memory.fitting]  # for every number of layers
    missing = [config for config in asked if config not in searched]
    if not missing:
        return ()
    head = f"the plan's search had {len(asked) - len(missing):,} of the {len(asked):,} configurations asked for"
    values = {}
    for name, property_name in DIMENSIONS.items():
        wanted, had = getattr(missing[0], property_name), found.values(property_name)
        if wanted not in had:
            values[name.replace("_", " ")] = f"{wanted}, searched were {listed(had)}"
    told = tuple(f"{name}: {said}" for name, said in values.items())
    return (head, *(told or ("its layers, or this combination, were not among those searched",)))


def _compared(prepared: Prepared, name: str, best: IterationTime | None, proven_s: float) -> Why:
    """
    Configurations that fit against the time to beat.

    Parameters
    ----------
    name
        Of what has that time.
    proven_s
        What a search has shown to be their least.
    """
    pruned = prepared.pruned
    assert pruned is not None
    bound_s = max(proven_s, min(pruned.bounds_s.values()))
    if all(optimistic_ticks(prepared.lower, one) >= UNUSABLE_TICKS for one in prepared.lower.candidates):
        reason = "too few hosts have the memory, or links were not measured"
        return Why(verdict="cannot be placed", reasons=(reason,), ruled_out_by="no placement")
    fastest = min(pruned.bounds_s, key=lambda config: pruned.bounds_s[config])
    own = None if pruned.first is None else _time(prepared.instance, pruned.first)
    config = fastest if pruned.first is None else pruned.first.config
    least_s = pruned.bounds_s[without_overlap(config)]
    reasons = [f"{config.label()} takes at least {least_s:.4f} s over the best links"]
    if own is not None:
        reasons.append(f"and {own.iteration_time_s:.4f} s on the hosts as they are listed")
    best_s = None if best is None else best.iteration_time_s
    verdict: Verdict = "may win"
    by = ""
    if best is not None:
        reasons.append(f"{name} takes {best.iteration_time_s:.4f} s")
        slower = bound_s / best.iteration_time_s - 1
        if slower >= 0:
            verdict, by = "slower", "work alone" if without_overlap(fastest) in pruned.by_work else "best links"
            reasons.append(f"every placement is at least {slower:.2%} slower")
        elif slower > -PROVEN_WITHIN:
            verdict, by = "not faster", "search"
            reasons.append("the plan's certificate has them: its search has shown that none is faster")
        if own is not None:
            reasons += _where(own, best)
    return Why(
        verdict=verdict,
        reasons=tuple(reasons),
        config=config,
        bound_s=bound_s,
        listed_s=None if own is None else own.iteration_time_s,
        best_s=best_s,
        ruled_out_by=by,
    )


def _where(own: IterationTime, best: IterationTime) -> list[str]:
    """The causes that take longer than in the plan to beat, the largest first."""
    more = {name: seconds - best.breakdown.get(name, 0.0) for name, seconds in own.breakdown.items()}
    causes = sorted((name for name in more if more[name] > 0), key=lambda name: -more[name])[:3]
    return [f"{name.replace('_', ' ')}: {more[name]:+.4f} s on the listed hosts" for name in causes]


def _fastest_listed(instance: Instance, space: SearchSpace, max_oom_risk: float) -> tuple[str, IterationTime | None]:
    """The fastest configuration of the whole space on the hosts as listed, in words, and its time."""
    enumeration = enumerate_with_reasons(instance, space)
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    if not memory.fitting:
        return "", None
    known = with_edge_loss(instance, memory)
    first = prune(known, fitting_candidates(memory), memory.capacity_bytes).first
    if first is None:
        return "", None
    return f"the fastest there, {first.config.label()},", _time(known, first)


def _time(instance: Instance, plan: FirstPlan) -> IterationTime:
    return estimate(instance, plan.config, block_placement(plan.config, plan.block, plan.nodes))


def _sizes(text: str) -> tuple[int, ...]:
    if int(text) < 1:
        raise ValueError(text)
    return (int(text),)


def _split(text: str) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage, as labels have them: ``12x6,8``."""
    layers: list[int] = []
    for part in text.replace(";", ",").split(","):
        number, _, times = part.partition("x")
        layers += [*_sizes(number)] * (_sizes(times)[0] if times else 1)
    return (tuple(layers),)


PINS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "tp": ("tensor_parallel", _sizes),
    "pp": ("pipeline_parallel", _sizes),
    "dp": ("data_parallel", _sizes),
    "cp": ("context_parallel", _sizes),
    "ep": ("expert_parallel", _sizes),
    "etp": ("expert_tensor_parallel", _sizes),
    "vpp": ("virtual_pipeline", _sizes),
    "mbs": ("micro_batch_size", _sizes),
    "gpus": ("num_gpus", lambda text: _sizes(text)[0]),
    "recompute": ("recompute", lambda text: (None if text == "none" else known_word(text),)),
    "offload": ("offload", lambda text: (offload_of(text).word,)),
    "sp": ("sequence_parallel", lambda text: (SWITCH[text],)),
    "dopt": ("use_distributed_optimizer", lambda text: (SWITCH[text],)),
    "zero": ("data_parallel_sharding_strategy", lambda text: (SHARDING_STRATEGIES[int(text)],)),
    "groups": ("num_distributed_optimizer_instances", _sizes),
    "overlap": ("overlap_grad_reduce", lambda text: SWITCH[text]),
    "gather": ("overlap_param_gather", lambda text: SWITCH[text]),
    "layers": ("layers_per_stage", _split),
}
"""What can be asked for: field of the search space, and how its value is read."""

OF_LABELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "sp": (("sp", "on"),),
    "dopt": (("dopt", "on"),),
    "overlap": (("overlap", "on"), ("gather", "off")),
    "overlap+gather": (("overlap", "on"), ("gather", "on")),
    "full": (("recompute", "full"),),
    "selective": (("recompute", "selective"),),
}
"""Words of labels without a number."""

HELP_OF: Mapping[str, str] = {
    "offload": f"must be {OFFLOAD_WORDS}",
    "recompute": "must be none, selective, block, full, or modules as in moe_act+layernorm",
    "layers": "must be layers of each stage, e.g. 12x6,8 in a label, 12x6;8 elsewhere",
    **dict.fromkeys(("sp", "dopt", "overlap", "gather"), "must be on or off"),
}
"""What a value must be, where it is no number."""
