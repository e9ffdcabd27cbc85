"""
``plan.json``: writing a finished plan, and reading it.

Other programs read the file, too: ``data/schemas/plan.schema.json`` publishes its fields. What follows from other
fields is left out: coordinates of ranks, micro-batches, rates, and the verdict.
"""

import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, structs

from pipette_opt.base.errors import InputError, OverwriteError
from pipette_opt.base.files import note_input, write_atomically
from pipette_opt.base.typed import Count, NotNegative, Positive, Share, Size, typed
from pipette_opt.base.types import Launcher, P2PMode, RankOrder
from pipette_opt.base.units import GIB
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plans.failures import FailureRate
from pipette_opt.plans.plan import (
    SCHEMA_VERSION,
    Alternative,
    Band,
    Certificate,
    Imbalance,
    IterationTime,
    Plan,
    RiskChoice,
    Role,
    StageMemory,
    Target,
    Usual,
)
from pipette_opt.read.files import parse_json, read_text
from pipette_opt.read.hosts import checked_host
from pipette_opt.read.kinds_of_files import PLAN_FILE, reads
from pipette_opt.report.json_text import json_text, plain
from pipette_opt.specs import ModelSpec, NotModelled, StackSpec, TrainingSpec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping in the file whose fields differ from the plan's classes."""


class Version(Record, frozen=True, kw_only=True):
    """Version of the file's format."""

    schema_version: int


ParallelFields = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/ParallelConfig"})]
"""Fields of :class:`~pipette_opt.parallel.ParallelConfig`."""

CertificateFields = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/Certificate"})]
"""Fields of :class:`~pipette_opt.plans.plan.Certificate` and its ``shown_gap``."""


class Inputs(Record, frozen=True, kw_only=True):
    """
    Input of the solve: ``{path, sha256}`` for files, fields of model, training and stack, values of options.

    Values that are not listed here are of any type.
    """

    cluster: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    model: ModelSpec | None = None
    training: TrainingSpec | None = None
    stack: StackSpec | None = None
    search: SearchSpace | None = None
    failures: FailureRate | None = None
    max_oom_risk: float | None = None


class UnusedHost(Record, frozen=True, kw_only=True):
    """A host without a rank, and why."""

    host: str
    reason: str


class Place(Record, frozen=True, kw_only=True):
    """Host of a rank, and number of its GPU there."""

    host: str
    local_rank: Count


class BandFields(Record, frozen=True, kw_only=True, rename={"source": "from"}):
    """:class:`~pipette_opt.plans.plan.Band` without its middle, which is the estimate's ``expected_s``."""

    low_s: float
    high_s: float
    share: Share
    source: str
    runs: Count
    unmeasured: str


class Estimate(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.IterationTime` without the rates that follow from it."""

    iteration_time_s: Positive
    expected_s: Positive
    tokens_per_s: Positive
    mfu: NotNegative
    hfu: NotNegative | None
    breakdown: dict[str, float]
    critical_path: dict[str, float]
    band: BandFields | None


class Memory(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.StageMemory` in GiB."""

    stage: Count
    predicted_gib: NotNegative
    upper_gib: NotNegative
    capacity_gib: Positive
    oom_probability: Share
    counted_gib: NotNegative
    spread: NotNegative
    extrapolates: bool
    components_gib: dict[str, float]


class AlternativeFields(Record, frozen=True, kw_only=True):
    """
    :class:`~pipette_opt.plans.plan.Alternative`, its configuration as ``parallel``.

    Parameters
    ----------
    role
        ``next best``; ``fastest``: the fastest plan found, if a plainer plan was preferred; ``listed``: the plan on
        hosts as listed; ``overlapped``: the plan with overlap of gradient reduction; ``usual``: data parallelism alone;
        ``less risk``: the fastest plan found with a risk of at most ``max_oom_risk``.
    max_oom_risk
        Limit on the risk of running out of memory; null in other roles than ``less risk``.
    """

    role: Role
    max_oom_risk: Positive | None
    parallel: ParallelFields
    hosts: tuple[str, ...]
    iteration_time_s: Positive | None
    oom_probability: Share | None
    reason: str
    slots: tuple[tuple[Count, ...], ...] | None
    breakdown: dict[str, float]
    lower_bound_s: NotNegative | None


class PlanFile(Record, frozen=True, kw_only=True):
    """
    Plan as its file has it: configuration and hosts, time, memory and proof, in seconds and GiB.

    Parameters
    ----------
    created
        ISO 8601 date and time; empty if unknown.
    rank_order
        Fastest dimension first; the second is Megatron's ``--use-tp-pp-dp-mapping``.
    p2p
        Whether a stage waits for its sends.
    nccl_algorithm
        Algorithm of the collectives that the times assume.
    hosts
        All hosts of the cluster, used or not.
    placement
        One entry per rank, in rank order.
    objective
        Objective of the plan other than its time, with the proof of it; null for the time.
    memory
        Peak of one GPU of each pipeline stage.
    alternatives
        Other plans, and why each lost: the next best of other degrees, micro-batch or recomputation, then others.
    usual_problem
        Reason why data parallelism alone cannot run; null if it can, or if the plan is that.
    """

    schema_version: Literal[2]
    created: str
    inputs: dict[str, Any]
    seed: Count
    versions: dict[str, str]
    launcher: Launcher
    rank_order: RankOrder
    p2p: P2PMode
    nccl_algorithm: str
    hosts: tuple[str, ...]
    gpus_per_node: Size
    global_batch_size: Size
    parallel: ParallelFields
    placement: tuple[Place, ...]
    unused_hosts: tuple[UnusedHost, ...]
    certificate: CertificateFields
    objective: Target | None
    estimate: Estimate
    memory: tuple[Memory, ...]
    imbalance: Imbalance | None
    alternatives: tuple[AlternativeFields, ...]
    usual_problem: str | None
    not_modelled: tuple[NotModelled, ...]
    notes: tuple[str, ...]


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the content of ``plan.json``, in the order of the file."""
    return _builtins(
        PlanFile(
            schema_version=2,
            created=plan.created,
            inputs=dict(plan.inputs),
            seed=plan.seed,
            versions=dict(plan.versions),
            launcher=plan.launcher,
            rank_order=plan.placement.order,
            p2p=plan.p2p,
            nccl_algorithm=plan.nccl_algorithm,
            hosts=plan.hosts,
            gpus_per_node=plan.gpus_per_node,
            global_batch_size=plan.global_batch_size,
            parallel=asdict(plan.config),
            placement=tuple(
                Place(host=plan.hosts[node], local_rank=int(local_rank))
                for node, local_rank in zip(plan.placement.node, plan.placement.local_rank, strict=True)
            ),
            unused_hosts=tuple(UnusedHost(host=host, reason=reason) for host, reason in plan.unused_hosts.items()),
            certificate=asdict(plan.certificate) | {"shown_gap": plan.certificate.shown_gap},
            objective=plan.target,
            estimate=_estimate(plan.estimate),
            memory=tuple(map(_memory, plan.memory)),
            imbalance=plan.imbalance,
            alternatives=_alternatives(plan),
            usual_problem=None if plan.usual is None or plan.usual.plan is not None else plan.usual.problem,
            not_modelled=plan.not_modelled,
            notes=plan.notes,
        )
    )


def estimate_to_dict(estimate: IterationTime) -> dict[str, Any]:
    """Return the estimate in the form of ``plan.json``."""
    return _builtins(_estimate(estimate))


def _builtins(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = plain(msgspec.to_builtins(record, enc_hook=plain))
    return found


def _estimate(estimate: IterationTime) -> Estimate:
    return msgspec.convert(estimate, Estimate, from_attributes=True)


def _memory(stage: StageMemory) -> Memory:
    return Memory(
        stage=stage.stage,
        predicted_gib=stage.predicted_bytes / GIB,
        upper_gib=stage.upper_bytes / GIB,
        capacity_gib=stage.capacity_bytes / GIB,
        oom_probability=stage.oom_probability,
        counted_gib=stage.counted_bytes / GIB,
        spread=stage.spread,
        extrapolates=stage.extrapolates,
        components_gib={name: size / GIB for name, size in stage.components.items()},
    )


def _alternatives(plan: Plan) -> tuple[AlternativeFields, ...]:
    """Return all other plans of a plan, in the order of :meth:`~pipette_opt.plans.plan.Plan.others`."""
    limits = iter(choice.max_oom_risk for choice in plan.risks)
    found = []
    for role, other in plan.others():
        given = asdict(other)
        limit = next(limits) if role == "less risk" else None
        found.append(AlternativeFields(role=role, max_oom_risk=limit, parallel=given.pop("config"), **given))
    return tuple(found)


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write ``plan.json`` atomically; raise ``InputError`` if the path cannot be written."""
    text = json_text(plan_to_dict(plan)) + "\n"
    try:
        write_atomically(Path(path), text)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror or error}.") from None


def keep_plan(plan: Plan, path: str | Path) -> None:
    """
    Write ``plan.json``; if that fails, write the plan to the folder for temporary files.

    Raise ``InputError`` if the path cannot be written; the text names the temporary file.
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
    """Read ``plan.json``; an ``InputError`` names the file and the damaged field."""
    text = read_text(path)
    if not text.strip():
        raise InputError(str(path), "is empty; give a plan file that `pipette-opt solve` wrote.")
    content = parse_json(text, str(path))
    if isinstance(content, dict):
        _note_inputs(content.get("inputs"), Path(path))
    return plan_from_dict(content, str(path))


def _note_inputs(inputs: object, path: Path) -> None:
    """Protect the input files that a plan names from being overwritten, at their recorded path and beside the plan."""
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
    """Return the plan that the content of ``plan.json`` describes; ``where`` is the place in error messages."""
    version = typed(Version, content, where).schema_version
    if version != SCHEMA_VERSION:
        raise InputError(
            where, f"schema_version is {version}, but this program reads version {SCHEMA_VERSION}; solve again."
        )
    file = typed(PlanFile, content, where)
    typed(Inputs, file.inputs, where, "inputs")
    for place, host in enumerate(file.hosts):
        checked_host(host, f"{where}, hosts[{place}]")
    if len(set(file.hosts)) < len(file.hosts):
        raise InputError(where, "hosts names a host more than once.")
    config = _read_parallel(file.parallel, where, "parallel")
    try:
        config.num_microbatches(file.global_batch_size, unequal=True)
    except ValueError as error:
        raise InputError(where, f"global_batch_size: {error}") from None
    others = [
        (entry, _read_alternative(entry, where, f"alternatives[{place}]"))
        for place, entry in enumerate(file.alternatives)
    ]
    by_role = {entry.role: other for entry, other in others}
    if file.objective is not None and abs(file.objective.gap - file.objective.gap_of_bound) > GAP_WITHIN:
        gap, right = file.objective.gap, file.objective.gap_of_bound
        raise InputError(where, f"objective.gap is {gap}, but value and bound give {right}.")
    return Plan(
        config=config,
        placement=_read_placement(file, config, where),
        hosts=file.hosts,
        gpus_per_node=file.gpus_per_node,
        global_batch_size=file.global_batch_size,
        launcher=file.launcher,
        p2p=file.p2p,
        certificate=typed(Certificate, file.certificate, where, "certificate", needed=OF_CERTIFICATE),
        estimate=_read_estimate(file.estimate, config.world_size),
        memory=tuple(map(_read_memory, file.memory)),
        unused_hosts={unused.host: unused.reason for unused in file.unused_hosts},
        fastest=by_role.get("fastest"),
        listed=by_role.get("listed"),
        overlapped=by_role.get("overlapped"),
        usual=_read_usual(by_role.get("usual"), file.usual_problem),
        risks=tuple(
            RiskChoice(max_oom_risk=entry.max_oom_risk, plan=other)
            for entry, other in others
            if entry.max_oom_risk is not None
        ),
        imbalance=file.imbalance,
        alternatives=tuple(other for entry, other in others if entry.role == "next best"),
        inputs=file.inputs,
        not_modelled=file.not_modelled,
        target=file.objective,
        notes=file.notes,
        nccl_algorithm=file.nccl_algorithm,
        seed=file.seed,
        created=file.created,
        versions=file.versions,
    )


OF_CONFIG = tuple(field.name for field in fields(ParallelConfig))
OF_CERTIFICATE = tuple(field.name for field in fields(Certificate))
"""Names of the fields of a configuration and of a certificate; the file has all of them."""

GAP_WITHIN = 1e-6
"""Largest accepted difference between a recorded gap and the gap of value and bound, for rounding."""


def _read_parallel(content: dict[str, Any], where: str, path: str) -> ParallelConfig:
    return typed(ParallelConfig, content, where, path, needed=OF_CONFIG)


def _read_alternative(entry: AlternativeFields, where: str, path: str) -> Alternative:
    """Return another plan; raise ``InputError`` if its configuration, or the limit on its risk, is wrong."""
    given = structs.asdict(entry)
    if (given.pop("max_oom_risk") is None) == (given.pop("role") == "less risk"):
        raise InputError(where, f"{path}.max_oom_risk must be a number with the role less risk, else null.")
    return Alternative(config=_read_parallel(given.pop("parallel"), where, f"{path}.parallel"), **given)


def _read_usual(plan: Alternative | None, problem: str | None) -> Usual | None:
    return None if plan is None and problem is None else Usual(plan=plan, problem=problem or "")


def _read_placement(file: PlanFile, config: ParallelConfig, where: str) -> Placement:
    """Read the rank map; raise ``InputError`` unless all ranks have hosts of the host list."""
    rows = file.placement
    if len(rows) != config.world_size:
        raise InputError(where, f"placement has {len(rows)} ranks, but the degrees give {config.world_size}.")
    index = {host: number for number, host in enumerate(file.hosts)}
    for rank, row in enumerate(rows):
        if row.host not in index:
            problem = f"is {row.host!r}, which is not among the hosts of the file."
            raise InputError(where, f"placement[{rank}].host {problem}")
    return Placement(
        order=file.rank_order,
        node=np.array([index[row.host] for row in rows]),
        local_rank=np.array([row.local_rank for row in rows]),
    )


def _read_estimate(estimate: Estimate, num_gpus: int) -> IterationTime:
    given = structs.asdict(estimate)
    middle_s, band = given.pop("expected_s"), given.pop("band")
    return IterationTime(
        tokens_per_s_per_gpu=estimate.tokens_per_s / num_gpus,
        band=None if band is None else Band(middle_s=middle_s, **structs.asdict(band)),
        **given,
    )


def _read_memory(stage: Memory) -> StageMemory:
    return StageMemory(
        stage=stage.stage,
        predicted_bytes=round(stage.predicted_gib * GIB),
        upper_bytes=round(stage.upper_gib * GIB),
        capacity_bytes=round(stage.capacity_gib * GIB),
        oom_probability=stage.oom_probability,
        counted_bytes=round(stage.counted_gib * GIB),
        spread=stage.spread,
        extrapolates=stage.extrapolates,
        components={name: round(size * GIB) for name, size in stage.components_gib.items()},
    )
