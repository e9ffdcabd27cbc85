"""Rules for fields of a plan file that only the file has: verdict, band, objective, unknown fields, cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from pipette_opt.candidates import enumerate_with_reasons
from pipette_opt.certify.weights import choice_of, robust_weights
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Band, Plan
from pipette_opt.read.gpus import gpu_record
from pipette_opt.read.levels import domain_record
from pipette_opt.read.nominal import possible_records
from pipette_opt.report.plan_file import plan_to_dict
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify import recorded_space
from pipette_opt.verify.common import REPRODUCED, same
from pipette_opt.verify.memory import accepted_risk
from pipette_opt.worlds.bands import job_band

FILE_RULES = (
    *("verdict_is_reproduced", "band_is_reproduced", "choice_is_reproduced", "nothing_else_is_said"),
    "cluster_is_reproduced",
)
"""Names of the rules, in the order in which they are checked."""


def broken_file_rules(content: Mapping[str, Any], instance: Instance, plan: Plan) -> list[str]:
    """
    Return a line for every broken rule: its name, the recorded value and the right value.

    Parameters
    ----------
    content
        Content of the plan file. A file of an older version may lack the verdict.
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
    """Yield a problem if the recorded verdict differs from the verdict that follows from the plan."""
    recorded, right = content.get("verdict"), plan.verdict
    if recorded not in (None, right):
        yield f"verdict is {recorded!r}, but the plan says {right!r}"


def _band_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Yield a problem for each field of the error band that differs from the band of measured runs like this job."""
    band = job_band(instance, plan.config, plan.estimate.iteration_time_s, plan.placement)
    if plan.estimate.band is None:
        yield f"band is missing, but measured runs like this give {band}"
        return
    for field in fields(Band):
        given, expected = getattr(plan.estimate.band, field.name), getattr(band, field.name)
        is_older = field.name == "apart" and given is None
        if not is_older and not same(given, expected, REPRODUCED):
            yield f"{field.name} is {given}, but measured runs like this give {expected}"


def choice_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Yield problems of the objective ``robust``: its value, the limits of its steps, and its lower bound.

    The value is the time multiplied by the upper end of the band. Searches of other steps are not repeated.
    """
    choice, asked = plan.certificate.chosen_by, plan.inputs.get("objective")
    objective = None if choice is None else choice.objective
    if choice is None or asked != Objective.ROBUST or objective != asked:
        if choice is not None or asked == Objective.ROBUST:
            yield f"chosen_by says {objective}, but the requested objective was {asked}"
        return
    weights, space = robust_weights(instance), recorded_space(plan)
    value = weights.factor(plan.config) * plan.estimate.iteration_time_s
    shown = choice.value if choice.shown_value is None else choice.shown_value
    if not same(shown, value, REPRODUCED):
        yield f"chosen_by has the value {shown}, but the upper end of the band is {value}"
    if shown > (1 + WITHIN + REPRODUCED) * choice.value:
        yield f"chosen_by.shown_value is {shown}, more than {WITHIN:.0%} above {choice.value}"
    factor = float("inf")
    for number, step in enumerate(choice.steps):
        limits = weights.limits_below(factor)
        if limits is None or step.limits != limits:
            yield f"chosen_by.steps[{number}] has limits {step.limits}, but those below {factor} are {limits}"
            return
        factor = step.factor
        if step.limits == space.limits and not same(step.lower_bound_s, plan.certificate.lower_bound_s, REPRODUCED):
            right_s = plan.certificate.lower_bound_s
            yield f"chosen_by.steps[{number}] bounds {step.lower_bound_s} s, but the certificate has {right_s} s"
    own = [step for step in choice.steps if step.limits == space.limits]
    fastest = plan.config if plan.fastest is None else plan.fastest.config
    if not own or not same(own[0].value, weights.factor(fastest) * plan.certificate.best_s, REPRODUCED):
        yield f"chosen_by has no step with limits {space.limits} that found the plan"
        return
    right = choice_of(Objective.ROBUST, weights, choice.steps, is_whole=choice.rest_factor is None)
    for name in ("value", "lower_bound", "gap", "rest_factor"):
        recorded, expected = getattr(choice, name), getattr(right, name)
        if not same(recorded, expected, REPRODUCED):
            yield f"chosen_by.{name} is {recorded}, but its steps give {expected}"
    if (
        choice.rest_factor is None
        and weights.limits_below(factor) is not None
        and fits_anywhere(instance, plan, factor)
    ):
        yield f"chosen_by says that nothing is left, and configurations below {factor} fit"


def fits_anywhere(instance: Instance, plan: Plan, factor: float) -> bool:
    """Return whether a configuration with a smaller band factor than ``factor`` is legal and fits in memory."""
    limits = robust_weights(instance).limits_below(factor)
    space = replace(recorded_space(plan), limits=limits or ())
    candidates = enumerate_with_reasons(instance, space).candidates
    risk = accepted_risk(plan.inputs)
    return bool(check_memory(instance, candidates, stack_predictor(instance.stack), risk).fitting)


def _nothing_else_is_said(content: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Yield a problem for each field of the file that is unknown, or that differs from the plan read from the file."""
    own_rules = ("verdict", "inputs")
    written = plan_to_dict(plan)
    yield from _other_values(
        {name: value for name, value in content.items() if name not in own_rules},
        {name: value for name, value in written.items() if name not in own_rules},
        "",
    )


def _other_values(written: Any, parsed: Any, place: str) -> Iterator[str]:
    """Yield differences between a file and the plan read from it; missing fields do not count."""
    if isinstance(written, Mapping) and isinstance(parsed, Mapping):
        for name, value in written.items():
            at = f"{place}.{name}" if place else name
            if name in parsed:
                yield from _other_values(value, parsed[name], at)
            else:
                yield f"{at} is no field of a plan"
    elif isinstance(written, list) and isinstance(parsed, list) and len(written) == len(parsed):
        for index, (item, other) in enumerate(zip(written, parsed, strict=True)):
            yield from _other_values(item, other, f"{place}[{index}]")
    elif not same(written, parsed, REPRODUCED):
        yield f"{place} is {written!r}, but is read as {parsed!r}"


def _cluster_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Yield differences between the recorded cluster and the shipped data.

    GPU types are compared with the catalogue, and a cluster without a file with the cluster that ``--nodes`` makes.
    """
    recorded = plan.inputs.get("gpus")
    if isinstance(recorded, Mapping):
        for name, capability in gpu_record(instance.cluster).items():
            if recorded.get(name) != capability:
                yield f"inputs.gpus.{name} is {recorded.get(name)}, but the catalogue has {capability}"
    domains = domain_record(instance.cluster).get("domains")
    if plan.inputs.get("domains") != domains:
        yield f"inputs.domains is {plan.inputs.get('domains')}, but the cluster has {domains}"
    cluster = plan.inputs.get("cluster")
    if isinstance(cluster, Mapping) and "document" in cluster:
        possible = possible_records(cluster)
        if not any(dict(cluster) == record for record in possible):
            nearest = possible[0] if possible else "nothing"
            yield f"inputs.cluster is {dict(cluster)}, but --nodes gives {nearest}"
