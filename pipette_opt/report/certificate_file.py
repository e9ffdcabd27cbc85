"""Reading and writing the certificate of ``plan.json``."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from pipette_opt.plans.plan import Certificate, JointModel, Proof, RuledOut
from pipette_opt.report.chosen_file import read_choice
from pipette_opt.report.entries import Entries
from pipette_opt.report.json_text import plain

FORMER_STEPS = {"groups of hosts": "any layers"}
"""Names of proof steps in older plans, and today's names."""


def certificate_to_dict(certificate: Certificate) -> dict[str, Any]:
    """Return the certificate as ``plan.json`` has it."""
    content = asdict(certificate)
    names = "searched", "not_searched", "proof", "chosen_by"
    return {
        **content,
        **plain({name: content[name] for name in names}),
        "fastest_s": certificate.fastest_s,
        "shown_gap": certificate.shown_gap,
    }


def read_certificate(certificate: Entries, iteration_time_s: float) -> Certificate:
    """
    Read a certificate.

    A certificate of an older version may bound the analytical 1F1B model; it is turned into one of the simulated time.
    """
    names = (
        "objective_s",
        "lower_bound_s",
        "gap",
        "placement_dependent_s",
        "placement_gap",
        "judge_lower_bound_s",
        "wall_time_s",
    )
    numbers: dict[str, Any] = {name: certificate.number(name) for name in names}
    found = Certificate(
        **numbers,
        status=certificate.text("status"),
        scope=certificate.text("scope"),
        num_candidates=certificate.whole("num_candidates"),
        num_pruned=certificate.whole("num_pruned"),
        **_later_proofs(certificate),
    )
    if "searched" in certificate.data or found.objective_s == iteration_time_s or iteration_time_s <= 0:
        return found
    bound_s = min(found.judge_lower_bound_s, iteration_time_s)
    dependent_s = min(found.placement_dependent_s, iteration_time_s)
    return replace(
        found,
        status="FEASIBLE",
        objective_s=iteration_time_s,
        lower_bound_s=bound_s,
        judge_lower_bound_s=bound_s,
        gap=(iteration_time_s - bound_s) / iteration_time_s,
        placement_dependent_s=dependent_s,
        placement_gap=(iteration_time_s - bound_s) / dependent_s if dependent_s > 0 else 0.0,
    )


def _later_proofs(certificate: Entries) -> dict[str, Any]:
    """Read the fields that files of the current version may lack; absent fields keep their defaults."""
    readers: dict[str, Callable[[str], Any]] = {
        "searched": lambda name: {
            key: tuple(values) for key, values in certificate.mapping(name).data.items() if isinstance(values, list)
        },
        "not_searched": lambda name: tuple(certificate.texts(name)),
        "proof": lambda name: tuple(
            Proof(
                by=FORMER_STEPS.get(step.text("by"), step.text("by")),
                configurations=step.whole("configurations"),
                bound_s=step.optional("bound_s", step.number),
                named=tuple(map(_read_ruled_out, step.mappings("named") if "named" in step.data else ())),
            )
            for step in certificate.mappings(name)
        ),
        "joint_model": lambda name: certificate.optional(name, lambda key: _read_joint_model(certificate.mapping(key))),
        "chosen_by": lambda name: certificate.optional(name, lambda key: read_choice(certificate.mapping(key))),
        "fastest_s": lambda name: certificate.optional(name, certificate.positive),
    }
    return {name: read(name) for name, read in readers.items() if name in certificate.data}


def _read_ruled_out(entry: Entries) -> RuledOut:
    return RuledOut(
        name=entry.text("name"), configurations=entry.whole("configurations", 1), example=entry.text("example")
    )


def _read_joint_model(model: Entries) -> JointModel:
    counts = {name: model.whole(name) for name in ("families", "variables", "constraints", "solves", "splits")}
    return JointModel(
        **counts, seconds=model.number("seconds"), status=model.text("status"), bound_s=model.number("bound_s")
    )
