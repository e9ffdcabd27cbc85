"""
``plan.json``: writing a finished plan, and reading it.

Other programs read the file, too: ``data/schemas/plan.schema.json`` publishes its fields. Derived fields, such as
coordinates of ranks and micro-batches, are written as well, and checked when the file is read.
"""

import tempfile
from dataclasses import asdict
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
    Baseline,
    Certificate,
    Imbalance,
    IterationTime,
    Plan,
    RankRow,
    RiskChoice,
    StageMemory,
    Target,
    Usual,
    rank_rows,
)
from pipette_opt.read.files import parse_json, read_text
from pipette_opt.read.hosts import checked_host
from pipette_opt.read.kinds_of_files import PLAN_FILE, reads
from pipette_opt.read.stack import stack_content
from pipette_opt.report.json_text import json_text, plain
from pipette_opt.specs import ModelSpec, NotModelled, StackSpec, TrainingSpec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping in the file whose fields differ from the plan's classes; defaults serve older files."""


class Version(Record, frozen=True, kw_only=True):
    """Version of the file's format."""

    schema_version: int


class Derived(Record, frozen=True, kw_only=True):
    """Fields beside those of :class:`~pipette_opt.parallel.ParallelConfig`: the batch, and what follows from both."""

    world_size: Size
    global_batch_size: Size
    num_microbatches: Size


ParallelFields = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/ParallelConfig"})]
"""Fields of :class:`~pipette_opt.parallel.ParallelConfig` and :class:`Derived`."""

CertificateFields = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/$defs/Certificate"})]
"""Fields of :class:`~pipette_opt.plans.plan.Certificate` and its ``shown_gap``."""


class Inputs(Record, frozen=True, kw_only=True):
    """
    Input of the solve: ``{path, sha256}`` for files, fields of model, training and stack, values of options.

    Older plans lack some of them; values that are not listed here are of any type.
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


class BandFields(Record, frozen=True, kw_only=True, rename={"source": "from"}):
    """:class:`~pipette_opt.plans.plan.Band` without its middle, which is the estimate's ``expected_s``."""

    low_s: float
    high_s: float
    share: Share
    source: str
    runs: Count
    unmeasured: str = ""


class Estimate(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.IterationTime`, and the rates that follow from it."""

    iteration_time_s: Positive
    tokens_per_s: Positive
    tokens_per_s_per_gpu: Positive
    mfu: NotNegative
    expected_s: Positive | None = None
    expected_tokens_per_s: Positive | None = None
    expected_tokens_per_s_per_gpu: Positive | None = None
    expected_mfu: NotNegative | None = None
    hfu: NotNegative | None = None
    breakdown: dict[str, float]
    critical_path: dict[str, float] = {}
    band: BandFields | None = None


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
    components_gib: dict[str, float] = {}


class AlternativeFields(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.Alternative`, its configuration as ``parallel``."""

    parallel: ParallelFields
    hosts: tuple[str, ...]
    iteration_time_s: Positive | None
    oom_probability: Share | None
    reason: str
    slots: tuple[tuple[Count, ...], ...] | None = None
    breakdown: dict[str, float] = {}
    lower_bound_s: NotNegative | None = None


class UsualFields(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.Usual`."""

    plan: AlternativeFields | None
    problem: str = ""


class Risk(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.RiskChoice`."""

    max_oom_risk: Positive
    plan: AlternativeFields


class BaselineFields(Record, frozen=True, kw_only=True):
    """:class:`~pipette_opt.plans.plan.Baseline`, its configuration as ``parallel``."""

    name: str
    parallel: ParallelFields
    iteration_time_s: Positive
    objective_s: Positive
    wall_time_s: NotNegative


class PlanFile(Record, frozen=True, kw_only=True):
    """
    Plan as its file has it: configuration and hosts, time, memory and proof, in seconds and GiB.

    Parameters
    ----------
    created
        ISO 8601 date and time; empty if unknown.
    verdict
        One sentence: whether it fits, how far from the best of the searched space it can be, how far off its time may
        be.
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
        The next best plans of other degrees, micro-batch or recomputation, and why each lost.
    baselines
        Choices of other methods, timed by the same simulator.
    """

    schema_version: Literal[1]
    created: str
    verdict: str = ""
    inputs: dict[str, Any]
    seed: Count
    versions: dict[str, str]
    launcher: Launcher
    rank_order: RankOrder
    p2p: P2PMode
    nccl_algorithm: str
    hosts: tuple[str, ...]
    gpus_per_node: Size
    parallel: ParallelFields
    placement: tuple[RankRow, ...]
    unused_hosts: tuple[UnusedHost, ...]
    certificate: CertificateFields
    objective: Target | None = None
    estimate: Estimate
    memory: tuple[Memory, ...]
    fastest: AlternativeFields | None = None
    listed: AlternativeFields | None = None
    overlapped: AlternativeFields | None = None
    usual: UsualFields | None = None
    risks: tuple[Risk, ...] = ()
    imbalance: Imbalance | None = None
    alternatives: tuple[AlternativeFields, ...]
    baselines: tuple[BaselineFields, ...]
    not_modelled: tuple[NotModelled, ...] = ()
    notes: tuple[str, ...]


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the content of ``plan.json``, in the order of the file."""
    batch = plan.global_batch_size
    return _builtins(
        PlanFile(
            schema_version=1,
            created=plan.created,
            verdict=plan.verdict,
            inputs=dict(plan.inputs),
            seed=plan.seed,
            versions=dict(plan.versions),
            launcher=plan.launcher,
            rank_order=plan.placement.order,
            p2p=plan.p2p,
            nccl_algorithm=plan.nccl_algorithm,
            hosts=plan.hosts,
            gpus_per_node=plan.gpus_per_node,
            parallel=_parallel(plan.config, batch),
            placement=tuple(rank_rows(plan)),
            unused_hosts=tuple(UnusedHost(host=host, reason=reason) for host, reason in plan.unused_hosts.items()),
            certificate=asdict(plan.certificate) | {"shown_gap": plan.certificate.shown_gap},
            objective=plan.target,
            estimate=_estimate(plan.estimate),
            memory=tuple(map(_memory, plan.memory)),
            fastest=None if plan.fastest is None else _alternative(plan.fastest, batch),
            listed=None if plan.listed is None else _alternative(plan.listed, batch),
            overlapped=None if plan.overlapped is None else _alternative(plan.overlapped, batch),
            usual=None if plan.usual is None else _usual(plan.usual, batch),
            risks=tuple(_risk(risk, batch) for risk in plan.risks),
            imbalance=plan.imbalance,
            alternatives=tuple(_alternative(alternative, batch) for alternative in plan.alternatives),
            baselines=tuple(_baseline(baseline, batch) for baseline in plan.baselines),
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


def _parallel(config: ParallelConfig, batch: int) -> dict[str, Any]:
    num_microbatches = config.num_microbatches(batch, unequal=True)
    derived = Derived(world_size=config.world_size, global_batch_size=batch, num_microbatches=num_microbatches)
    return asdict(config) | structs.asdict(derived)


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


def _alternative(alternative: Alternative, batch: int) -> AlternativeFields:
    fields = asdict(alternative)
    del fields["config"]
    return AlternativeFields(parallel=_parallel(alternative.config, batch), **fields)


def _usual(usual: Usual, batch: int) -> UsualFields:
    plan = None if usual.plan is None else _alternative(usual.plan, batch)
    return UsualFields(plan=plan, problem=usual.problem)


def _risk(risk: RiskChoice, batch: int) -> Risk:
    return Risk(max_oom_risk=risk.max_oom_risk, plan=_alternative(risk.plan, batch))


def _baseline(baseline: Baseline, batch: int) -> BaselineFields:
    fields = asdict(baseline)
    del fields["config"]
    return BaselineFields(parallel=_parallel(baseline.config, batch), **fields)


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
    inputs = file.inputs
    if "stack" in inputs:
        inputs = {**inputs, "stack": stack_content(inputs["stack"], f"{where}, inputs.stack")}
    typed(Inputs, inputs, where, "inputs")
    for place, host in enumerate(file.hosts):
        checked_host(host, f"{where}, hosts[{place}]")
    if len(set(file.hosts)) < len(file.hosts):
        raise InputError(where, "hosts names a host more than once.")
    config, global_batch_size = _read_parallel(file.parallel, where, "parallel")
    if file.objective is not None and abs(file.objective.gap - file.objective.gap_of_bound) > GAP_WITHIN:
        gap, right = file.objective.gap, file.objective.gap_of_bound
        raise InputError(where, f"objective.gap is {gap}, but value and bound give {right}.")
    plan = Plan(
        config=config,
        placement=_read_placement(file, config, where),
        hosts=file.hosts,
        gpus_per_node=file.gpus_per_node,
        global_batch_size=global_batch_size,
        launcher=file.launcher,
        p2p=file.p2p,
        certificate=typed(Certificate, file.certificate, where, "certificate"),
        estimate=_read_estimate(file.estimate),
        memory=tuple(map(_read_memory, file.memory)),
        unused_hosts={unused.host: unused.reason for unused in file.unused_hosts},
        fastest=None if file.fastest is None else _read_alternative(file.fastest, where, "fastest"),
        listed=None if file.listed is None else _read_alternative(file.listed, where, "listed"),
        overlapped=None if file.overlapped is None else _read_alternative(file.overlapped, where, "overlapped"),
        usual=None if file.usual is None else _read_usual(file.usual, where),
        risks=tuple(
            RiskChoice(max_oom_risk=risk.max_oom_risk, plan=_read_alternative(risk.plan, where, f"risks[{index}].plan"))
            for index, risk in enumerate(file.risks)
        ),
        imbalance=file.imbalance,
        alternatives=tuple(
            _read_alternative(alternative, where, f"alternatives[{index}]")
            for index, alternative in enumerate(file.alternatives)
        ),
        baselines=tuple(
            Baseline(**_with_config(baseline, where, f"baselines[{index}]"))
            for index, baseline in enumerate(file.baselines)
        ),
        inputs=inputs,
        not_modelled=file.not_modelled,
        target=file.objective,
        notes=file.notes,
        nccl_algorithm=file.nccl_algorithm,
        seed=file.seed,
        created=file.created,
        versions=file.versions,
    )
    _check_coordinates(file, plan, where)
    return plan


FIRST_FIELDS = (
    *("context_parallel_size", "expert_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("sequence_parallel", "recompute_granularity", "use_distributed_optimizer"),
)
"""Fields that have defaults but are required, because every version of the file has them."""

GAP_WITHIN = 1e-6
"""Largest accepted difference between a recorded gap and the gap of value and bound, for rounding."""


def _read_parallel(content: dict[str, Any], where: str, path: str) -> tuple[ParallelConfig, int]:
    """Return the configuration and the global batch size; raise ``InputError`` if derived fields disagree."""
    config = typed(ParallelConfig, content, where, path, needed=FIRST_FIELDS)
    derived = typed(Derived, content, where, path)
    try:
        num_microbatches = config.num_microbatches(derived.global_batch_size, unequal=True)
    except ValueError as error:
        raise InputError(where, f"{path}: {error}") from None
    for name, right in (("world_size", config.world_size), ("num_microbatches", num_microbatches)):
        found = getattr(derived, name)
        if found != right:
            raise InputError(where, f"{path}.{name} is {found}, but the degrees give {right}.")
    return config, derived.global_batch_size


def _with_config(record: AlternativeFields | BaselineFields, where: str, path: str) -> dict[str, Any]:
    """Return the fields of a record with ``parallel`` replaced by the configuration."""
    fields = structs.asdict(record)
    config, _ = _read_parallel(fields.pop("parallel"), where, f"{path}.parallel")
    return {"config": config, **fields}


def _read_alternative(alternative: AlternativeFields, where: str, path: str) -> Alternative:
    return Alternative(**_with_config(alternative, where, path))


def _read_usual(usual: UsualFields, where: str) -> Usual:
    plan = None if usual.plan is None else _read_alternative(usual.plan, where, "usual.plan")
    return Usual(plan=plan, problem=usual.problem)


def _read_placement(file: PlanFile, config: ParallelConfig, where: str) -> Placement:
    """Read the rank map; raise ``InputError`` unless ranks are 0, 1, ... in order and hosts are in the host list."""
    rows = file.placement
    if len(rows) != config.world_size:
        raise InputError(where, f"placement has {len(rows)} ranks, but the degrees give {config.world_size}.")
    index = {host: number for number, host in enumerate(file.hosts)}
    for rank, row in enumerate(rows):
        if row.rank != rank:
            raise InputError(where, f"placement[{rank}].rank is {row.rank}; the ranks must be in order, here {rank}.")
        if row.host not in index:
            problem = f"is {row.host!r}, which is not among the hosts of the file."
            raise InputError(where, f"placement[{rank}].host {problem}")
    return Placement(
        order=file.rank_order,
        node=np.array([index[row.host] for row in rows]),
        local_rank=np.array([row.local_rank for row in rows]),
    )


def _check_coordinates(file: PlanFile, plan: Plan, where: str) -> None:
    """Raise ``InputError`` unless the coordinates of each rank follow from the rank order."""
    for row, expected in zip(file.placement, rank_rows(plan), strict=True):
        if row == expected:
            continue
        name, right = next((name, its) for name, its in structs.asdict(expected).items() if getattr(row, name) != its)
        problem = f"is {getattr(row, name)}, but rank {row.rank} of the order {file.rank_order} has {right}."
        raise InputError(where, f"placement[{row.rank}].{name} {problem}")


def _read_estimate(estimate: Estimate) -> IterationTime:
    """Read the estimate. Files of older versions lack the band's middle: the geometric mean of its ends is used."""
    fields = {name: getattr(estimate, name) for name in _ESTIMATE}
    if estimate.band is not None:
        band = structs.asdict(estimate.band)
        middle_s = estimate.expected_s or float(np.sqrt(max(band["low_s"] * band["high_s"], 0.0)))
        fields["band"] = Band(middle_s=middle_s, **band)
    return IterationTime(**fields)


_ESTIMATE = tuple(name for name in Estimate.__struct_fields__ if not name.startswith("expected_"))
"""Fields of the estimate that are not derived from other fields."""


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
