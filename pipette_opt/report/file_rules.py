"""Rules on what a plan file says beyond the plan: its verdict, how far off its time may be, and what was assumed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from pipette_opt.candidates import enumerate_with_reasons
from pipette_opt.certify.weights import choice_of, robust_weights
from pipette_opt.memory.fewest import check_memory
from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Band, Plan
from pipette_opt.plans.verdict import plan_verdict
from pipette_opt.read.bands import job_band
from pipette_opt.read.gpus import gpu_record
from pipette_opt.read.levels import domain_record
from pipette_opt.read.nominal import possible_records
from pipette_opt.report.plan_file import plan_to_dict
from pipette_opt.simulate.fullness import stack_predictor
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify import recorded_space
from pipette_opt.verify.common import REPRODUCED, same
from pipette_opt.verify.memory import accepted_risk

FILE_RULES = (
    *("verdict_is_reproduced", "band_is_reproduced", "choice_is_reproduced", "nothing_else_is_said"),
    "cluster_is_reproduced",
)
"""Names of the rules, in the order in which they are checked."""


FORMER_FIELDS = ("certificate.closed_form", "alternatives.objective_s")
"""Fields of plan files of older versions, which nothing reads any more: closed forms of schedules."""


def broken_file_rules(content: Mapping[str, Any], instance: Instance, plan: Plan) -> list[str]:
    """
    Every broken rule by name, with what is said and what is right.

    Parameters
    ----------
    content
        Of the plan file. One without a verdict, of an older version, says nothing wrong.
    """
    found = (
        _verdict_is_reproduced(content, plan),
        _band_is_reproduced(instance, plan),
        choice_is_reproduced(instance, plan),
        _nothing_else_is_said(content, plan),
        _cluster_is_reproduced(instance, plan),
    )
    return [f"{rule}: {problem}" for rule, problems in zip(FILE_RULES, found, strict=True) for problem in problems]


def _verdict_is_reproduced(content: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """The verdict follows from the plan."""
    said, right = content.get("verdict"), plan_verdict(plan)
    if said not in (None, right):
        yield f"verdict is {said!r}, the plan says {right!r}"


def _band_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """The band is that of measured runs like this."""
    band = job_band(instance, plan.config, plan.estimate.iteration_time_s)
    if plan.estimate.band is None:
        yield f"band is missing, of runs like this it is {band}"
        return
    for field in fields(Band):
        given, expected = getattr(plan.estimate.band, field.name), getattr(band, field.name)
        is_older = field.name == "apart" and given is None
        if not is_older and not same(given, expected, REPRODUCED):
            yield f"{field.name} is {given}, of runs like this it is {expected}"


def choice_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    The objective of the plan is its factor times its time, the steps follow from each other, and the bound from them.

    What the searches of other steps proved of the time is not proven again.
    """
    choice, asked = plan.certificate.chosen_by, plan.inputs.get("objective")
    said = None if choice is None else choice.objective
    if choice is None or asked != Objective.ROBUST or said != asked:
        if choice is not None or asked == Objective.ROBUST:
            yield f"chosen_by says {said}, asked was {asked}"
        return
    weights, space = robust_weights(instance), recorded_space(plan)
    value = weights.factor(plan.config) * plan.estimate.iteration_time_s
    shown = choice.value if choice.shown_value is None else choice.shown_value
    if not same(shown, value, REPRODUCED):
        yield f"chosen_by has the value {shown}, the upper end of the band is {value}"
    if shown > (1 + WITHIN + REPRODUCED) * choice.value:
        yield f"chosen_by.shown_value is {shown}, more than {WITHIN:.0%} above {choice.value}"
    factor = float("inf")
    for number, step in enumerate(choice.steps):
        limits = weights.limits_below(factor)
        if limits is None or step.limits != limits:
            yield f"chosen_by.steps[{number}] has limits {step.limits}, those below {factor} are {limits}"
            return
        factor = step.factor
        if step.limits == space.limits and not same(step.lower_bound_s, plan.certificate.lower_bound_s, REPRODUCED):
            right_s = plan.certificate.lower_bound_s
            yield f"chosen_by.steps[{number}] bounds {step.lower_bound_s} s, the certificate {right_s}"
    own = [one for one in choice.steps if one.limits == space.limits]
    fastest = plan.config if plan.fastest is None else plan.fastest.config
    if not own or not same(own[0].value, weights.factor(fastest) * plan.certificate.best_s, REPRODUCED):
        yield f"chosen_by has no step with limits {space.limits} that found the plan"
        return
    right = choice_of(Objective.ROBUST, weights, choice.steps, is_whole=choice.rest_factor is None)
    for name in ("value", "lower_bound", "gap", "rest_factor"):
        said, expected = getattr(choice, name), getattr(right, name)
        if not same(said, expected, REPRODUCED):
            yield f"chosen_by.{name} is {said}, its steps give {expected}"
    if (
        choice.rest_factor is None
        and weights.limits_below(factor) is not None
        and fits_anywhere(instance, plan, factor)
    ):
        yield f"chosen_by says that nothing is left, and configurations below {factor} fit"


def fits_anywhere(instance: Instance, plan: Plan, factor: float) -> bool:
    """Whether any configuration of the plan's space with a smaller factor is legal and fits."""
    limits = robust_weights(instance).limits_below(factor)
    space = replace(recorded_space(plan), limits=limits or ())
    candidates = enumerate_with_reasons(instance, space).candidates
    risk = accepted_risk(plan.inputs)
    return bool(check_memory(instance, candidates, stack_predictor(instance.stack), risk).fitting)


def _nothing_else_is_said(content: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Every field is one that a plan has, with the value that was checked: what is not read is not checked either."""
    own_rules = ("verdict", "inputs")
    written = plan_to_dict(plan)
    yield from _other_values(
        {name: value for name, value in content.items() if name not in own_rules},
        {name: value for name, value in written.items() if name not in own_rules},
        "",
    )


def _other_values(said: Any, read: Any, place: str) -> Iterator[str]:
    """Where a file differs from the plan read from it; fields that it lacks say nothing, and former ones neither."""
    if isinstance(said, Mapping) and isinstance(read, Mapping):
        for name, value in said.items():
            at = f"{place}.{name}" if place else name
            if name in read:
                yield from _other_values(value, read[name], at)
            elif re.sub(r"\[\d+\]", "", at) not in FORMER_FIELDS:
                yield f"{at} is no field of a plan"
    elif isinstance(said, list) and isinstance(read, list) and len(said) == len(read):
        for index, (one, other) in enumerate(zip(said, read, strict=True)):
            yield from _other_values(one, other, f"{place}[{index}]")
    elif not same(said, read, REPRODUCED):
        yield f"{place} is {said!r}, read as {read!r}"


def _cluster_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Kinds of GPU are the catalogue's; a cluster without a file is what --nodes gives, and so is what it assumes."""
    recorded = plan.inputs.get("gpus")
    if isinstance(recorded, Mapping):
        for name, capability in gpu_record(instance.cluster).items():
            if recorded.get(name) != capability:
                yield f"inputs.gpus.{name} is {recorded.get(name)}, the catalogue has {capability}"
    domains = domain_record(instance.cluster).get("domains")
    if plan.inputs.get("domains") != domains:
        yield f"inputs.domains is {plan.inputs.get('domains')}, the cluster has {domains}"
    cluster = plan.inputs.get("cluster")
    if isinstance(cluster, Mapping) and "document" in cluster:
        possible = possible_records(cluster)
        if not any(dict(cluster) == one for one in possible):
            nearest = possible[0] if possible else "nothing"
            yield f"inputs.cluster is {dict(cluster)}, --nodes gives {nearest}"
