"""
Tables of a plan for the terminal: at most 100 columns, without colours outside a terminal.

Every text of a plan is wrapped in ``Text``, so that rich reads no part of it as markup.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, zip_longest

import rich.table
from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.degrees import CHUNKS, DATA, DEGREES, EXPERT_TENSOR, MICRO_BATCH, PIPELINE, TENSOR
from pipette_opt.base.table import FAIR, QUIET, Cell, Table
from pipette_opt.base.units import counted, three_digits
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.plans.plan import IterationTime, Plan, StageMemory
from pipette_opt.plans.predicted import fullness
from pipette_opt.plans.tables import alternatives, components, ruled_out, stages, times
from pipette_opt.plans.verdict import expected_time, verdict
from pipette_opt.report.beside_tables import fastest_line, imbalance_line, order_words, overlap_words, risks
from pipette_opt.report.best_mfu import above_best_words, best_of_plan, mfu_words
from pipette_opt.report.cells import clock_line, shown_tables, titled, value_text
from pipette_opt.report.left_out import left_out
from pipette_opt.report.proof_tables import certificate_part, chosen, sizes
from pipette_opt.specs import NotModelled
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.worlds.best_mfu import BestRun

MAX_STAGES = 32
"""Maximum number of stages in the memory table, the fullest first. Chosen."""


def plan_tables(plan: Plan, beside: Sequence[RenderableType] = ()) -> list[RenderableType]:
    """
    Return all tables of a plan: verdict, configuration, proof, times, memory, hosts, alternatives, and the verdict
    again.

    Parameters
    ----------
    beside
        Tables to insert before the last line, such as a comparison with today's launch.
    """
    verdict_text = verdict_line(plan.verdict)
    parts: list[RenderableType] = [
        verdict_text,
        headline(plan),
        *(Text(line) for line in (fastest_line(plan), order_words(plan), overlap_words(plan)) if line),
        *shown_tables(chosen(plan), sizes(plan)),
        configuration_table(plan),
        certificate_part(plan.certificate, plan.estimate),
        *shown_tables(
            ruled_out(plan.certificate, plan.estimate),
            times(plan.estimate, plan.alternatives),
            *memory_tables(plan.memory),
            hosts_of_stages(plan),
            unused_hosts(plan),
            alternatives(plan),
            risks(plan),
        ),
    ]
    if line := imbalance_line(plan):
        parts.append(Group(Text(), Text(line)))
    parts += shown_tables(left_out(plan.not_modelled))
    if plan.notes:
        parts.append(notes(plan.notes))
    parts += [*beside, Text(), verdict_text]
    return parts


def verdict_line(text: str) -> RenderableType:
    """Return the verdict, which is the first and the last line of an answer."""
    return Text(text, style="bold")


def headline(plan: Plan) -> RenderableType:
    """Return configuration, number of hosts, expected time and rates."""
    used, listed = len(plan.placement.nodes_used), len(plan.hosts)
    first = Text(plan.config.label(), style="bold")
    first.append(f"  on {used} of {counted(listed, 'host')}, {counted(plan.config.world_size, 'GPU')}", style="")
    return Group(Text(), first, *speed_lines(plan.estimate, best_of_plan(plan)))


def configuration_table(plan: Plan) -> RenderableType:
    """Table of degrees, batch, recomputation, offload and launch settings."""
    config, layout = plan.config, plan.config.pipeline_model_parallel_layout
    rounds, chunks = _rounds(config, plan.global_batch_size), config.virtual_pipeline_model_parallel_size
    rows = [
        ("tensor x pipeline x data", _degrees(config)),
        (
            "micro-batch",
            f"{config.micro_batch_size} of {plan.global_batch_size}, {rounds}",
        ),
        ("layers per chunk", layout) if layout else ("layers per stage", _runs(config.layers_per_stage)),
        ("schedule", "1F1B" if chunks is None else f"interleaved 1F1B, {chunks} chunks"),
        ("sequence parallel", value_text(config.sequence_parallel)),
        ("recomputation", _recomputation(config)),
        *([] if config.offload is None else [("in the host's memory", config.offload)]),
        *([("tensor overlap", "yes")] if config.tp_comm_overlap else []),
        ("distributed optimizer", value_text(config.use_distributed_optimizer)),
        ("rank order", plan.placement.order),
        ("launcher", plan.launcher),
        ("communication", f"{plan.p2p} sends, NCCL {plan.nccl_algorithm}"),
    ]
    half = (len(rows) + 1) // 2
    table = rich.table.Table.grid(padding=(0, 2))
    for style in (QUIET, "", QUIET, ""):
        table.add_column(style=style)
    for left, right in zip_longest(rows[:half], rows[half:], fillvalue=("", "")):
        table.add_row(*(Text(text) for text in (*left, *right)))
    return titled("Configuration", table)


def configuration_words(config: ParallelConfig, global_batch_size: int) -> str:
    """Return the configuration in words: degrees, micro-batches, layers, recomputation, offload."""
    layout = config.pipeline_model_parallel_layout
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    degrees = [f"tensor {tensor} x pipeline {pipeline} x data {config.data_parallel_size}"]
    degrees += _further_degrees(config)
    layers = layout or f"{_runs(config.layers_per_stage)} {'a stage' if pipeline > 1 else 'in all'}"
    parts = [
        ", ".join(degrees),
        f"micro-batch {config.micro_batch_size} ({_rounds(config, global_batch_size)})",
        f"layers {layers}",
        *([f"{config.num_chunks} chunks"] if config.num_chunks > 1 else []),
        f"recomputation {_recomputation(config)}" if config.recompute_granularity else "no recomputation",
        *([f"state sharded by ZeRO {config.sharding_stage}{_groups(config)}"] if config.sharding_stage > 1 else []),
        *([f"in the host's memory {config.offload}"] if config.offload else []),
        *(["tensor overlap"] if config.tp_comm_overlap else []),
    ]
    return "; ".join(parts)


def _groups(config: ParallelConfig) -> str:
    """Return the number of groups of replicas that each share their state, in words; empty for one group."""
    groups = config.num_distributed_optimizer_instances
    return f" in {groups} groups of replicas" if groups > 1 else ""


def _recomputation(config: ParallelConfig) -> str:
    """Return the recomputation in words."""
    if config.recomputation != "block":
        return config.recomputation or "none"
    return f"block, first {counted(config.recompute_num_layers, 'layer')} of each chunk"


def memory_tables(memory: Sequence[StageMemory]) -> tuple[Table, Table]:
    """Return the tables of the fullest stages, at most ``MAX_STAGES``, in stage order: peaks, and their components."""
    shown = sorted(sorted(memory, key=fullness, reverse=True)[:MAX_STAGES], key=lambda stage: stage.stage)
    few = f", fullest {len(shown)} of {len(memory)} stages" if len(shown) < len(memory) else ""
    return stages(shown, few=few), components(shown)


def hosts_of_stages(plan: Plan) -> Table:
    """Return the hosts of each stage."""
    rows = [(stages, folded_hosts(hosts)) for stages, hosts in host_grid(plan)]
    return Table(title="Hosts of each stage, in data-parallel order", headers=("stages", "hosts"), rows=rows)


def unused_hosts(plan: Plan) -> Table:
    """Return the unused hosts by reason."""
    hosts: dict[str, list[str]] = {}
    for host, reason in plan.unused_hosts.items():
        hosts.setdefault(reason, []).append(host)
    rows = [(Cell(folded_hosts(of_reason), style=FAIR), reason) for reason, of_reason in hosts.items()]
    return Table(title="Hosts left out", headers=("hosts", "why"), rows=rows)


def estimate_tables(
    config: ParallelConfig,
    estimate: IterationTime,
    memory: Sequence[StageMemory],
    *,
    hosts: Sequence[str],
    title: str = "this launch",
    max_oom_risk: float | None = None,
    links_measured: bool = True,
    not_modelled: Sequence[NotModelled] = (),
    best: BestRun | None = None,
) -> list[RenderableType]:
    """
    Return the tables of a configuration that was simulated on given hosts, the verdict first.

    Parameters
    ----------
    hosts
        Names of the hosts, in rank order.
    max_oom_risk
        Accepted probability of running out of memory.
    links_measured
        Whether links between hosts were measured.
    not_modelled
        Options that predicted time and memory leave out.
    best
        Public run with the highest MFU of this kind.
    """
    verdict_text = verdict_line(
        verdict(
            memory,
            estimate,
            max_oom_risk=max_oom_risk,
            links_measured=links_measured,
            not_modelled=not_modelled,
        )
    )
    first = Text(title, style="bold")
    where = f"{counted(len(hosts), 'host')}, {counted(config.world_size, 'GPU')}"
    first.append(f"  {config.label()} on {where}", style="not bold")
    return [
        verdict_text,
        Group(Text(), first, *speed_lines(estimate, best), Text(clock_line(estimate), style=QUIET)),
        *shown_tables(times(estimate), *memory_tables(memory), left_out(not_modelled)),
    ]


def notes(lines: Iterable[str]) -> RenderableType:
    """List of the plan's notes."""
    table = rich.table.Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(Text("-", style=QUIET), Text(line))
    return titled("Notes", table)


def speed_lines(estimate: IterationTime, best: BestRun | None) -> list[Text]:
    """
    Return the expected time with its error band, the rates at this time, and the source of the band.

    An MFU above that of ``best``, the public run with the highest of this kind, has a line of its own.
    """
    time = Text(expected_time(estimate).removeprefix("about "), style="bold")
    rates = (
        f"{three_digits(estimate.expected_tokens_per_s)} tokens/s, "
        f"{three_digits(estimate.expected_tokens_per_s_per_gpu)} tokens/s per GPU, "
        f"{mfu_words(estimate, best)}"
    )
    lines = [time, *(Text(line) for line in (rates, above_best_words(estimate, best)) if line)]
    if estimate.band is not None:
        lines.append(Text(f"band of {estimate.band.source}", style=QUIET))
    return lines


def host_grid(plan: Plan) -> list[tuple[str, list[str]]]:
    """Return a row for each run of stages with the same hosts: the stages, and the hosts in data-parallel order."""
    ranks = RankGrid.of(plan.config, plan.placement.order).ranks()
    per_stage = [tuple(dict.fromkeys(plan.placement.node[stage].ravel().tolist())) for stage in ranks]
    rows, start = [], 0
    for nodes, members in groupby(per_stage):
        count = len(list(members))
        name = str(start) if count == 1 else f"{start}-{start + count - 1}"
        rows.append((name, [plan.hosts[node] for node in nodes]))
        start += count
    return rows


def folded_hosts(hosts: Sequence[str]) -> str:
    """Return hosts as ranges in the syntax of options, with spaces after commas."""
    return compress_hosts(tuple(hosts)).replace(",", ", ")


def _degrees(config: ParallelConfig) -> str:
    text = f"{config.tensor_model_parallel_size} x {config.pipeline_model_parallel_size} x {config.data_parallel_size}"
    return ", ".join([text, *_further_degrees(config)])


def _further_degrees(config: ParallelConfig) -> list[str]:
    """Return the degrees above 1 that texts name only then, each with its word."""
    usual = (TENSOR, PIPELINE, DATA, EXPERT_TENSOR, CHUNKS, MICRO_BATCH)
    sizes = ((degree.word, getattr(config, degree.number)) for degree in DEGREES if degree not in usual)
    return [f"{word} {size}" for word, size in sizes if size > 1]


def _rounds(config: ParallelConfig, global_batch_size: int) -> str:
    """Return the number of micro-batches per replica in words, or the smallest and largest if replicas differ."""
    shares = config.microbatches_of_replicas(global_batch_size)
    return counted(shares[0], "round") if shares[0] == shares[-1] else f"{shares[-1]} or {shares[0]} rounds"


def _runs(layers: Sequence[int]) -> str:
    """Format layers per stage, with equal neighbours folded, such as ``9, 6 x 10, 11``."""
    counted = [(value, len(list(members))) for value, members in groupby(layers)]
    return ", ".join(str(value) if count == 1 else f"{count} x {value}" for value, count in counted)
