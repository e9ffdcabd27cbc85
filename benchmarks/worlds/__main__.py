"""``python -m benchmarks.worlds [--write] [--page FILE]``: fit the prior of the worlds to public runs, and judge it."""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.backtest.table import ComparedRun, write_backtests
from benchmarks.measured import measured_folder
from benchmarks.worlds.fit import fit_prior
from benchmarks.worlds.page import page_of
from benchmarks.worlds.rows import CHECKED_ONLY, SOURCES, Row, rows_of
from pipette_opt.base.files import write_atomically
from pipette_opt.worlds.jobs import job_kind
from pipette_opt.worlds.prior import KINDS, PLACE, SHAPE, Prior, read_priors
from pipette_opt.worlds.terms import TERMS

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# Prior of measured over predicted iteration time, fitted to public runs: python -m benchmarks.worlds --write.
# pipette_opt/worlds/prior.py says what the numbers mean, terms.py what the terms are. `runs`: by kind of job. `all`:
# prior from every source. `sources`: runs and tables of each publisher, beginnings of its rows' `source`, and the prior
# `without` it. No row is copied. Rows are measurements published by:
{sources}
"""


def main() -> None:
    """Fit the priors, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Write data/worlds.yaml and data/backtests.yaml.")
    parser.add_argument("--page", type=Path, help="File for the page of results, by the shipped priors.")
    options = parser.parse_args()
    folder = measured_folder()
    tables = [table for own in SOURCES.values() for table in own]
    missing = [name for name in (*tables, *CHECKED_ONLY) if not (folder / f"{name}.csv").is_file()]
    if missing:
        raise SystemExit(f"{folder} has no {', '.join(missing)}: a prior of fewer sources would claim too much.")
    rows = [row for table in tables for row in rows_of(folder, table)]
    if options.write:
        content = content_of(rows)
        head = HEAD.format(sources="\n".join(f"# - {publisher}" for publisher in SOURCES))
        text = yaml.safe_dump(content, sort_keys=False, width=120, default_flow_style=None)
        write_atomically(ROOT.joinpath(*PLACE), head + text)
        write_backtests("benchmarks/worlds", map(_compared, rows))
    if options.page is not None:
        checked = [row for table in CHECKED_ONLY for row in rows_of(folder, table)]
        write_atomically(options.page, page_of([*checked, *rows], read_priors()))


def content_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of ``data/worlds.yaml``."""
    sources = {}
    for publisher, tables in SOURCES.items():
        own = [row for row in rows if row.table in tables]
        sources[publisher] = {
            "runs": len(own),
            "tables": list(tables),
            "rows": sorted({_beginning(row.run.source) for row in own}),
            "without": _numbers(fit_prior([row for row in rows if row.table not in tables])),
        }
    runs = Counter(job_kind(row.case.instance) for row in rows)
    return {
        "terms": list(TERMS),
        "runs": dict(sorted(runs.items())),
        "all": _numbers(fit_prior(rows)),
        "sources": sources,
    }


def _compared(row: Row) -> ComparedRun:
    """Return the run as ``data/backtests.yaml`` counts it."""
    instance = row.case.instance
    return ComparedRun(
        name=row.run.model,
        model=instance.model,
        training=instance.training,
        gpu=instance.cluster.nodes[0].gpu.name,
        num_gpus=row.run.num_gpus,
        ratio=math.exp(row.log_ratio),
    )


def _beginning(source: str) -> str:
    """Return the name in a row's column ``source``: up to a commit, version, number or path."""
    return re.split(r"@|[ -]v?\d|[ -]PR |:| \(| issue| docs| README", source)[0].strip()


def _numbers(prior: Prior) -> dict[str, Any]:
    slopes = {name: [round(float(value), 4) for value in getattr(prior, name)] for name in ("mean", "sd")}
    kinds = {
        name: {field: round(value, 4) for field, value in kind._asdict().items()}
        for name, kind in zip(KINDS, prior.kinds, strict=True)
    }
    return {"kinds": kinds} | slopes | {name: round(getattr(prior, name), 4) for name in SHAPE}


if __name__ == "__main__":
    main()
