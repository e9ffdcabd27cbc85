"""Tables of a finished plan as pandas data frames, in seconds, GiB and shares."""

from html import escape
from typing import TYPE_CHECKING

import msgspec

from pipette_opt.base.units import counted, gib, three_digits
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan, rank_rows

if TYPE_CHECKING:
    from pandas import DataFrame


def stage_frame(plan: Plan) -> "DataFrame":
    """
    Return a table with a row for each pipeline stage, by stage number.

    Columns: ``layers``; peak memory of one GPU in GiB: ``predicted_gib``, ``at_most_gib`` and ``capacity_gib``;
    ``oom_probability``, in [0, 1]; ``extrapolates``; GiB of each memory component such as ``weights_gib``, where the
    plan has components.
    """
    from pandas import DataFrame, Index

    layers = dict(enumerate(plan.config.layers_per_stage))
    rows = [
        {
            "layers": layers.get(stage.stage),
            "predicted_gib": gib(stage.predicted_bytes),
            "at_most_gib": gib(stage.upper_bytes),
            "capacity_gib": gib(stage.capacity_bytes),
            "oom_probability": stage.oom_probability,
            "extrapolates": stage.extrapolates,
            **{f"{name}_gib": gib(size) for name, size in stage.components.items()},
        }
        for stage in plan.memory
    ]
    return DataFrame(rows, index=Index([stage.stage for stage in plan.memory], name="stage"))


def time_frame(plan: Plan) -> "DataFrame":
    """
    Return a table with a row for each cause of time, by the name of the cause.

    Columns, in seconds: ``this plan`` (mean of all ranks), ``critical path``, and each alternative by the label of its
    configuration. Each column adds up to the iteration time of that plan. Alternatives without causes, from older
    versions, have no column.
    """
    from pandas import DataFrame

    parts = {"this plan": plan.estimate.breakdown, "critical path": plan.estimate.critical_path}
    parts |= {other.config.label(): other.breakdown for other in plan.alternatives}
    return DataFrame({name: dict(causes) for name, causes in parts.items() if causes}).fillna(0.0).rename_axis("cause")


def alternative_frame(plan: Plan) -> "DataFrame":
    """
    Return a table with the plan, then its alternatives, by the label of the configuration.

    Columns: ``iteration_time_s``; ``share``, the time over the plan's time; ``oom_probability`` of the fullest stage;
    ``hosts``, their number; ``reason`` why an alternative lost. NaN if an alternative was not simulated.
    """
    from pandas import DataFrame, Index

    best_s = plan.estimate.iteration_time_s
    risk = max((stage.oom_probability for stage in plan.memory), default=None)
    used = len(plan.placement.nodes_used)
    rows: list[tuple[ParallelConfig, float | None, float | None, int, str]]
    rows = [(plan.config, best_s, risk, used, "this plan")]
    rows += [
        (other.config, other.iteration_time_s, other.oom_probability, len(other.hosts), other.reason)
        for other in plan.alternatives
    ]
    frame = DataFrame(
        {
            "iteration_time_s": [seconds for _, seconds, *_ in rows],
            "oom_probability": [chance for *_, chance, _, _ in rows],
            "hosts": [hosts for *_, hosts, _ in rows],
            "reason": [reason for *_, reason in rows],
        },
        index=Index([config.label() for config, *_ in rows], name="configuration"),
    ).astype({"iteration_time_s": float, "oom_probability": float})
    frame.insert(1, "share", frame["iteration_time_s"] / best_s)
    return frame


def rank_frame(plan: Plan) -> "DataFrame":
    """
    Return a table with a row for each rank, by rank number.

    Columns: ``host``, ``local_rank`` (number of the GPU on the host), and the coordinates of the rank in the groups
    ``tp``, ``cp``, ``ep``, ``dp`` and ``pp``.
    """
    from pandas import DataFrame

    return DataFrame(msgspec.to_builtins(rank_rows(plan))).set_index("rank")


def proof_frame(plan: Plan) -> "DataFrame":
    """
    Return a table with a row for each rule, bound or engine that ruled out configurations; empty for older plans.

    Columns: ``by``, the step of the search; ``name`` of the rule, bound or engine; ``configurations``, their number;
    ``bound_s``, lower bound on the time of all plans that the step ruled out, or NaN; ``example``, a configuration that
    was ruled out.
    """
    from pandas import DataFrame

    columns = ["by", "name", "configurations", "bound_s", "example"]
    rows = [
        (part.by, ruled_out.name, ruled_out.configurations, part.bound_s, ruled_out.example)
        for part in plan.certificate.proof
        for ruled_out in part.named
    ]
    return DataFrame(rows, columns=columns).astype({"bound_s": float})


def html_of(plan: Plan, verdict: str) -> str:
    """Return the plan as HTML for a notebook: verdict, configuration, time, and memory of each stage."""
    used, estimate = len(plan.placement.nodes_used), plan.estimate
    columns = ["layers", "predicted_gib", "at_most_gib", "capacity_gib", "oom_probability"]
    stages = stage_frame(plan).reindex(columns=columns)
    facts = (
        f"{three_digits(estimate.expected_tokens_per_s)} tokens/s, MFU {three_digits(100 * estimate.expected_mfu)} %, "
        f"gap {plan.certificate.gap:.2%} ({plan.certificate.status})"
    )
    where = f"{counted(used, 'host')}, {counted(plan.config.world_size, 'GPU')}"
    return (
        f"<p><strong>{escape(verdict)}</strong></p><p><code>{escape(plan.config.label())}</code> on {where}</p>"
        f"<p>{escape(facts)}</p>{stages.to_html(float_format='{:.4g}'.format, border=0, max_rows=16)}"
    )
