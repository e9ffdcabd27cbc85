"""Tables of a certificate: the gap, the search space, and the reasons that excluded configurations."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipette_opt.base.units import above_best, counted, percent, percent_above
from pipette_opt.plans.certificate import Robust
from pipette_opt.plans.plan import Certificate, IterationTime, JointModel
from pipette_opt.report.cells import (
    FAIR,
    GOOD,
    QUIET,
    clock_line,
    columns_table,
    expected_text,
    seconds_text,
    spaced,
    titled,
    words,
)

MIN_SHARE = 1e-5
"""Smallest share of an iteration that the placement must affect for the placement gap to be shown. Chosen."""


SMALL_GAP = 0.01
"""Largest gap that is coloured as good. Chosen."""


def certificate_table(certificate: Certificate, estimate: IterationTime) -> RenderableType:
    """Table of the proof: expected time of the plan, its lower bound, and how far the time is above it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET)
    table.add_column(justify="right")
    table.add_column(style=QUIET)
    style = GOOD if certificate.gap <= SMALL_GAP else FAIR
    ended = "is finished" if certificate.status == "OPTIMAL" else "ended before the gap was closed"
    table.add_row(Text("status"), Text(certificate.status, style=f"bold {style}"), Text(f"the search {ended}"))
    for row in (
        ("iteration time", expected_text(estimate, certificate.objective_s), "critical path of the real schedule"),
        ("at least", expected_text(estimate, certificate.lower_bound_s), "no plan searched can be faster"),
    ):
        table.add_row(*map(Text, row))
    above, where = Text(percent_above(certificate.gap), style=f"bold {style}"), "above the best of the searched space"
    if certificate.fastest_s is not None:
        table.add_row("at most", Text(percent_above(certificate.shown_gap)), where)
        table.add_row("fastest found", above, "above it at most; that plan is less plain")
    else:
        table.add_row("at most", above, where)
    dependent_s = certificate.placement_dependent_s
    if dependent_s >= MIN_SHARE * certificate.objective_s and certificate.placement_gap <= 1:
        share = f"of the {expected_text(estimate, dependent_s)} that depend on the placement"
        table.add_row(Text("placement gap"), Text(percent(certificate.placement_gap)), Text(share))
    bounded = "ruled out by bounds" if _bounds_rule_out(certificate) else "bounded, not all ruled out"
    searched = (
        f"{counted(certificate.num_candidates, 'configuration')}, {certificate.num_pruned:,} {bounded}, "
        f"{certificate.wall_time_s:.1f} s"
    )
    lines = [
        f"covers    {certificate.scope}",
        f"searched  {searched}",
        f"seconds   {clock_line(estimate)}",
    ]
    for choice, saved in certificate.open_choices(SMALL_GAP):
        lines.append(f"open      {choice} may save up to {100 * saved:.3g} %")
    if certificate.joint_model is not None:
        lines.append(f"model     {joint_model_text(certificate.joint_model, estimate)}")
    details = Text("\n".join(lines), style=QUIET)
    return titled("Certificate", Group(table, details, *robust_lines(certificate.robust)))


def robust_lines(robust: Robust | None) -> list[RenderableType]:
    """Return a line on the upper end of the band, if that is the objective: value, bound and gap."""
    if robust is None:
        return []
    text = (
        f"chosen by the upper end of the band: {seconds_text(robust.value_s)}, {robust.factor:.4g} times the simulated "
        f"time; at least {seconds_text(robust.lower_bound_s)} for all {counted(robust.groups, 'group')} of "
        f"configurations; {above_best(robust.shown_gap)}"
    )
    return [words(text)]


def proof_tables(certificate: Certificate, estimate: IterationTime) -> list[RenderableType]:
    """Table with the number of configurations that each reason excluded."""
    rows = [(part, reason) for part in certificate.proof for reason in part.named]
    if not rows:
        return []
    table = columns_table("ruled out by", "", "configurations >", "at least >", "for example")
    for number, (part, reason) in enumerate(rows):
        first = number == 0 or rows[number - 1][0] is not part
        least = "" if part.bound_s is None or not first else expected_text(estimate, part.bound_s)
        name = "" if reason.name == part.by else reason.name
        table.add_row(part.by if first else "", name, f"{reason.configurations:,}", least, reason.example)
    return [spaced(table)]


def joint_model_text(model: JointModel, estimate: IterationTime) -> str:
    """Return the result and the size of the CP-SAT model over all configurations, in words and expected seconds."""
    is_proven = model.status == "INFEASIBLE"
    least = f"{estimate.expected_of(model.bound_s):.4g} s"
    found = "no other split is faster" if is_proven else f"no other split takes less than {least}"
    if not model.solves and is_proven:
        return "Bounds alone show that no other split of the layers over the stages is faster"
    if not model.solves:
        return f"CP-SAT had no time for other splits of the layers over the stages; by bounds alone {found}"
    more = f"{counted(model.splits, 'further split')} of the layers searched, " if model.splits else ""
    return (
        "CP-SAT chose degrees, layers of each stage and types of GPU together for "
        f"{counted(model.families, 'set')} of configurations ({counted(model.variables, 'variable')}, "
        f"{counted(model.constraints, 'constraint')}, {counted(model.solves, 'solve')}, {model.seconds:.1f} s): "
        f"{more}{found}"
    )


def _bounds_rule_out(certificate: Certificate) -> bool:
    """
    Return whether bounds prove that every configuration outside of the search is slower than the plan.

    After a search that was cut off, bounds may leave configurations open.
    """
    bounds = [part.bound_s for part in certificate.proof if part.by != "search" and part.bound_s is not None]
    return certificate.status == "OPTIMAL" or all(bound_s >= certificate.objective_s for bound_s in bounds)
