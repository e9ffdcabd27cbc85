"""
Contribution of each part of the search: ``python -m benchmarks.engines [--jobs tree-32] [--without annealing]``.

Solves jobs of 16 to 128 hosts with ``prefer="fastest"`` and two threads: with every part of the search, and without one
part at a time. Each run is a process of its own. A row says which part found the plan that was kept, and which raised
the least bound last; ``other splits`` is the joint model's bound of layer partitions that are not listed. Runs are kept
in a CSV file, in which a run replaces an earlier run of the same job. Run it on a machine without other work.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.page import RESULTS, made_by, option, run_page, say
from benchmarks.placement.clusters import cluster_of, link_gb_per_s, num_flows
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB, US
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec

HEAD = """# What each part of the search contributes

Eight jobs of 16 to 128 hosts, 60 s, two threads, `prefer fastest`, each run in a process of its own. A part that
closes less than .05 % of the gap of every job, at gap limits of .5 and .01 %, is removed.

On 1 December 2026, at 32fdf0df, these went: slowed links, the slowest host, ring lifting, and likely paths (ten random
partitions in place of one). Without class assignment trees of 32 and 128 hosts ended at .18 and .98 % (repeated: .18
and 16 %) in place of .017 and .31 % (repeated: the same), so it stays. Provers: class assignment and the CP-SAT
placement together. The columns annealing and coarse placement are of the search after the removals.

The gap of `measured-17` at the limit of .01 % was 1.97 and 8.2 % (two runs): provers took all of the time, and single
changes of the plan then widened the space, unproven. They now come before a long proof.
"""

MIN_GAP = 1e-3
"""Gap limit below which the parts are compared: at the usual limit most searches end before the provers begin."""

SEED = 0
"""Seed of generated clusters and of the search."""


def _generated(kind: str, hosts: int) -> Callable[[], ClusterSpec]:
    return lambda: cluster_of(link_gb_per_s(kind, hosts, SEED), num_flows(kind), "a100-80gb")


def _equal() -> ClusterSpec:
    rates: FloatArray = np.full((128, 128), 24.0)
    np.fill_diagonal(rates, np.nan)
    return cluster_of(rates, 1, "h100-80gb")


def _two_kinds() -> ClusterSpec:
    """Return 12 hosts of A100 and 4 of V100; links between hosts differ, those between kinds are half as fast."""
    kinds = np.repeat([0, 1], [12, 4])
    rate = link_gb_per_s("unif", 16, SEED) * np.where(kinds[:, None] == kinds[None, :], 1.0, 0.5)
    entries = [read_gpu_entry(name) for name in ("a100-80gb", "v100-32gb")]
    return ClusterSpec(
        name="two-kinds",
        nodes=tuple(
            NodeSpec(host=f"n{number}", gpu=entries[kind].gpu, num_gpus=8) for number, kind in enumerate(kinds.tolist())
        ),
        intra_node_bytes_per_s=entries[1].intra_node_bytes_per_s,
        intra_node_latency_s=entries[1].intra_node_latency_s,
        inter_node_latency_s=12 * US,
        nics_per_node=8,
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=rate * GB),),
    )


JOBS: dict[str, tuple[Callable[[], ClusterSpec], dict[str, Any]]] = {
    "measured-16": (_generated("measured-16", 16), {"model": "llama-2-70b"}),
    "measured-17": (_generated("measured-17", 17), {"model": "llama-2-70b", "num_gpus": 128}),
    "tree-32": (_generated("tree", 32), {"model": "llama-2-70b"}),
    "unif-64": (_generated("unif", 64), {"model": "llama-2-70b"}),
    "tree-128": (_generated("tree", 128), {"model": "llama-2-70b"}),
    "equal-128": (_equal, {"model": "llama-3.1-405b", "global_batch_size": 1024}),
    "experts-16": (_generated("tree", 16), {"model": "qwen3-235b-a22b"}),
    "two-kinds-16": (_two_kinds, {"model": "llama-2-13b", "precision": "fp16"}),
}
"""Cluster and job of each name; the number of hosts is in the name, ``measured-17`` uses 16 of 17."""

PARTS: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "everything": (),
    "class assignment": (("solver.class_assignment.turns.ClassAssignment.take_turns", lambda *_: False),),
    "CP-SAT placement": (("solver.model.CpSatModel.solve", lambda *_: False),),
    "branch and bound over hosts": (("certify.placing._search_hosts", lambda *_: None),),
    "swaps": (("certify.placing.improve_by_swaps", lambda i, d, c, nodes, *_: nodes),),
    "coarse placement": (
        ("certify.opening.coarse_placement", lambda *_: None),
        ("solver.pruning.coarse_placement", lambda *_: None),
    ),
    "annealing": (("certify.state.SearchState.anneal_once", lambda state, entry: _skip(entry)),),
    "provers": (
        ("solver.class_assignment.turns.ClassAssignment.take_turns", lambda *_: False),
        ("solver.model.CpSatModel.solve", lambda *_: False),
    ),
    "far groups": (("problem.family_times.far_families", lambda _instance, family, _cross: [family]),),
}
"""Parts of the search; what stands in for each when it is left out."""


def _skip(entry: Any) -> None:
    entry.visits += 1
    entry.moves = 10**9


FOUND_BY = {
    "anneal_once": "annealing",
    "place_once": "coarse placement",
    "_search_hosts": "branch and bound over hosts",
    "swap_hosts": "swaps",
    "prove": "provers",
    "simulate_first_plan": "first plan",
    "continue_joint_model": "joint model",
    "open_candidates": "known plan",
    "settle": "ties",
    "look_beside": "plans beside",
    "begin": "first plan",
}
"""Function that calls :meth:`SearchState.take`, from inside: part of the search."""


def solve_one(name: str, without: str, gap_limit: float, seconds: float) -> dict[str, Any]:
    """Solve a job without a part of the search. Return its row."""
    from pipette_opt.certify.state import SearchState
    from pipette_opt.library.solve import solve

    made, job = JOBS[name]
    states: list[SearchState] = []
    plans: list[str] = []
    raised: Counter[str] = Counter()
    take, raise_bound = SearchState.take, SearchState.raise_bound

    def taking(state: SearchState, plan: Any) -> bool:
        before = state.fastest_s
        kept = take(state, plan)
        if state.fastest_s < before:
            frame, by = sys._getframe(1), ""
            while frame is not None and not by:
                by, frame = FOUND_BY.get(frame.f_code.co_name, ""), frame.f_back
            plans.append(by or "?")
        return kept

    def raising(state: SearchState, config: Any, value: float, by: str, *rest: Any, **more: Any) -> None:
        raised[by] += 1
        if state not in states:
            states.append(state)
        raise_bound(state, config, value, by, *rest, **more)

    with ExitStack() as stack:
        stack.enter_context(patch.object(SearchState, "take", taking))
        stack.enter_context(patch.object(SearchState, "raise_bound", raising))
        for place, instead in PARTS[without]:
            stack.enter_context(patch(f"pipette_opt.{place}", instead))
        begun = time.perf_counter()
        plan = solve(
            made(),
            seq_length=4096,
            **{"global_batch_size": 512, **job},
            time_limit_s=seconds,
            gap_limit=gap_limit,
            workers=2,
            seed=SEED,
            prefer="fastest",
        )
    state = states[-1]
    least = min(state.bounds.values(), key=lambda reason: reason.bound_s)
    bound_by = least.name if least.bound_s <= state.other_splits_s else "other splits"
    return {
        "job": name,
        "without": without,
        "gap_limit": gap_limit,
        "limit_s": seconds,
        "iteration_s": plan.estimate.iteration_time_s,
        "bound_s": plan.certificate.lower_bound_s,
        "gap": plan.certificate.gap,
        "counted_s": plan.certificate.wall_time_s,
        "seconds": time.perf_counter() - begun,
        "load": os.getloadavg()[0],
        "plan_by": plans[-1] if plans else "",
        "plans": json.dumps(Counter(plans)),
        "bound_by": bound_by,
        "raised": json.dumps(raised),
        "layout": plan.config.label(),
    }


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of earlier runs."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Write all rows to the CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def page(rows: list[dict[str, str]]) -> str:
    """Return the page: who found plan and bound of each job, and the gap without each part of the search."""
    whole = [row for row in rows if row["without"] == "everything"]
    lines = [*HEAD.splitlines(), "", made_by(), "", "## Who found the plan, and raised the least bound last", ""]
    lines += ["| job | gap limit | gap | seconds | plan by | bound by |", "|---|---|---|---|---|---|"]
    for row in whole:
        figures = f"{float(row['gap_limit']):.2%} | {float(row['gap']):.3%} | {float(row['counted_s']):.0f}"
        lines.append(f"| {row['job']} | {figures} | {row['plan_by']} | {row['bound_by']} |")
    parts = [part for part in dict.fromkeys(row["without"] for row in rows) if part != "everything"]
    gaps = {(row["job"], row["without"]): float(row["gap"]) for row in rows if float(row["gap_limit"]) < MIN_GAP}
    lines += [
        "",
        "## Gap without a part",
        "",
        f"| job | everything | {' | '.join(parts)} |",
        "|---" * (len(parts) + 2) + "|",
    ]
    for job in dict.fromkeys(row["job"] for row in rows):
        cells = [f"{gaps[job, part]:.3%}" if (job, part) in gaps else "" for part in ("everything", *parts)]
        lines.append(f"| {job} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the chosen jobs one after the other, each in a process of its own; yield the page after each."""
    if given.one:
        yield json.dumps(solve_one(given.jobs, given.without, float(given.gap_limits), given.seconds))
        return
    jobs, without = [job for job in given.jobs.split(",") if job != "none"], given.without.split(",")
    for limit, part, job in product(given.gap_limits.split(","), without, jobs):
        command = [sys.executable, "-m", "benchmarks.engines", "--one", "--jobs", job, "--without", part]
        command += ["--gap-limits", limit, "--seconds", str(given.seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            say(done.stderr)
            continue
        row = {name: str(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
        say(f"{limit} {part} {job}: {float(row['gap']):.4%} plan {row['plan_by']} bound {row['bound_by']}")
        key = ("job", "without", "gap_limit", "limit_s")
        rows = [known for known in read_rows(given.csv) if any(known[name] != row[name] for name in key)]
        write_rows(given.csv, [*rows, row])
    yield page(read_rows(given.csv))


OPTIONS = (
    option("--jobs", default=",".join(JOBS), help="names with commas; none: only write the page"),
    option("--without", default="everything"),
    option("--gap-limits", default="1e-4"),
    option("--seconds", type=float, default=60.0),
    option("--csv", type=Path, default=RESULTS / "engines.csv"),
    option("--one", action="store_true"),
)


if __name__ == "__main__":
    run_page(make, *OPTIONS, out=None if "--one" in sys.argv else RESULTS / "engines.md")
