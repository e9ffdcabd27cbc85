"""Tables of a proof: the gap, the objective, the search space; sentences beside them."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.table import FAIR, GOOD, QUIET, Cell, Row, Table, share_cell
from pipette_opt.base.units import above_best, counted, percent, percent_above, seconds_text, short_seconds, words
from pipette_opt.plans.plan import Certificate, IterationTime, JointModel, Plan
from pipette_opt.plans.tables import expected_cell, expected_text
from pipette_opt.report.cells import as_rich, clock_line, value_text
from pipette_opt.specs.objective import Objective

MIN_SHARE = 1e-5
"""Smallest share of an iteration that the placement must affect for the placement gap to be shown. Chosen."""


SMALL_GAP = 0.01
"""Largest gap that is coloured as good. Chosen."""


def certificate(proof: Certificate, estimate: IterationTime) -> Table:
    """Return the expected time of the plan, its lower bound, and how far the time is above it."""
    style = f"bold {GOOD if proof.gap <= SMALL_GAP else FAIR}"
    ended = "is finished" if proof.status == "OPTIMAL" else "ended before the gap was closed"
    objective = expected_cell(estimate, proof.objective_s, "certificate.objective_s")
    bound = expected_cell(estimate, proof.lower_bound_s, "certificate.lower_bound_s")
    bounded = "ruled out by bounds" if _bounds_rule_out(proof) else "bounded, not all ruled out"
    searched = f"{counted(proof.num_candidates, 'configuration')}, {proof.num_pruned:,} {bounded}"
    return Table(
        title="Certificate",
        headers=("name", "figure >", "meaning"),
        rows=(
            ("status", Cell(proof.status, style=style), f"the search {ended}"),
            ("iteration time", objective, "critical path of the real schedule"),
            ("at least", bound, "no plan searched is faster"),
            *_gaps(proof, style),
            *_placement_gap(proof, estimate),
            ("search", Cell(f"{proof.wall_time_s:.1f} s", proof.wall_time_s, "certificate.wall_time_s"), searched),
        ),
    )


def _gaps(proof: Certificate, style: str) -> list[Row]:
    """Return rows with the gap of the plan, and of the fastest plan found if that is another one."""
    where = "above the best of the searched space"
    gap = Cell(percent_above(proof.gap), proof.gap, "certificate.gap", style)
    if proof.fastest_s is None:
        return [("at most", gap, where)]
    shown = Cell(percent_above(proof.shown_gap), proof.shown_gap, "certificate.shown_gap")
    return [("at most", shown, where), ("fastest found", gap, "above it at most; that plan is less plain")]


def _placement_gap(proof: Certificate, estimate: IterationTime) -> Iterator[Row]:
    """Yield a row with the gap of the seconds that the placement affects, if there are enough of them."""
    dependent_s = proof.placement_dependent_s
    if dependent_s >= MIN_SHARE * proof.objective_s and proof.placement_gap <= 1:
        of = f"of the {expected_text(estimate, dependent_s)} that depend on the placement"
        yield "placement gap", share_cell(proof.placement_gap, "certificate.placement_gap"), of


def chosen(plan: Plan) -> Table:
    """Return value and bound of an objective other than the time; without rows for the time."""
    rows: list[Row] = []
    if (robust := plan.certificate.robust) is not None:
        at = "certificate.robust"
        value = Cell(seconds_text(robust.value_s), robust.value_s, f"{at}.value_s")
        bound = Cell(seconds_text(robust.lower_bound_s), robust.lower_bound_s, f"{at}.lower_bound_s")
        distance = f"no plan of {counted(robust.groups, 'group')} has less; {above_best(robust.shown_gap)}"
        rows += [("upper end of the band", value, "over the fastest links"), ("bound", bound, distance)]
    if (target := plan.target) is not None:
        value = _value_cell(plan, target.value, "objective.value")
        than = "more" if Objective(target.objective).is_rate else "less"
        bound = _value_cell(plan, target.bound, "objective.bound")
        distance = f"no plan has {than}; {target.distance}"
        rows += [(words(target.objective), value, target.unit), ("bound", bound, distance)]
    return Table(title="Objective", headers=("name", "figure >", "meaning"), rows=rows)


def sizes(plan: Plan) -> Table:
    """Return value and bound of an objective for each number of GPUs; without rows for the time."""
    proofs = () if plan.target is None else plan.target.sizes
    rows = []
    for place, size in enumerate(proofs):
        at = f"objective.sizes.{place}"
        cells = (
            f"{size.num_gpus:,}",
            "-" if size.dearest is None else f"{size.dearest:g}",
            size.status,
            expected_cell(plan.estimate, size.iteration_time_s, f"{at}.iteration_time_s"),
            expected_cell(plan.estimate, size.lower_bound_s, f"{at}.lower_bound_s"),
            _value_cell(plan, size.value, f"{at}.value"),
            _value_cell(plan, size.bound, f"{at}.bound"),
        )
        rows.append(cells)
    price = "price up to >" if any(size.dearest is not None for size in proofs) else ""
    headers = ("GPUs >", price, "status", "iteration >", "at least >", "value >", "bound >")
    return Table(title="The objective for each number of GPUs", headers=headers, rows=rows)


def _value_cell(plan: Plan, value: float | None, path: str) -> Cell:
    """Return a cell with a value of the plan's objective, at the expected time."""
    if value is None or plan.target is None:
        return Cell("-")
    return Cell(f"{plan.target.expected_of(value, plan.estimate):,.4g}", value, path)


def searched(proof: Certificate) -> Table:
    """Return the values of each dimension that were searched."""
    rows = [(words(name), ", ".join(map(value_text, given))) for name, given in proof.searched.items()]
    return Table(title="What was searched", headers=("dimension", "values"), rows=rows)


def certificate_part(proof: Certificate, estimate: IterationTime) -> RenderableType:
    """Return the table of the certificate for a terminal, with lines on what it covers."""
    lines = [f"covers    {proof.scope}", f"seconds   {clock_line(estimate)}"]
    for choice, saved in proof.open_choices(SMALL_GAP):
        lines.append(f"open      {choice} may save up to {percent(saved)}")
    if proof.joint_model is not None:
        lines.append(f"model     {joint_model_text(proof.joint_model, estimate)}")
    return Group(as_rich(certificate(proof, estimate)), Text("\n".join(lines), style=QUIET))


def joint_model_text(model: JointModel, estimate: IterationTime) -> str:
    """Return the result and the size of the CP-SAT model over all configurations, in words and expected seconds."""
    is_proven = model.status == "INFEASIBLE"
    least = short_seconds(estimate.expected_of(model.bound_s))
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
