"""Tables of a plan that people see in a terminal and on a page, and programs as pandas frames."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.table import BAD, EMPTY, FAIR, GOOD, Cell, Row, Table, count_cell, gib_cell, share_cell
from pipette_opt.base.units import difference, gib, seconds_text, words
from pipette_opt.plans.certificate import Certificate, RuledOut
from pipette_opt.plans.plainness import RISK_SHARE
from pipette_opt.plans.predicted import IterationTime, StageMemory
from pipette_opt.plans.verdict import risk_words

if TYPE_CHECKING:
    from pipette_opt.plans.plan import Alternative, Plan, Role

BEST_OF_KIND = "best searched"
"""Words for a plan than which no searched plan with the same degrees, micro-batch and recomputation is faster."""


AS_MOST = "as most run it"
"""Name of data parallelism alone on all GPUs in tables."""


UNCHECKED = ": no public run with experts checks it"
"""Reason why ZeRO 3 is not searched for models with experts."""


STEPS = {
    "legality rules": ("the launcher's rules", "accepted by the launcher"),
    "memory": ("memory", "fit in memory"),
    "fewer recomputed layers": ("fewer recomputed layers fit", "recompute no more than they must"),
    "less on the host": ("less on the host fits", "offload no more than they must"),
    "tensor overlap": ("tensor overlap fits", "overlap tensor messages if they can"),
    "no placement": ("no placement on the hosts", "fit on the hosts"),
    "work alone": ("compute time", "could win if messages took no time"),
    "best links": ("least time over the fastest links", "could win over the fastest links"),
    "judge over best links": ("full schedule over the fastest links", "could win with the full schedule"),
    "any layers": ("bound for any split of the layers", "could win with any split of the layers"),
    "search": ("placement on the hosts", "the plan"),
}
"""Words for each step of the proof: what rules configurations out, and what is true of those that are left."""


def expected_text(estimate: IterationTime, simulated_s: float | None) -> str:
    """Format simulated seconds of a plan, or of another plan of its job, as expected seconds; ``None`` as a dash."""
    return seconds_text(None if simulated_s is None else estimate.expected_of(simulated_s))


def expected_cell(estimate: IterationTime, simulated_s: float | None, path: str = "") -> Cell:
    """Return a cell that shows simulated seconds of ``plan.json`` as expected seconds."""
    return Cell(expected_text(estimate, simulated_s), simulated_s, path)


def risk_cell(risk: float | None, path: str = "") -> Cell:
    """Return a cell with a probability of running out of memory."""
    return Cell("-") if risk is None else Cell(risk_words(risk), risk, path)


def nine_in_ten(stage: StageMemory) -> str:
    """Return the peaks of a stage between which nine in ten stacks are expected, GiB."""
    low, high = stage.range_bytes
    return f"{gib(low):.1f} to {gib(high):.1f}"


def stages(memory: Sequence[StageMemory], layers: Sequence[int] = (), few: str = "") -> Table:
    """
    Return the peak memory of one GPU of each stage, GiB, its range and its risk.

    A bar shows the predicted peak (solid) and the upper end of nine in ten stacks (light) of the capacity.

    Parameters
    ----------
    layers
        Number of layers of each stage, for a frame.
    few
        Words of the title if the table has few of all stages.
    """
    of_stage = dict(enumerate(layers))
    rows = []
    for place, stage in enumerate(memory):
        at, risk = f"memory.{place}", stage.oom_probability
        style = BAD if risk > USUAL_RISK else FAIR if risk > RISK_SHARE * USUAL_RISK else GOOD
        filled = (stage.predicted_bytes / stage.capacity_bytes, stage.range_bytes[1] / stage.capacity_bytes)
        rows.append(
            (
                Cell(f"stage {stage.stage}{' *' if stage.extrapolates else ''}", stage.stage),
                Cell("", of_stage.get(stage.stage)),
                gib_cell(stage.predicted_bytes, f"{at}.predicted_gib"),
                nine_in_ten(stage),
                gib_cell(stage.upper_bytes),
                gib_cell(stage.capacity_bytes, f"{at}.capacity_gib"),
                Cell(risk_words(risk), risk, f"{at}.oom_probability", style=style, bar=filled),
                Cell("", stage.extrapolates),
            )
        )
    return Table(
        title=f"Peak memory of one GPU of each stage, GiB{few}",
        headers=("stage", "", "predicted >", "in nine of ten stacks >", "", "capacity >", "risk >", ""),
        names=(
            *("stage", "layers", "predicted_gib", "", "at_most_gib", "capacity_gib", "oom_probability"),
            "extrapolates",
        ),
        rows=rows,
        note="* outside of the predictor's training data" if any(stage.extrapolates for stage in memory) else "",
    )


def components(memory: Sequence[StageMemory]) -> Table:
    """Return the components of the predicted peak of each stage, GiB; without rows if they are unknown."""
    parts = list(dict.fromkeys(name for stage in memory for name in stage.components))
    rows = [
        (
            Cell(f"stage {stage.stage}", stage.stage),
            *(gib_cell(stage.components.get(name), f"memory.{place}.components_gib.{name}") for name in parts),
        )
        for place, stage in enumerate(memory)
        if parts
    ]
    return Table(
        title="Parts of the predicted peak, GiB",
        headers=("stage", *(f"{name} >" for name in parts)),
        names=("stage", *(f"{name}_gib" for name in parts)),
        rows=rows,
    )


def times(estimate: IterationTime, alternatives: "Iterable[Alternative]" = ()) -> Table:
    """
    Return seconds by cause: the mean of all ranks, and those on the critical path.

    A frame has the seconds of the alternatives, too, by the label of the configuration.
    """
    mean, path = estimate.breakdown, estimate.critical_path
    others = {other.config.label(): other.breakdown for other in alternatives if other.breakdown}

    def figures(simulated_s: float | None, at: str) -> tuple[Cell, Cell]:
        share = None if simulated_s is None else simulated_s / estimate.iteration_time_s
        return expected_cell(estimate, simulated_s, at), share_cell(share)

    rows = []
    for cause in dict.fromkeys(cause for by_cause in (mean, path, *others.values()) for cause in by_cause):
        seconds, share = figures(mean.get(cause), f"estimate.breakdown.{cause}")
        row = (
            Cell(words(cause), cause),
            seconds,
            replace(share, bar=(mean.get(cause, 0.0) / estimate.iteration_time_s, 0.0)),
            *figures(path.get(cause), f"estimate.critical_path.{cause}"),
            *(Cell("", by_cause.get(cause)) for by_cause in others.values()),
        )
        rows.append(row)
    whole = (Cell(seconds_text(estimate.expected_s), estimate.expected_s, "estimate.expected_s"), share_cell(1.0))
    return Table(
        title="Expected seconds by cause",
        headers=("cause", "mean of all ranks >", "share >", "critical path >", "share >", *("" for _ in others)),
        names=("cause", "this plan", "", "critical path", "", *others),
        rows=rows,
        total=("iteration", *whole, *(whole if path else ("-", "-")), *("" for _ in others)),
    )


def alternatives(plan: "Plan") -> Table:
    """
    Return the plan, the next best plans and data parallelism alone: time, risk, and why each of them lost.

    Each of the next best has a lower bound on plans with its degrees, micro-batch and recomputation.
    """
    own_s, risks = plan.estimate.iteration_time_s, [stage.oom_probability for stage in plan.memory]
    own = (expected_cell(plan.estimate, own_s), risk_cell(max(risks, default=None)), EMPTY)
    rows: list[Row] = [(plan.config.label(), *own, Cell("", len(plan.placement.nodes_used)), "this plan")]
    usual: Row = 4 * (EMPTY,)
    for at, role, other in placed(plan):
        figures, hosts = time_and_risk(plan, other, at), Cell("", len(other.hosts))
        if role == "next best":
            rows.append((other.config.label(), *figures, _least_cell(plan.estimate, other, at), hosts, other.reason))
        elif role == "usual":
            usual = (*figures, EMPTY, hosts)
    if (named := usual_words(plan)) is not None:
        rows.append((named[0], *usual, named[1]))
    return Table(
        title="The plan and the next best",
        headers=("configuration", "iteration >", "out of memory >", "at least >", "", "why not"),
        names=("configuration", "iteration_time_s", "oom_probability", "lower_bound_s", "hosts", "reason"),
        rows=rows,
    )


def placed(plan: "Plan") -> "list[tuple[str, Role, Alternative]]":
    """Return all other plans, each with its path in ``plan.json`` and its role."""
    return [(f"alternatives.{place}", role, other) for place, (role, other) in enumerate(plan.others())]


def time_and_risk(plan: "Plan", other: "Alternative", path: str) -> tuple[Cell, Cell]:
    """Return cells with the expected time and the risk of another plan; ``path`` is its path in ``plan.json``."""
    seconds = expected_cell(plan.estimate, other.iteration_time_s, f"{path}.iteration_time_s")
    return seconds, risk_cell(other.oom_probability, f"{path}.oom_probability")


def _least_cell(estimate: IterationTime, other: "Alternative", path: str) -> Cell:
    """Return a cell with the lower bound on plans like another plan, or that the other plan is the best of them."""
    if other.is_proven:
        return Cell(BEST_OF_KIND, other.lower_bound_s)
    return expected_cell(estimate, other.lower_bound_s, f"{path}.lower_bound_s")


def usual_words(plan: "Plan") -> tuple[str, str] | None:
    """
    Return the name of data parallelism alone, as most run it, and how much slower it is, or why it is no choice.

    ``None`` if the plan does not record it.
    """
    usual, config = plan.usual, plan.config
    if usual is None:
        is_usual = config.data_parallel_size == config.world_size > 1
        return (AS_MOST, "this plan") if is_usual else None
    if usual.plan is None or usual.plan.iteration_time_s is None:
        return f"{AS_MOST}: data parallelism alone, with ZeRO 1 or 3", usual.problem
    ratio = usual.plan.iteration_time_s / plan.estimate.iteration_time_s
    has_experts = (plan.inputs.get("model") or {}).get("num_experts") is not None
    faster = f"faster, not searched{UNCHECKED if has_experts else ''}"
    return f"{AS_MOST}: {usual.plan.config.label()}", difference(ratio, "slower", faster, "as fast")


def ruled_out(certificate: Certificate, estimate: IterationTime) -> Table:
    """Return the number of configurations that each step of the proof ruled out, by rule, bound or engine."""
    rows: list[Row] = []
    for number, part in enumerate(certificate.proof):
        at = f"certificate.proof.{number}"
        least = expected_cell(estimate, part.bound_s, f"{at}.bound_s") if part.bound_s else Cell("", part.bound_s)
        by, _ = STEPS.get(part.by, (part.by, ""))
        unnamed = RuledOut(name="", configurations=part.configurations, example="")
        reasons = [(f"{at}.named.{place}", reason) for place, reason in enumerate(part.named)] or [(at, unnamed)]
        for path, reason in reasons:
            count = count_cell(reason.configurations, f"{path}.configurations")
            rows.append((Cell(by, part.by), Cell("", reason.name), count, least, reason.example))
            least = Cell("", part.bound_s)
    return Table(
        title="Configurations by the reason that ruled them out",
        headers=("ruled out by", "", "configurations >", "at least >", "for example"),
        names=("by", "name", "configurations", "bound_s", "example"),
        rows=rows,
    )
