"""
Benefit of unequal model chunks: ``python -m benchmarks.chunks [--cases N] [--out PAGE]``.

Clusters have two to four hosts of four GPUs, of one or two GPU types, drawn from seeds. Models have 6 to 12 layers,
small or large vocabularies, and are dense or with experts. A tensor group is a host; a stage has 2 or 3 chunks. Every
layout of the layers on the chunks is simulated on hosts in listed order, with its memory checked. So is every split
without interleaving. Two plans are compared: the fastest of all layouts, and the fastest with equal chunks or none
(stages of any sizes; embedding and head may count as layers). From the latter, the search moves single layers between
chunks (``pipette_opt/solver/layouts.py``).
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import RESULTS, made_by, option, run_page, say
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import GB, US
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.memory.filter import keep_fitting, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import HostTile, ParallelConfig, host_tiles, tile_placement
from pipette_opt.parallel.layout import layout_of
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import load_predictor
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.simulate.many import estimate_many
from pipette_opt.solver.layouts import near_layouts
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec

RISK = 0.01
"""Accepted risk of running out of memory, the default of ``solve``."""

SEARCH_S = 20.0
"""Time limit of the search of one case, seconds. Chosen."""

AT_ONCE = 512
"""Number of layouts that are simulated in one call. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of one case: iteration times with the best equal chunks, the best layout, and the found layout."""

    name: str
    layouts: int
    equal_s: float
    best_s: float
    found_s: float
    search_s: float
    layout: str


def cases(number: int) -> Iterator[tuple[str, Instance, int, int]]:
    """Yield name, job, stages and chunks of each case."""
    for seed in range(number):
        rng = np.random.default_rng([41, seed])
        hosts, chunks = int(rng.choice([2, 2, 3, 4])), int(rng.choice([2, 2, 3]))
        chunks = 2 if hosts > 2 else chunks
        layers = int(rng.integers(hosts * chunks, 13 if hosts < 4 else 11))
        kinds = [("a100-80gb",), ("h100",), ("a100-80gb", "v100-32gb")][int(rng.integers(3))]
        nodes = tuple(
            NodeSpec(host=f"n{index}", gpu=read_gpu_entry(kinds[min(index, len(kinds) - 1)]).gpu, num_gpus=4)
            for index in range(hosts)
        )
        links = rng.uniform(5.0, 25.0, (hosts, hosts)) * GB
        cluster = ClusterSpec(
            name=f"seed-{seed}",
            nodes=nodes,
            link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=links),),
            intra_node_bytes_per_s=200 * GB,
            intra_node_latency_s=8 * US,
            inter_node_latency_s=12 * US,
        )
        vocabulary, dense = int(rng.choice([32_000, 128_000])), int(rng.integers(2))
        experts = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 2048, "num_dense_layers": dense}
        sort = str(rng.choice(["dense", "experts"]))
        model = ModelSpec(
            name="bench",
            num_layers=layers,
            hidden_size=4096,
            ffn_hidden_size=14336,
            num_attention_heads=32,
            num_query_groups=8,
            kv_channels=128,
            vocab_size=vocabulary,
            max_position_embeddings=8192,
            gated_linear_unit=True,
            untie_embeddings_and_output_weights=True,
            add_bias_linear=False,
            add_qkv_bias=False,
            normalization="RMSNorm",
            position_embedding_type="rope",
            **(experts if sort == "experts" else {}),
        )
        batch = hosts * int(rng.choice([2, 4, 8]))
        training = TrainingSpec(
            global_batch_size=batch, seq_length=4096, precision="fp16" if len(kinds) > 1 else "bf16"
        )
        description = (
            f"{hosts} x 4 {'+'.join(kinds)}, {layers} layers {sort}, vocabulary {vocabulary // 1000}k, batch {batch}"
        )
        yield (
            f"{description}, {chunks} chunks",
            Instance(model=model, cluster=cluster, training=training),
            hosts,
            chunks,
        )


def base_of(job: Instance, pp: int, chunks: int) -> ParallelConfig | None:
    """Return a legal configuration with any layout of the layers; ``None`` if none is legal."""
    held = [[job.model.num_layers - pp * chunks + 1, *[1] * (pp - 1)], *[[1] * pp] * (chunks - 1)]
    config = ParallelConfig(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=pp,
        data_parallel_size=1,
        micro_batch_size=1,
        layers_per_stage=tuple(map(sum, zip(*held, strict=True))),
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_model_parallel_layout=layout_of(held),
        sequence_parallel=True,
    )
    return None if broken_rules(job.model, job.training, config) else config


def every_layout(base: ParallelConfig, num_layers: int) -> Iterator[ParallelConfig]:
    """Yield the configuration with every layout of the layers that leaves no stage empty."""
    pp, chunks = base.pipeline_model_parallel_size, base.num_chunks
    parts = pp * chunks
    for bars in itertools.combinations(range(num_layers + parts - 1), parts - 1):
        held: IntArray = (np.diff([-1, *bars, num_layers + parts - 1]) - 1).reshape(chunks, pp)
        layers = tuple(held.sum(axis=0).tolist())
        if min(layers) > 0:
            yield replace(base, layers_per_stage=layers, pipeline_model_parallel_layout=layout_of(held.tolist()))


def in_groups(configs: Iterator[ParallelConfig]) -> Iterator[list[ParallelConfig]]:
    """Yield the configurations in batches of ``AT_ONCE``."""
    while batch := list(itertools.islice(configs, AT_ONCE)):
        yield batch


def enumerated(
    job: Instance, base: ParallelConfig, tile: HostTile, nodes: IntArray, predictor: MemoryPredictor
) -> tuple[int, dict[bool, tuple[ParallelConfig, float]]]:
    """
    Return the number of simulated layouts, and the fastest that fits with its seconds.

    The key is true for equal chunks, false for any chunks.
    """
    capacity = usable_bytes(job.cluster, predictor)[nodes.reshape(len(nodes), -1)].min(axis=1)
    best: dict[bool, tuple[ParallelConfig, float]] = {}
    number = 0
    for batch in in_groups(every_layout(base, job.model.num_layers)):
        number += len(batch)
        memory = keep_fitting(job, batch, predictor, RISK)
        fitting = [checked.config for checked in memory.fitting if (checked.need_bytes <= capacity).all()]
        if not fitting:
            continue
        times = estimate_many(job, [(config, tile_placement(config, tile, nodes)) for config in fitting])
        for is_equal in (True, False):
            able = [
                index
                for index, config in enumerate(fitting)
                if not is_equal or config.pipeline_model_parallel_layout is None
            ]
            fastest = min(able, key=lambda index: times[index], default=None)
            if fastest is not None and times[fastest] < best.get(is_equal, (base, np.inf))[1]:
                best[is_equal] = fitting[fastest], float(times[fastest])
    return number, best


def measured(name: str, job: Instance, pp: int, chunks: int) -> Row | None:
    """Return the result of one case; ``None`` if no layout is legal, or no equal chunks fit."""
    bases = [base for count in (1, chunks) if (base := base_of(job, pp, count)) is not None]
    if len(bases) < 2:
        return None
    base = bases[0]
    (tile, *_), predictor = list(host_tiles(base, 4, job.launcher)), load_predictor(RISK, job)
    nodes = np.arange(job.cluster.num_nodes).reshape(tile.node_grid(base))
    found = [enumerated(job, base_config, tile, nodes, predictor) for base_config in bases]
    number, best = sum(count for count, _ in found), [fastest for _, fastest in found]
    if not any(best):
        return None
    equal, equal_s = min((fastest[True] for fastest in best if True in fastest), key=lambda fastest: fastest[1])
    best_s = min(fastest[False][1] for fastest in best if fastest)
    first = FirstPlan(config=equal, tile=tile, nodes=nodes, seconds=equal_s)
    space, begun = SearchSpace(virtual_pipeline=(chunks,)), time.perf_counter()
    near = near_layouts(job, space, first, predictor, RISK, Clock().after(SEARCH_S))
    plan = (near or [first])[0]
    return Row(
        name=name,
        layouts=number,
        equal_s=equal_s,
        best_s=best_s,
        found_s=plan.seconds,
        search_s=time.perf_counter() - begun,
        layout=layout_of(plan.config.layers_per_chunk),
    )


def page(rows: Sequence[Row]) -> str:
    """Return the page: the answer, then the table."""
    worth = np.array([1 - row.best_s / row.equal_s for row in rows])
    missed = np.array([row.found_s / row.best_s - 1 for row in rows])
    reached = int((missed < 2e-4).sum())
    lines = [
        "# Unequal model chunks",
        "",
        f"The best layout saves, against the fastest plan with equal chunks or none, {100 * np.median(worth):.1f} %",
        f"(median of {len(rows)} cases, {100 * worth.min():.1f} to {100 * worth.max():.1f} %). The search reaches it",
        f"in {reached} of {len(rows)}, and is {100 * missed.max():.1f} % above it at most, in",
        f"{np.median([row.search_s for row in rows]):.1f} s (median).",
        "",
        "| case | layouts | equal, ms | best, ms | saves | search above | s | layout found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, saves, above in zip(rows, worth.tolist(), missed.tolist(), strict=True):
        lines.append(
            f"| {row.name} | {row.layouts:,} | {1e3 * row.equal_s:.1f} | {1e3 * row.best_s:.1f} | {100 * saves:.1f} % "
            f"| {100 * above:.2f} % | {row.search_s:.1f} | `{row.layout.replace('|', chr(92) + '|')}` |"
        )
    return "\n".join(
        [
            *lines,
            "",
            "- Equal: the fastest split into stages of any sizes, without interleaving or with equal chunks (embedding",
            "  and head as layers or not). So the gain is that of unequal chunks; degrees and hosts are the same.",
            "- Nothing runs beside compute here.",
            "- Times are the simulator's, no run was measured.",
            f"- {made_by()}",
            "",
        ]
    )


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the cases; yield the page after each."""
    rows: list[Row] = []
    for name, job, pp, chunks in cases(given.cases):
        row = measured(name, job, pp, chunks)
        say(f"{name}: {'left out' if row is None else f'{1 - row.best_s / row.equal_s:.2%}'}")
        if row is not None:
            rows.append(row)
            yield page(rows)


CASES = option("--cases", type=int, default=24, help="number of cases; some may be illegal or not fit")


if __name__ == "__main__":
    run_page(make, CASES, out=RESULTS / "chunks.md")
