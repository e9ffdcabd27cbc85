"""
Best public MFU of each kind of job: ``python -m benchmarks.best_mfu [--write]``.

Prints the public runs with the highest model FLOPs utilisation of each kind, by the product's own count of model FLOPs
(causal attention, no recomputation) over the dense peak of the products' precision. ``--write`` writes the best of each
kind to ``data/best_mfu.csv``. A row there is one figure with its source; no measurement is copied.
"""

import argparse
import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path

from benchmarks.backtest.sources import described
from benchmarks.measured import measured_folder
from benchmarks.worlds.rows import CHECKED_ONLY, SOURCES, timed_cases
from pipette_opt.base.files import write_atomically
from pipette_opt.calibrate.cases import Case
from pipette_opt.read.runs import read_rows
from pipette_opt.simulate.estimate import peak_of_ranks
from pipette_opt.worlds.best_mfu import COLUMNS, PLACE, BestRun
from pipette_opt.worlds.jobs import SMALL_MODEL, job_kind

ROOT = Path(__file__).resolve().parents[1]

PUBLISHERS: Mapping[str, str] = {
    **{table: publisher for publisher, tables in SOURCES.items() for table in tables},
    **CHECKED_ONLY,
}
"""Publishers by table: those of the prior, and tables that make no prior."""

PAGES: Mapping[str, str] = {
    "DGXC-benchmarking-25.05": "NVIDIA/dgxc-benchmarking@c5c765f",
    "MLPerf-Training-v4.1": "mlcommons/training_results_v4.1@b87b9e3",
    "MegatronBridge": "NVIDIA-NeMo/Megatron-Bridge@067f987 docs/performance-summary*.md",
    "WANT-2311.05610": "Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-layouts@e13c2cb (CC BY-NC-SA)",
}
"""Pages of sources whose rows name only a version, by the beginning of the column ``source``."""

NUM_SHOWN = 5
"""Number of runs of each kind that are printed. Chosen."""


def main() -> None:
    """Print the best runs, and write the file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Write data/best_mfu.csv.")
    options = parser.parse_args()
    folder = measured_folder()
    missing = [table for table in PUBLISHERS if not (folder / f"{table}.csv").is_file()]
    if missing:
        raise SystemExit(f"{folder} has no {', '.join(missing)}: the best of fewer sources may be too low.")
    kinds = by_kind(
        (PUBLISHERS[table], case)
        for table in PUBLISHERS
        for case in timed_cases(described(read_rows(folder / f"{table}.csv")[0]))
    )
    for kind, runs in kinds.items():
        print(f"{kind}: {runs[0].runs}")
        for run in runs[:NUM_SHOWN]:
            print(f"  {run.mfu:.4f}  {run.model} on {run.num_gpus} {run.gpu}: {run.publisher}, {run.source}")
    if options.write:
        write_atomically(ROOT.joinpath(*PLACE), text_of(runs[0] for runs in kinds.values()))


MIN_RUNS = 5
"""Fewest runs of a kind whose best says what can be attained. Chosen."""


def by_kind(cases: Iterable[tuple[str, Case]]) -> dict[str, list[BestRun]]:
    """
    Return the runs of each kind, the highest MFU first, with their publishers.

    Left out are small models, and kinds of fewer than ``MIN_RUNS`` runs.
    """
    found: dict[str, list[tuple[str, Case]]] = defaultdict(list)
    for publisher, case in cases:
        kind = job_kind(case.instance)
        if SMALL_MODEL not in kind:
            found[kind].append((publisher, case))
    return {
        kind: sorted((_run(kind, len(members), *member) for member in members), key=attrgetter("mfu"), reverse=True)
        for kind, members in sorted(found.items())
        if len(members) >= MIN_RUNS
    }


def _run(kind: str, runs: int, publisher: str, case: Case) -> BestRun:
    run = case.run
    page = next((page for start, page in PAGES.items() if run.source.startswith(start)), "")
    return BestRun(
        kind=kind,
        mfu=round(mfu_of(case), 4),
        runs=runs,
        model=run.model,
        num_gpus=run.num_gpus,
        gpu=case.instance.cluster.nodes[0].gpu.name,
        publisher=publisher,
        source=", ".join(filter(None, (run.source, page))),
    )


def mfu_of(case: Case) -> float:
    """Return the model FLOPs utilisation of a measured run."""
    assert case.run.iter_time_s
    model, training = case.instance.model, case.instance.training
    flops = model.flops_per_token(training.seq_length) * training.tokens
    return flops / (case.run.iter_time_s * peak_of_ranks(case.instance, case.placement))


def text_of(runs: Iterable[BestRun]) -> str:
    """Return the content of ``data/best_mfu.csv``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *([getattr(run, name) for name in COLUMNS] for run in runs)])
    return text.getvalue()


if __name__ == "__main__":
    main()
