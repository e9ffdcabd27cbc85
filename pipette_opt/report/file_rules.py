"""Rules for fields of a plan file that only the file has: band, unknown fields, cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.plans.plan import Band, Plan
from pipette_opt.read.gpus import gpu_record
from pipette_opt.read.levels import domain_record
from pipette_opt.read.nominal import record_of_options
from pipette_opt.report.plan_file import plan_to_dict
from pipette_opt.specs import Instance
from pipette_opt.verify.common import same
from pipette_opt.worlds.bands import job_band

FILE_RULES = ("band_is_reproduced", "nothing_else_is_said", "cluster_is_reproduced")
"""Names of the rules, in the order in which they are checked."""


def broken_file_rules(content: Mapping[str, Any], instance: Instance, plan: Plan) -> list[str]:
    """
    Return a line for every broken rule: its name, the recorded value and the right value.

    Parameters
    ----------
    content
        Content of the plan file.
    """
    found = (
        _band_is_reproduced(instance, plan),
        _nothing_else_is_said(content, plan),
        _cluster_is_reproduced(instance, plan),
    )
    return [f"{rule}: {problem}" for rule, problems in zip(FILE_RULES, found, strict=True) for problem in problems]


def _band_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Yield a problem for each field of the error band that differs from the band of measured runs like this job."""
    band = job_band(instance, plan.config, plan.estimate.iteration_time_s, plan.placement)
    if plan.estimate.band is None:
        yield f"band is missing, but measured runs like this give {band}"
        return
    for field in fields(Band):
        given, expected = getattr(plan.estimate.band, field.name), getattr(band, field.name)
        if not same(given, expected):
            yield f"{field.name} is {given}, but measured runs like this give {expected}"


def _nothing_else_is_said(content: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Yield a problem for each field of the file that is unknown, or that differs from the plan read from the file."""
    yield from _other_values(
        {name: value for name, value in content.items() if name != "inputs"}, plan_to_dict(plan), ""
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
    elif not same(written, parsed):
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
        try:
            right = record_of_options(cluster.get("options"), "inputs.cluster.options")
        except InputError as error:
            yield f"inputs.cluster has wrong options: {error}"
            return
        if dict(cluster) != right:
            yield f"inputs.cluster is {dict(cluster)}, but its options give {right}"
