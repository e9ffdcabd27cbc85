"""
``plan.json``: writing a finished plan, and reading it.

Other programs read the file, too: its fields are published in ``data/schemas/plan.schema.json``. Derived fields
(coordinates, micro-batches) are written as well, and are checked when the file is read.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipette_opt.base.errors import InputError, OverwriteError
from pipette_opt.base.files import note_input, write_atomically
from pipette_opt.base.types import Launcher, P2PMode, RankOrder
from pipette_opt.base.units import GIB
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.plan import (
    SCHEMA_VERSION,
    SIZE_STATUSES,
    Alternative,
    Band,
    Baseline,
    Imbalance,
    IterationTime,
    Plan,
    RankRow,
    RiskChoice,
    SizeProof,
    StageMemory,
    Target,
    rank_rows,
)
from pipette_opt.plans.verdict import plan_verdict
from pipette_opt.read.files import parse_json, read_text
from pipette_opt.read.hosts import checked_host
from pipette_opt.read.kinds_of_files import PLAN_FILE, reads
from pipette_opt.report.certificate_file import certificate_to_dict, read_certificate
from pipette_opt.report.config_file import config_to_dict, read_config
from pipette_opt.report.entries import Entries, damaged
from pipette_opt.report.json_text import json_text, plain
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import Direction, Effect
from pipette_opt.specs.objective import Objective


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the content of ``plan.json``, in the order in which it is written."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created": plan.created,
        "verdict": plan_verdict(plan),
        "inputs": plain(plan.inputs),
        "seed": plan.seed,
        "versions": dict(plan.versions),
        "launcher": plan.launcher,
        "rank_order": plan.placement.order,
        "p2p": plan.p2p,
        "nccl_algorithm": plan.nccl_algorithm,
        "hosts": list(plan.hosts),
        "gpus_per_node": plan.gpus_per_node,
        "parallel": config_to_dict(plan.config, plan.global_batch_size),
        "placement": [row._asdict() for row in rank_rows(plan)],
        "unused_hosts": [{"host": host, "reason": reason} for host, reason in plan.unused_hosts.items()],
        "certificate": certificate_to_dict(plan.certificate),
        "objective": None if plan.target is None else _target_to_dict(plan.target),
        "estimate": estimate_to_dict(plan.estimate),
        "memory": [_memory_to_dict(stage) for stage in plan.memory],
        "fastest": None if plan.fastest is None else _alternative_to_dict(plan.fastest, plan.global_batch_size),
        "risks": [_risk_to_dict(item, plan.global_batch_size) for item in plan.risks],
        "imbalance": None if plan.imbalance is None else asdict(plan.imbalance),
        "alternatives": [_alternative_to_dict(item, plan.global_batch_size) for item in plan.alternatives],
        "baselines": [_baseline_to_dict(item, plan.global_batch_size) for item in plan.baselines],
        "not_modelled": [asdict(item) for item in plan.not_modelled],
        "notes": list(plan.notes),
    }


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write ``plan.json`` atomically. ``InputError`` if the path cannot be written."""
    text = json_text(plan_to_dict(plan)) + "\n"
    try:
        write_atomically(Path(path), text)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror or error}.") from None


def keep_plan(plan: Plan, path: str | Path) -> None:
    """
    Write ``plan.json``, or keep the plan of a long search in the folder for temporary files if that fails.

    ``InputError`` if the path cannot be written, with the path of the kept plan.
    """
    try:
        write_plan(plan, path)
    except (InputError, OverwriteError) as error:
        try:
            kept = Path(tempfile.mkdtemp(prefix="pipette-opt-")) / "plan.json"
            write_plan(plan, kept)
        except (InputError, OSError):
            raise error from None
        raise InputError(error.where, f"{error.problem} The plan is kept in {kept}.") from None


@reads(PLAN_FILE)
def read_plan(path: str | Path) -> Plan:
    """Read ``plan.json``. ``InputError`` names the file and the field that is damaged."""
    text = read_text(path)
    if not text.strip():
        raise InputError(str(path), "is empty; it must be a plan that `solve` wrote.")
    content = parse_json(text, str(path))
    if isinstance(content, dict):
        _note_inputs(content.get("inputs"), Path(path))
    return plan_from_dict(content, str(path))


def _note_inputs(inputs: object, path: Path) -> None:
    """Protect the files that a plan names from being overwritten, at their path or beside the plan."""
    for recorded in inputs.values() if isinstance(inputs, dict) else ():
        if not isinstance(recorded, dict) or not isinstance(recorded.get("path"), str):
            continue
        named = Path(recorded["path"])
        for place in (named, path.parent / named, path.parent / named.name):
            note_input(place)
            for parts in (recorded.get("matrices"), recorded.get("inside_matrices")):
                for name in parts if isinstance(parts, dict) else ():
                    note_input(place.parent / name)


def plan_from_dict(content: object, where: str = "plan") -> Plan:
    """Make a plan from the content of ``plan.json``; ``where`` begins every error message."""
    top = Entries(where, "", content)
    version = top.whole("schema_version")
    if version != SCHEMA_VERSION:
        raise damaged(where, "schema_version", f"is {version}; this program reads version {SCHEMA_VERSION}.")
    parallel = top.mapping("parallel")
    config, global_batch_size = read_config(parallel)
    hosts = tuple(checked_host(host, f"{where}, hosts[{place}]") for place, host in enumerate(top.texts("hosts")))
    if len(set(hosts)) < len(hosts):
        raise damaged(where, "hosts", "names a host more than once.")
    estimate = _read_estimate(top.mapping("estimate"))
    plan = Plan(
        config=config,
        placement=_read_placement(top, config, hosts),
        hosts=hosts,
        gpus_per_node=top.whole("gpus_per_node", minimum=1),
        global_batch_size=global_batch_size,
        launcher=top.choice("launcher", get_args(Launcher)),
        p2p=top.choice("p2p", get_args(P2PMode)),
        certificate=read_certificate(top.mapping("certificate"), estimate.iteration_time_s),
        estimate=estimate,
        memory=tuple(_read_memory(entries) for entries in top.mappings("memory")),
        unused_hosts={entries.text("host"): entries.text("reason") for entries in top.mappings("unused_hosts")},
        fastest=_read_alternative(top.mapping("fastest")) if top.data.get("fastest") else None,
        risks=tuple(_read_risk(entries) for entries in top.mappings("risks")) if "risks" in top.data else (),
        imbalance=_read_imbalance(top.mapping("imbalance")) if top.data.get("imbalance") else None,
        alternatives=tuple(_read_alternative(entries) for entries in top.mappings("alternatives")),
        baselines=tuple(_read_baseline(entries) for entries in top.mappings("baselines")),
        inputs=dict(top.mapping("inputs").data),
        not_modelled=_read_not_modelled(top),
        target=_read_target(top.mapping("objective")) if top.data.get("objective") else None,
        notes=tuple(top.texts("notes")),
        nccl_algorithm=top.text("nccl_algorithm"),
        seed=top.whole("seed"),
        created=top.text("created"),
        versions={name: str(version) for name, version in top.mapping("versions").data.items()},
    )
    _check_coordinates(top, plan)
    return plan


def _target_to_dict(target: Target) -> dict[str, Any]:
    return {**asdict(target), "sizes": [asdict(size) for size in target.sizes]}


def _read_target(objective: Entries) -> Target:
    """Read the objective of the plan. ``InputError`` unless the gap follows from value and bound."""
    target = Target(
        objective=objective.choice("objective", tuple(map(str, Objective))),
        unit=objective.text("unit"),
        value=objective.positive("value"),
        bound=objective.positive("bound"),
        gap=objective.number("gap"),
        sizes=tuple(
            SizeProof(
                num_gpus=entries.whole("num_gpus", minimum=1),
                status=entries.choice("status", SIZE_STATUSES),
                **{
                    name: entries.optional(name, entries.positive)
                    for name in ("dearest", "iteration_time_s", "lower_bound_s", "value", "bound")
                },
            )
            for entries in objective.mappings("sizes")
        ),
        best_value=objective.optional("best_value", objective.positive) if "best_value" in objective.data else None,
    )
    best = target.value if target.best_value is None else target.best_value
    more = target.bound / best if Objective(target.objective).is_rate else best / target.bound
    if abs(target.gap - (1 - 1 / more)) > 1e-6:
        raise damaged(objective.where, objective.at("gap"), f"is {target.gap}, value and bound give {1 - 1 / more}.")
    return target


def _read_placement(top: Entries, config: ParallelConfig, hosts: tuple[str, ...]) -> Placement:
    """Read the rank map. ``InputError`` unless ranks are 0, 1, ... in order, on hosts of the list."""
    rows = top.mappings("placement")
    if len(rows) != config.world_size:
        raise damaged(top.where, "placement", f"has {len(rows)} ranks, but the degrees give {config.world_size}.")
    index = {host: number for number, host in enumerate(hosts)}
    node, local_rank = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    for rank, row in enumerate(rows):
        if row.whole("rank") != rank:
            raise damaged(
                row.where, row.at("rank"), f"is {row.whole('rank')}; the ranks must be in order, here {rank}."
            )
        host = row.text("host")
        if host not in index:
            raise damaged(row.where, row.at("host"), f"is {host!r}, which is not among the hosts of the file.")
        node[rank], local_rank[rank] = index[host], row.whole("local_rank")
    return Placement(order=top.choice("rank_order", get_args(RankOrder)), node=node, local_rank=local_rank)


def _check_coordinates(top: Entries, plan: Plan) -> None:
    """Check that the coordinates in the file follow from its rank order."""
    for row, expected in zip(top.mappings("placement"), rank_rows(plan), strict=True):
        for name in RankRow._fields[3:]:
            found, right = row.whole(name), getattr(expected, name)
            if found != right:
                order = plan.placement.order
                raise damaged(row.where, row.at(name), f"is {found}; rank {expected.rank} of {order} has {right}.")


def estimate_to_dict(estimate: IterationTime) -> dict[str, Any]:
    """Return the estimate as ``plan.json`` has it."""
    band = estimate.band
    return {
        "iteration_time_s": estimate.iteration_time_s,
        "tokens_per_s": estimate.tokens_per_s,
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "mfu": estimate.mfu,
        "expected_s": estimate.expected_s,
        "expected_tokens_per_s": estimate.expected_tokens_per_s,
        "expected_tokens_per_s_per_gpu": estimate.expected_tokens_per_s_per_gpu,
        "expected_mfu": estimate.expected_mfu,
        "hfu": estimate.hfu,
        "breakdown": dict(estimate.breakdown),
        "critical_path": dict(estimate.critical_path),
        "band": None
        if band is None
        else {
            "low_s": band.low_s,
            "high_s": band.high_s,
            "share": band.share,
            "from": band.source,
            "runs": band.runs,
            "apart": band.apart,
        },
    }


def _read_estimate(estimate: Entries) -> IterationTime:
    """Read the estimate; files of older versions lack some fields."""
    band = None
    if estimate.data.get("band") is not None:
        given = estimate.mapping("band")
        numbers = {name: given.number(name) for name in ("low_s", "high_s", "share")}
        apart = given.optional("apart", given.positive) if "apart" in given.data else None
        has_middle = "expected_s" in estimate.data
        numbers["middle_s"] = estimate.positive("expected_s") if has_middle else _middle(**numbers)
        band = Band(**numbers, source=given.text("from"), runs=given.whole("runs"), apart=apart)
    path = estimate.mapping("critical_path").numbers() if "critical_path" in estimate.data else {}
    return IterationTime(
        iteration_time_s=estimate.positive("iteration_time_s"),
        tokens_per_s=estimate.number("tokens_per_s"),
        tokens_per_s_per_gpu=estimate.number("tokens_per_s_per_gpu"),
        mfu=estimate.number("mfu"),
        hfu=estimate.optional("hfu", estimate.number) if "hfu" in estimate.data else None,
        breakdown=estimate.mapping("breakdown").numbers(),
        critical_path=path,
        band=band,
    )


def _middle(low_s: float, high_s: float, share: float) -> float:
    """Geometric middle of a band of an older file, which has its ends only; errors are factors."""
    return float(np.sqrt(max(low_s * high_s, 0.0)))


def _memory_to_dict(stage: StageMemory) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "predicted_gib": stage.predicted_bytes / GIB,
        "upper_gib": stage.upper_bytes / GIB,
        "capacity_gib": stage.capacity_bytes / GIB,
        "oom_probability": stage.oom_probability,
        "oom_probability_at_most": stage.oom_probability_at_most,
        "extrapolates": stage.extrapolates,
        "components_gib": {name: size / GIB for name, size in stage.components.items()},
    }


def _read_memory(stage: Entries) -> StageMemory:
    return StageMemory(
        stage=stage.whole("stage"),
        predicted_bytes=round(stage.number("predicted_gib") * GIB),
        upper_bytes=round(stage.number("upper_gib") * GIB),
        capacity_bytes=round(stage.positive("capacity_gib") * GIB),
        oom_probability=stage.number("oom_probability"),
        oom_probability_at_most="oom_probability_at_most" in stage.data and stage.flag("oom_probability_at_most"),
        extrapolates=stage.flag("extrapolates"),
        components=_read_components(stage),
    )


def _read_components(stage: Entries) -> dict[str, int]:
    """Read the parts of the peak in bytes; files of older versions have none."""
    if "components_gib" not in stage.data:
        return {}
    return {name: round(size * GIB) for name, size in stage.mapping("components_gib").numbers().items()}


def _alternative_to_dict(alternative: Alternative, global_batch_size: int) -> dict[str, Any]:
    return {
        "parallel": config_to_dict(alternative.config, global_batch_size),
        "hosts": list(alternative.hosts),
        "iteration_time_s": alternative.iteration_time_s,
        "oom_probability": alternative.oom_probability,
        "oom_probability_at_most": alternative.oom_probability_at_most,
        "reason": alternative.reason,
        "slots": None if alternative.slots is None else [list(gpus) for gpus in alternative.slots],
        "breakdown": dict(alternative.breakdown),
        "lower_bound_s": alternative.lower_bound_s,
    }


def _risk_to_dict(choice: RiskChoice, global_batch_size: int) -> dict[str, Any]:
    return {
        "max_oom_risk": choice.max_oom_risk,
        "plan": _alternative_to_dict(choice.plan, global_batch_size),
        "upper_gib": choice.upper_bytes / GIB,
        "capacity_gib": choice.capacity_bytes / GIB,
    }


def _read_risk(entries: Entries) -> RiskChoice:
    return RiskChoice(
        max_oom_risk=entries.positive("max_oom_risk"),
        plan=_read_alternative(entries.mapping("plan")),
        upper_bytes=round(entries.number("upper_gib") * GIB),
        capacity_bytes=round(entries.positive("capacity_gib") * GIB),
    )


def _read_imbalance(entries: Entries) -> Imbalance:
    return Imbalance(
        expert_imbalance=entries.positive("expert_imbalance"),
        iteration_time_s=entries.positive("iteration_time_s"),
        oom_probability=entries.number("oom_probability"),
    )


def _read_alternative(entries: Entries) -> Alternative:
    return Alternative(
        config=read_config(entries.mapping("parallel"))[0],
        hosts=tuple(entries.texts("hosts")),
        iteration_time_s=entries.optional("iteration_time_s", entries.number),
        oom_probability=entries.optional("oom_probability", entries.number),
        oom_probability_at_most="oom_probability_at_most" in entries.data and entries.flag("oom_probability_at_most"),
        reason=entries.text("reason"),
        slots=_read_slots(entries) if entries.data.get("slots") is not None else None,
        breakdown=entries.mapping("breakdown").numbers() if "breakdown" in entries.data else {},
        lower_bound_s=entries.optional("lower_bound_s", entries.number) if "lower_bound_s" in entries.data else None,
    )


def _read_slots(entries: Entries) -> tuple[tuple[int, ...], ...]:
    """Read the GPUs of each host in rank order."""
    rows = entries.data["slots"]
    good = isinstance(rows, list) and all(
        isinstance(row, list) and all(isinstance(gpu, int) and not isinstance(gpu, bool) for gpu in row) for row in rows
    )
    if not good:
        raise damaged(entries.where, entries.at("slots"), "must be a list of GPUs for each host.")
    return tuple(map(tuple, rows))


def _baseline_to_dict(baseline: Baseline, global_batch_size: int) -> dict[str, Any]:
    return {
        "name": baseline.name,
        "parallel": config_to_dict(baseline.config, global_batch_size),
        "iteration_time_s": baseline.iteration_time_s,
        "objective_s": baseline.objective_s,
        "wall_time_s": baseline.wall_time_s,
    }


def _read_baseline(entries: Entries) -> Baseline:
    return Baseline(
        name=entries.text("name"),
        config=read_config(entries.mapping("parallel"))[0],
        iteration_time_s=entries.number("iteration_time_s"),
        objective_s=entries.number("objective_s"),
        wall_time_s=entries.number("wall_time_s"),
    )


def _read_not_modelled(top: Entries) -> tuple[NotModelled, ...]:
    """Read the options that the numbers leave out; older files have no such list."""
    if "not_modelled" not in top.data:
        return ()
    return tuple(
        NotModelled(
            option=entries.text("option"),
            value=entries.text("value"),
            effect=entries.choice("effect", get_args(Effect)),
            direction=entries.choice("direction", get_args(Direction)),
            why=entries.text("why"),
        )
        for entries in top.mappings("not_modelled")
    )
