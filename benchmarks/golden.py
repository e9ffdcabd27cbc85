"""
Comparison of today's predictions with recorded ones: ``python -m benchmarks.golden``.

``benchmarks/golden.jsonl`` has a line for each pair of a job and a configuration: seconds by cause, bytes by component,
parameters, a lower bound. It also has a line for each job that is solved to its proven optimum: configuration, time,
peak. The command evaluates every line again and prints by how much each figure moved. A change of the code either
leaves the file as it is, or writes new lines and gives the reason::

    python -m benchmarks.golden                 # compare; exit code 1 if a line moved
    python -m benchmarks.golden --only pairs    # without the jobs that are solved
    python -m benchmarks.golden --write         # the same jobs and configurations with today's figures
    python -m benchmarks.golden --draw 300      # other pairs, of all models, GPUs, precisions and dimensions

Jobs are options of the command line, and configurations are fields of ``plan.json``. Users see both, so neither changes
when code is rearranged.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import MISSING, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipette_opt.base.errors import PipetteError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.shipped import shipped_path
from pipette_opt.candidates import SearchSpace, enumerate_candidates, overlap_choices
from pipette_opt.candidates.space import RECOMPUTATIONS
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.work import WorkBounds
from pipette_opt.job.read import read_job
from pipette_opt.memory.components import COMPONENTS
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.formula import parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.optimize import optimize
from pipette_opt.options.description import JobOptions
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.prepare import load_predictor
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance

FILE = Path(__file__).with_name("golden.jsonl")

SAME = 1e-9
"""Relative difference below which two sums of equal numbers in different order count as equal."""

LIMIT_S = 60.0
"""Time limit of a search, seconds; jobs of the file are proven long before it. Chosen."""

SOON_S = 3.0
"""Seconds within which a drawn job must be proven to enter the file. Chosen."""

MAX_SHOWN = 20
"""Maximum number of moved figures that are printed. Chosen."""

NUM_HOSTS = (1, 2, 3, 4, 8, 16, 32)

Row = dict[str, Any]
Kind = Literal["pairs", "solved"]


def instance_of(job: Mapping[str, Any]) -> Instance:
    """Return the instance of a job, given as options of the command line."""
    return read_job(JobOptions(**job)).instance


def config_of(options: Mapping[str, Any]) -> ParallelConfig:
    """Return the configuration with these fields of ``plan.json``; missing fields have their default."""
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return ParallelConfig(**lists)


def said_of(config: ParallelConfig) -> Row:
    """Return the fields of a configuration that differ from their default."""
    found = {field.name: (getattr(config, field.name), field.default) for field in fields(config)}
    return {name: value for name, (value, default) in found.items() if default is MISSING or value != default}


def pair_figures(instance: Instance, config: ParallelConfig) -> Row:
    """
    Return the figures of a job and configuration on hosts in listed order.

    They are the seconds by cause, the bytes of the fullest stage, the parameters of all stages and the lower bound.
    """
    tile = next(iter(host_tiles(config, instance.cluster.gpus_per_node, instance.launcher)))
    grid = tile.node_grid(config)
    placement = tile_placement(config, tile, np.arange(int(np.prod(grid))).reshape(grid))
    seconds = estimate(instance, config, placement)
    memory = predicted_memory(instance, load_predictor(USUAL_RISK, instance), [config], USUAL_RISK)[0]
    fullest = int(memory.predicted_bytes.argmax())
    return {
        "seconds": {"iteration": seconds.iteration_time_s, **seconds.breakdown},
        "bytes": {
            "peak": int(memory.predicted_bytes[fullest]),
            "upper": int(memory.upper_bytes[fullest]),
            **dict(zip(COMPONENTS, memory.components[fullest].tolist(), strict=True)),
        },
        "parameters": float(parameters(stage_table(instance.model, instance.training, [config])).sum()),
        "bound_s": float(WorkBounds(instance)(config)),
    }


def solved_figures(instance: Instance, time_limit_s: float = LIMIT_S) -> Row:
    """Return the best plan's status, configuration, simulated time and peak."""
    params = OptimizeParams(time_limit_s=time_limit_s, workers=1, max_oom_risk=USUAL_RISK, prefer="fastest")
    plan = optimize(instance, SearchSpace(), params)
    return {
        "status": plan.certificate.status,
        "label": plan.config.label(),
        "time_s": plan.estimate.iteration_time_s,
        "peak_bytes": max(stage.predicted_bytes for stage in plan.memory),
    }


def evaluated(row: Row) -> Row:
    """Return a line with today's figures; an error message counts as a figure."""
    try:
        instance = instance_of(row["job"])
        config = row.get("config")
        figures = solved_figures(instance) if config is None else pair_figures(instance, config_of(config))
    except PipetteError as error:
        figures = {"error": str(error).split("\n", 1)[0]}
    return {key: row[key] for key in ("name", "job", "config") if key in row} | {"figures": figures}


def flat(figures: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every figure with its path, such as ``seconds.compute``."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def moves(before: Row, after: Row) -> list[tuple[str, Any, Any]]:
    """Return the figures of a line that changed: path, before, after."""
    old, new = dict(flat(before["figures"])), dict(flat(after["figures"]))
    found = []
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        numbers = isinstance(was, int | float) and isinstance(now, int | float)
        if was != now and not (numbers and abs(was - now) <= SAME * max(abs(was), abs(now))):  # type: ignore[operator,arg-type]
            found.append((name, was, now))
    return found


def change(was: Any, now: Any) -> float:
    """Return the relative change of a figure; infinite for figures that were zero or are no numbers."""
    if isinstance(was, int | float) and isinstance(now, int | float) and was:
        return abs(now / was - 1)
    return float("inf")


def table(rows: Sequence[Row], found: Sequence[list[tuple[str, Any, Any]]]) -> str:
    """Return a table of the moved figures: number of lines and largest change of each."""
    moved: dict[str, list[tuple[float, str, Any, Any]]] = {}
    for row, changes in zip(rows, found, strict=True):
        for name, was, now in changes:
            moved.setdefault(name, []).append((change(was, now), row["name"], was, now))
    lines = [f"{sum(map(bool, found))} of {len(rows)} lines moved."]
    if moved:
        lines += ["", "| figure | lines | most, % | of | was | is |", "|---|---|---|---|---|---|"]
    for name, changes in sorted(moved.items(), key=lambda item: -len(item[1]))[:MAX_SHOWN]:
        most, where, was, now = max(changes, key=lambda found: found[0])
        lines.append(f"| {name} | {len(changes)} | {100 * most:.2g} | {where} | {was} | {now} |")
    return "\n".join(lines)


def drawn_job(rng: np.random.Generator, model: str, gpu: str) -> Row:
    """Return a random job of a model on a GPU type: number of hosts, batch, precision, training options."""
    hosts = int(rng.choice(NUM_HOSTS))
    entry = read_gpu_catalogue()[gpu].gpu
    job: Row = {
        "model": model,
        "gpu": gpu,
        "nodes": str(hosts),
        "nics": str(rng.choice(["8x400", "8x200", "4x200", "1x100"])),
        "global_batch_size": int(rng.choice([64, 128, 256, 512])),
        "seq_length": int(rng.choice([2048, 4096, 8192, 32768], p=[0.3, 0.4, 0.2, 0.1])),
    }
    choices: dict[str, Sequence[Any]] = {
        "precision": ["fp16", "bf16"],
        "fp8": [True],
        "attention_kernel": ["unfused"],
        "p2p": ["async"],
        "allreduce": ["hierarchical", "tree"],
        "expert_imbalance": [1.3],
        "moe_token_dispatcher": ["allgather", "flex"],
        "cuda_graph": [True],
        "tp_comm_overlap": [True],
        "micro_batches": ["unequal"],
    }
    for name, values in choices.items():
        if rng.random() < 0.15:
            job[name] = values[int(rng.integers(len(values)))]
    if "bf16" not in entry.peak_flops:
        job["precision"] = "fp16"
    return job


def drawn_pair(seed: int, model: str, gpu: str) -> Row | None:
    """Return a random job with one of its legal configurations and its figures; ``None`` if none is legal."""
    rng = np.random.default_rng(seed)
    job = drawn_job(rng, model, gpu)
    pinned: dict[str, Any] = {}
    for name, values in {
        "context_parallel": (1, 2, 4),
        "virtual_pipeline": (1, 2, 3),
        "micro_batch_size": (1, 2, 4),
        "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "offload": (None, "optimizer"),
    }.items():
        if rng.random() < 0.5:
            pinned[name] = (values[int(rng.integers(len(values)))],)
    pinned["recompute"] = (RECOMPUTATIONS[int(rng.integers(len(RECOMPUTATIONS)))],)
    for space in (SearchSpace(**pinned), SearchSpace()):
        try:
            instance = instance_of(job)
            listed = list(enumerate_candidates(instance, space))
            if not listed:
                continue
            chosen = overlap_choices(space, listed[int(rng.integers(len(listed)))])
            config = chosen[int(rng.integers(len(chosen)))]
            row = {"name": f"pair {seed}", "job": job, "config": said_of(config)}
            return row | {"figures": pair_figures(instance, config_of(row["config"]))}
        except (PipetteError, ValueError):
            continue
    return None


def drawn(number: int, seed: int) -> Iterator[Row]:
    """Yield pairs of a job and a configuration; models and GPU types rotate."""
    models = sorted(path.stem for path in shipped_path("data", "architectures").glob("*.yaml"))
    gpus = sorted(read_gpu_catalogue())
    found, tried = 0, seed
    while found < number:
        row = drawn_pair(tried, models[tried % len(models)], gpus[tried % len(gpus)])
        tried += 1
        if row is not None:
            found += 1
            yield row


def solvable(number: int, seed: int) -> Iterator[Row]:
    """
    Yield jobs of one or two hosts that are proven optimal within ``SOON_S`` on this machine.

    Jobs whose best plan has unequal chunks are left out: the number of layouts searched depends on the available time.
    """
    models = sorted(path.stem for path in shipped_path("data", "architectures").glob("*.yaml"))
    gpus = [name for name in sorted(read_gpu_catalogue()) if "bf16" in read_gpu_catalogue()[name].gpu.peak_flops]
    rng, found = np.random.default_rng(seed), 0
    while found < number:
        job = {
            "model": str(rng.choice(models)),
            "gpu": str(rng.choice(gpus)),
            "nodes": str(rng.integers(1, 3)),
            "nics": "8x400",
            "global_batch_size": int(rng.choice([32, 64, 128])),
            "seq_length": int(rng.choice([2048, 4096])),
        }
        try:
            figures = solved_figures(instance_of(job), SOON_S)
        except PipetteError:
            continue
        if figures["status"] == "OPTIMAL" and "layout" not in figures["label"]:
            yield {"name": f"solved {found}", "job": job, "figures": figures}
            found += 1


def read_rows() -> list[Row]:
    """Return the lines of the file."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()] if FILE.exists() else []


def write_rows(rows: Sequence[Row]) -> None:
    """Write the file, a line for each row."""
    write_atomically(FILE, "".join(json.dumps(row) + "\n" for row in rows))


def is_of(row: Row, kind: Kind | None) -> bool:
    """Return whether a line is of this kind, a pair or a solved job; ``None`` accepts both kinds."""
    return kind is None or (kind == "pairs") == ("config" in row)


def main() -> None:
    """Parse the arguments, then compare, write or draw lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pairs", "solved"))
    parser.add_argument("--write", action="store_true", help="write today's figures of the same lines")
    parser.add_argument("--draw", type=int, metavar="N", help="replace the lines of the --only kind by N random ones")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first random line")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    known = read_rows()
    if given.draw is not None:
        kind = given.only or "pairs"
        fresh = list((drawn if kind == "pairs" else solvable)(given.draw, given.seed))
        write_rows(
            sorted([*fresh, *(row for row in known if not is_of(row, kind))], key=lambda row: "config" not in row)
        )
        print(f"{len(fresh)} lines drawn")
        return
    rows = [row for row in known if is_of(row, given.only)]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        after = list(pool.map(evaluated, rows))
    found = [moves(*both) for both in zip(rows, after, strict=True)]
    print(table(rows, found))
    if given.write:
        now = {row["name"]: row for row in after}
        write_rows([now.get(row["name"], row) for row in known])
    elif any(found):
        sys.exit(1)


if __name__ == "__main__":
    main()
