"""Rules on what a plan file says beyond the plan: its verdict, how far off its time may be, and what was assumed."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from pipette_opt.plans.plan import Band, Plan
from pipette_opt.read.bands import job_band
from pipette_opt.read.gpus import gpu_record
from pipette_opt.read.levels import domain_record
from pipette_opt.read.nominal import possible_records
from pipette_opt.report.plan_file import plan_to_dict, plan_verdict
from pipette_opt.specs import Instance
from pipette_opt.verify.common import REPRODUCED, same

FILE_RULES = ("verdict_is_reproduced", "band_is_reproduced", "nothing_else_is_said", "cluster_is_reproduced")
"""Names of the rules, in the order in which they are checked."""


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
    if plan.estimate.band is None or band is None:
        if plan.estimate.band is not band:
            yield f"band is {plan.estimate.band}, of runs like this it is {band}"
        return
    for field in fields(Band):
        given, expected = getattr(plan.estimate.band, field.name), getattr(band, field.name)
        is_older = field.name == "apart" and given is None
        if not is_older and not same(given, expected, REPRODUCED):
            yield f"{field.name} is {given}, of runs like this it is {expected}"


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
    """Where a file differs from the plan that was read from it; fields that it lacks say nothing."""
    if isinstance(said, Mapping) and isinstance(read, Mapping):
        for name, value in said.items():
            at = f"{place}.{name}" if place else name
            if name in read:
                yield from _other_values(value, read[name], at)
            else:
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
