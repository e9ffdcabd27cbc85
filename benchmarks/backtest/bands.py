"""
How far public runs were from their predictions, by kind of job: ``python benchmarks/backtest/bands.py [--out FILE]``.

Every visible row whose job the clock knows is predicted by the shipped stack, with nothing fitted; ``data/bands.yaml``
gets a band of measured over predicted time of each kind, and nothing else of the rows. A row seldom
says what its network attains and what its recipe overlaps. Both are set to what its machine and its framework usually
have, as users give their own links and their own overlap.

How well a band holds where nobody has measured is tried by leaving out each source, and the larger jobs: 5 and 95 %
quantiles of the others are stretched until nine in ten of what is left out lie inside. WANT (CC BY-NC-SA) is used for a
check of the result only.
"""

import argparse
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, untimed
from pipette_opt.calibrate.metrics import ORDERED, job_of, pairs_of_jobs, told_apart
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.backtests import ComparedRun, write_backtests
from pipette_opt.read.bands import DISTANCES, FEWEST_RUNS, FEWEST_SOURCES, SHARE, job_kind
from pipette_opt.read.runs import BANDWIDTH_COLUMN, MeasuredRun, read_runs
from pipette_opt.read.stack import read_stack

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# How far public runs were from their predictions by the shipped stack, by kind of job: 5 and 95 % quantiles of measured
# over predicted iteration time, nothing fitted, `stretch` times as far from the median, so that they hold for runs left
# out. Made by benchmarks/backtest/bands.py, which says how. `left_out`: share of the runs of one source inside the band
# that the other sources make, over all sources. `larger`: share of the larger jobs inside the band of the smaller ones.
# A kind without a band has fewer than 20 runs, or one source, or sources that contradict each other (then these shares
# are without a stretch). `gpus`: runs of each kind of GPU.
# `middle`: median. `seen`: the most that {fewest} runs of the kind or more have of what a configuration may have.
# `beyond`: the stretch that bands needed to hold for nine in ten runs with more of it than the runs that made them, all
# kinds together; a configuration beyond what was seen has the larger of both stretches.
# `apart`: predicted time over that of another run of the same job from which on `share` of such pairs had that order.
# Rows are measurements published by: {sources}.
"""

SOURCES = {
    "automodel": "NVIDIA NeMo AutoModel",
    "amp_aws16": "AMP (NeurIPS 2022)",
    "dgxc_25_05": "NVIDIA DGX Cloud Benchmarking",
    "llm_foundry": "MosaicML llm-foundry",
    "megatron_bridge_cards": "NVIDIA Megatron-Bridge (skills)",
    "megatron_ci_golden": "Megatron-LM functional tests",
    "mist_runs": "Mist (EuroSys 2025)",
    "mlperf_training": "MLPerf Training v3.0 to v5.0",
    "mlperf_v51": "MLPerf Training v5.1",
    "nvidia_perf_tables": "NVIDIA Megatron-Bridge performance summary",
    "published_tables": "Korthikanti et al. 2022 and torchtitan",
    "simumax": "MooreThreads SimuMax",
    "vtrain_a100": "vTrain (MICRO 2024)",
}
"""
Files that make bands, and who measured. Not among them: nanotron's sweep (one cold step of each run, of a framework
that this program does not export to), and WANT, by its licence.
"""

CHECKED_ONLY = {"want_llama_a100": "WANT (arXiv 2311.05610)"}
"""Rows that never make a band."""

WIDEST = 2.5
"""Width of a band over the median error, at most: what was aimed at."""

FEWEST_SEEN = 5
"""Runs that have to have a size, or more of it, for it to be called seen; chosen."""

MOST_STRETCH, STRETCH_STEP = 3.0, 0.05
"""Of a band's width, in the logarithm: beyond the former it says nothing; chosen."""

NOT_THIS_JOB = ("sft", "lora", "hybrid", "nemotron-h", "nemotron-3", "nemotron v3", "gpt-oss", "gpt oss", "deepseek")
"""Words of rows that are other jobs than the clock knows: fine-tuning, and layers that it does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run."""

    kind: str
    gpu: str
    source: str
    num_gpus: int
    ratio: float
    predicted_s: float = 1.0
    job: Hashable = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    compared: ComparedRun | None = None


def main() -> None:
    """Predict what is there, write the table, say how it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "bands.yaml")
    parser.add_argument("--backtests", type=Path, default=ROOT / "data" / "backtests.yaml")
    parser.add_argument("--page", type=Path, help="Where the page of results goes; none without.")
    options = parser.parse_args()
    folder = Path(os.environ.get("PIPETTE_OPT_SHARED", ROOT.parent / "shared")) / "measured"
    missing = [name for name in SOURCES if not (folder / f"{name}.csv").is_file()]
    if missing:
        raise SystemExit(f"{folder} has no {', '.join(missing)}: a table of fewer sources would claim too much.")
    points = points_of(folder, SOURCES)
    table = bands_of(points)
    head = HEAD.format(fewest=FEWEST_SEEN, sources=", ".join(SOURCES.values())).rstrip()
    write_atomically(options.out, f"{_wrapped(head)}\n{yaml.safe_dump(table, sort_keys=False, width=120)}")
    compared = [one.compared for one in points if one.compared is not None]
    write_backtests("benchmarks/backtest/bands.py", compared, options.backtests)
    for name, row in table["kinds"].items():
        print(name, row)
    checked = [file for file in CHECKED_ONLY if (folder / f"{file}.csv").is_file()]
    told = []
    for kind, ratios in _by(points_of(folder, checked), lambda one: one.kind).items():
        row = table["kinds"].get(kind)
        inside = "no band" if row is None or row["low"] is None else f"{_inside(ratios, row['low'], row['high']):.0%}"
        told.append(f"Not used for any band: {len(ratios)} runs of {', '.join(checked)}, {kind}: {inside} inside.")
        print(told[-1])
    if options.page is not None:
        write_atomically(options.page, page_of(points, table, told))


def page_of(points: Sequence[Point], table: Mapping[str, Any], told: Sequence[str]) -> str:
    """The page of results: how bands hold, and how wide they are."""
    known = {kind: row for kind, row in table["kinds"].items() if row["low"] is not None}
    held = {name: _mean_share(points, known, name) for name in ("left_out", "larger")}
    widths, errors = {}, {}
    for kind, row in known.items():
        ratios = np.array([one.ratio for one in points if one.kind == kind])
        errors[kind] = float(np.median(np.abs(1 / ratios - 1)))
        widths[kind] = (row["high"] - row["low"]) / row["middle"]
    wide = sum(widths[kind] > WIDEST * errors[kind] for kind in known)
    lines = [
        "# Bands of predicted times",
        "",
        f"- {held['left_out']:.0%} of the runs of a source left out lie inside the band of the others, "
        f"{held['larger']:.0%} of the larger jobs inside that of the smaller ones; stretched until both are nine in "
        "ten for each kind.",
        f"- {wide} of {len(known)} bands are wider than {WIDEST} times the median error. The inner nine tenths of "
        "normally distributed errors are 4.9 times as wide as the median of their sizes.",
        *(f"- {line}" for line in told),
        "",
        "Measured over predicted iteration time, shipped stack, nothing fitted: `python benchmarks/backtest/bands.py "
        "--page PAGE`. A calibrated stack has bands of its own, of runs that its fit did not see.",
        "",
        "| public runs of | runs | sources | band | median error | width over it | source left out | larger jobs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, row in table["kinds"].items():
        if kind not in known:
            why = (
                "contradict each other"
                if row["runs"] >= FEWEST_RUNS and row["sources"] >= FEWEST_SOURCES
                else "too few"
            )
            lines.append(f"| {kind} | {row['runs']} | {row['sources']} | none: {why} | | | | |")
            continue
        cells = [
            f"{row['low']} to {row['high']}",
            f"{errors[kind]:.1%}",
            f"{widths[kind] / errors[kind]:.1f}",
            f"{row['left_out']:.0%}",
            "" if row["larger"] is None else f"{row['larger']:.0%}",
        ]
        lines.append(f"| {kind} | {row['runs']} | {row['sources']} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Beyond what was seen",
        "",
        "Stretch with which a band of runs with less of something holds for nine in ten runs with more, all kinds "
        "together; and what each kind has seen. A configuration beyond that has the larger of this and its kind's own "
        "stretch, which is what `solve --objective robust` weighs.",
        "",
        f"| | stretch needed | {' | '.join(known)} |",
        "|---" * (2 + len(known)) + "|",
        "| stretch of the kind | | " + " | ".join(f"{row['stretch']}" for row in known.values()) + " |",
    ]
    for name, stretch in table["beyond"].items():
        lines.append(f"| {name} | {stretch} | {' | '.join(str(row['seen'][name]) for row in known.values())} |")
    apart = table["apart"]
    lines += [
        "",
        f"Two plans of one job are told apart from a ratio of {apart['ratio']} on: {apart['share']:.0%} of such pairs "
        f"had the predicted order ({apart['pairs']:,} pairs).",
        "",
    ]
    return "\n".join(lines)


def _mean_share(points: Sequence[Point], known: Mapping[str, Any], name: str) -> float:
    """Of the kinds with a band, by their runs."""
    some = {kind: row for kind, row in known.items() if row[name] is not None}
    counts = [sum(one.kind == kind for one in points) for kind in some]
    return float(np.average([row[name] for row in some.values()], weights=counts))


def points_of(folder: Path, names: Iterable[str]) -> list[Point]:
    """Every run of some files that is a job of the clock's."""
    points = []
    for name in names:
        runs = [_as_usual(run) for run in read_runs(folder / f"{name}.csv") if _is_this_job(run)]
        cases = [
            case
            for case in make_cases(runs, read_stack())
            if isinstance(case, Case) and not untimed(case) and not case.run.oom and case.run.iter_time_s
        ]
        for case, predicted in zip(cases, predicted_times_s(cases).tolist(), strict=True):
            kind = job_kind(case.instance)
            measured = case.run.iter_time_s
            if kind is not None and measured is not None and np.isfinite(predicted):
                gpu = case.instance.cluster.nodes[0].gpu.name
                points.append(
                    Point(
                        kind=kind,
                        gpu=gpu,
                        source=name,
                        num_gpus=case.run.num_gpus,
                        ratio=measured / predicted,
                        predicted_s=predicted,
                        job=(name, job_of(case.run)),
                        sizes={one: getattr(case.config, one) for one in DISTANCES},
                        compared=ComparedRun(
                            name=case.run.model,
                            model=case.instance.model,
                            training=case.instance.training,
                            gpu=gpu,
                            num_gpus=case.run.num_gpus,
                            ratio=measured / predicted,
                        ),
                    )
                )
    return points


def bands_of(points: Sequence[Point]) -> dict[str, Any]:
    """The content of ``data/bands.yaml``."""
    kinds = {}
    for kind in sorted({one.kind for one in points}):
        own = [one for one in points if one.kind == kind]
        sources = sorted({one.source for one in own})
        enough = len(own) >= FEWEST_RUNS and len(sources) >= FEWEST_SOURCES
        stretch = stretch_of(own) if enough else None
        low, high = (None, None) if stretch is None else _band(_ratios(own), stretch)
        kinds[kind] = {
            "low": low,
            "high": high,
            "middle": None if stretch is None else round(float(np.median(_ratios(own))), 2),
            "stretch": stretch,
            "seen": seen_of(own),
            "runs": len(own),
            "sources": len(sources),
            "largest_gpus": max(one.num_gpus for one in own),
            "left_out": _share(own, _sources_left_out(own), stretch or 1.0) if enough else None,
            "larger": _share(own, _larger_left_out(own), stretch or 1.0) if enough else None,
        }
    return {
        "share": SHARE,
        "kinds": kinds,
        "gpus": dict(sorted(Counter(one.gpu for one in points).items())),
        "beyond": {name: beyond_of(points, name) for name in DISTANCES},
        "apart": apart_of(points),
    }


def seen_of(points: Sequence[Point]) -> dict[str, int]:
    """Of each of ``DISTANCES`` the most that some runs have."""
    sizes = {name: sorted((one.sizes[name] for one in points if name in one.sizes), reverse=True) for name in DISTANCES}
    return {name: found[min(FEWEST_SEEN, len(found)) - 1] for name, found in sizes.items() if found}


def beyond_of(points: Sequence[Point], name: str) -> float:
    """
    The stretch with which bands of runs with less of something hold for those with more; at least 1.

    Every kind is split at every size that leaves enough runs on both sides; residuals of the runs with more, over the
    band of the others, are pooled.
    """
    residuals: list[float] = []
    for kind in sorted({one.kind for one in points}):
        own = [one for one in points if one.kind == kind and name in one.sizes]
        sizes, logs = np.array([one.sizes[name] for one in own]), np.log(_ratios(own))
        for most in sorted(set(sizes.tolist()))[:-1]:
            more = sizes > most
            if more.sum() >= FEWEST_SEEN and (~more).sum() >= FEWEST_RUNS:
                low, middle, high = np.quantile(logs[~more], [(1 - SHARE) / 2, 0.5, (1 + SHARE) / 2])
                gaps = logs[more] - middle
                residuals += np.where(gaps > 0, gaps / (high - middle), gaps / (low - middle)).tolist()
    return max(1.0, float(np.ceil(np.quantile(residuals, SHARE) * 100) / 100)) if residuals else 1.0


def apart_of(points: Sequence[Point]) -> dict[str, Any]:
    """From which ratio on two predictions of one job had their order right."""
    predicted = np.array([one.predicted_s for one in points])
    measured = predicted * np.array([one.ratio for one in points])
    pairs = pairs_of_jobs(predicted, measured, [one.job for one in points])
    ratio = told_apart(pairs)
    return {"ratio": None if ratio is None else round(ratio, 2), "share": ORDERED, "pairs": len(pairs)}


def stretch_of(points: Sequence[Point]) -> float | None:
    """
    How much wider than its runs' quantiles the band of a kind must be to hold where nobody has measured.

    The least factor with which a band of the other sources holds ``SHARE`` of the runs of a source left out, and a band
    of the smaller jobs that share of the larger ones (conformal prediction, whose residuals are those of whole groups
    left out). ``None`` if no factor up to ``MOST_STRETCH`` does: the sources contradict each other.
    """
    portions = _sources_left_out(points), _larger_left_out(points)
    for stretch in np.arange(1.0, MOST_STRETCH + 0.01, STRETCH_STEP).round(2).tolist():
        shares = [_share(points, one, stretch) for one in portions]
        if all(share is None or share >= SHARE for share in shares):
            return float(stretch)
    return None


def _sources_left_out(points: Sequence[Point]) -> list[BoolArray]:
    """Each source in turn."""
    return [
        np.array([one.source == source for one in points]) for source in dict.fromkeys(one.source for one in points)
    ]


def _larger_left_out(points: Sequence[Point]) -> list[BoolArray]:
    """The jobs with more GPUs than half of the jobs have; none if all have equally many."""
    gpus = np.array([one.num_gpus for one in points])
    larger = gpus > np.median(gpus)
    return [larger] if larger.any() else []


def _share(points: Sequence[Point], portions: Sequence[BoolArray], stretch: float) -> float | None:
    """Share of the runs in portions that lie in the band of the others; ``None`` without a portion."""
    ratios = _ratios(points)
    inside = [_inside(ratios[out], *_band(ratios[~out], stretch)) for out in portions]
    return round(float(np.average(inside, weights=[out.sum() for out in portions])), 2) if portions else None


def _ratios(points: Sequence[Point]) -> FloatArray:
    return np.array([one.ratio for one in points])


def _band(ratios: FloatArray, stretch: float) -> tuple[float, float]:
    """Quantiles, so many times as far from the median in the logarithm, rounded outwards."""
    tail = (1 - SHARE) / 2
    low, middle, high = np.quantile(np.log(ratios), [tail, 0.5, 1 - tail])
    ends = np.exp(middle + stretch * (low - middle)), np.exp(middle + stretch * (high - middle))
    return float(np.floor(ends[0] * 100 + 1e-9) / 100), float(np.ceil(ends[1] * 100 - 1e-9) / 100)


def _inside(ratios: FloatArray, low: float, high: float) -> float:
    return float(((ratios >= low) & (ratios <= high)).mean())


def _by(points: Iterable[Point], key: Callable[[Point], str]) -> dict[str, FloatArray]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in points:
        found[key(one)].append(one.ratio)
    return {name: np.array(ratios) for name, ratios in found.items()}


def _is_this_job(run: MeasuredRun) -> bool:
    """Pre-training of a model that the clock knows, in a precision that the row names."""
    task = " ".join((run.extra.get("task", ""), run.extra.get("train_mode", ""), run.extra.get("hybrid", "")))
    said = f"{run.model} {run.notes} {task}".lower()
    tables_without_precision = not run.precision and "megatronbridge" in run.source.lower()
    lora = run.extra.get("is_lora", "").lower() == "true"
    return not (lora or tables_without_precision or any(word in said for word in NOT_THIS_JOB))


def _as_usual(run: MeasuredRun) -> MeasuredRun:
    """The row with the links that its machine usually has, unless it says."""
    usual = None if run.gpu is None else run.gpu.usual_host
    if usual is None or run.extra.get(BANDWIDTH_COLUMN):
        return run
    rate = usual.nics.host_bytes_per_s / usual.gpus_per_node
    return replace(run, extra={**run.extra, BANDWIDTH_COLUMN: f"{rate * run.gpus_per_node / 1e9:g}"})


def _wrapped(head: str) -> str:
    """Comment lines of at most 120 characters."""
    words, lines = head.replace("\n# ", " ").removeprefix("# ").split(), ["#"]
    for word in words:
        if len(lines[-1]) + len(word) >= 119:
            lines.append("#")
        lines[-1] += f" {word}"
    return "\n".join(lines)


if __name__ == "__main__":
    main()
