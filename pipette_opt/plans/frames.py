"""A finished plan as pandas tables, in units of people: seconds, GiB, shares."""

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
    A row for each pipeline stage, by its number.

    Columns: ``layers``; of the peak of one of its GPUs ``predicted_gib``, ``at_most_gib`` and ``capacity_gib`` (GiB),
    ``oom_probability`` in [0, 1], ``extrapolates``; GiB of each component, ``weights_gib`` and so on, where the plan
    has them.
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
    A row for each cause of time, by its name.

    Columns: seconds of ``this plan`` (the mean of all ranks), of its ``critical path``, and of each alternative by the
    label of its configuration; each adds up to the iteration time of that plan. Alternatives of older plans are left
    out, whose causes are not known.
    """
    from pandas import DataFrame

    parts = {"this plan": plan.estimate.breakdown, "critical path": plan.estimate.critical_path}
    parts |= {other.config.label(): other.breakdown for other in plan.alternatives}
    return DataFrame({name: dict(causes) for name, causes in parts.items() if causes}).fillna(0.0).rename_axis("cause")


def alternative_frame(plan: Plan) -> "DataFrame":
    """
    The plan and the next best, fastest first, by the label of their configuration.

    Columns: ``iteration_time_s``, its ``share`` of the plan's, ``oom_probability`` of the fullest stage, ``hosts`` (how
    many) and ``reason``, why it lost; NaN where it was not simulated.
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
    A row for each rank, by its number.

    Columns: ``host``, ``local_rank`` (the GPU of that host), and its coordinates in the groups ``tp``, ``cp``, ``ep``,
    ``dp`` and ``pp``.
    """
    from pandas import DataFrame

    return DataFrame(msgspec.to_builtins(rank_rows(plan))).set_index("rank")


def proof_frame(plan: Plan) -> "DataFrame":
    """
    A row for each name that ruled configurations out, in the order of the search; none for older plans.

    Columns: ``by`` (the step), ``name`` (of a rule, a bound or an engine), ``configurations`` (how many), ``bound_s``
    (no plan of the step's is faster; NaN where none can run) and ``example``.
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
    """Render the plan for a notebook: verdict, configuration, time, and memory of its stages."""
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
