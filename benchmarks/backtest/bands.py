"""
Bands of predicted times from public runs, by kind of job: ``python -m benchmarks.backtest.bands [--out FILE]``.

The shipped stack predicts every visible row whose job the simulator supports; no constant is fitted. Of the rows,
``data/bands.yaml`` only gets the middle and the spread of measured over predicted time of each kind. A row seldom gives
its attained network bandwidth and its overlap. Both are set to the usual values of its machine and framework, because
users give their own links and overlap.

A source is treated as a random draw. Its mean differs from the mean of its kind by a variance between sources, and its
jobs differ from its mean by a variance within sources. Kinds are assumed to differ as much as sources do, so a kind
with few sources is drawn towards the mean of all. Leaving out each source, and the larger jobs, tests how well the
bands hold for unmeasured jobs. WANT (CC BY-NC-SA) is only used to check the result.
"""

import argparse
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import yaml

from benchmarks.backtest.order import ORDERED, pairs_of_jobs, reliable_ratio
from benchmarks.backtest.sources import measured_runs
from benchmarks.backtest.table import ComparedRun, write_backtests
from benchmarks.measured import measured_folder
from benchmarks.worlds.rows import SOURCES as PUBLISHERS
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, why_untimed
from pipette_opt.calibrate.described import describe_cases
from pipette_opt.calibrate.metrics import job_of
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.runs import BANDWIDTH_COLUMN, MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.bands import (
    ANY_JOB,
    DISTANCES,
    SHARE,
    SMALL_MODEL,
    WORLD_SIZE,
    any_kind,
    job_kind,
)
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.worlds import Worlds

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# How far public runs were from their predictions by the shipped stack, by kind of job. Made by
# benchmarks/backtest/bands.py, which says how. `middle`: measured over predicted iteration time of the mean source,
# drawn towards that of all kinds. Standard deviations of its logarithm: `within` the jobs of a source, `spread` of
# a job of a source that nobody measured. A band ends `reach` spreads from the middle. `any job` is for kinds
# without a row. `left_out`: share of the runs of one source inside the band that the other sources make, over all
# sources. `larger`: share of the larger jobs inside the band that the smaller ones make. `seen`: the most that
# {fewest} runs or more have of what a configuration may have. `beyond`: variance that a configuration with more of
# it adds; of GPUs, each doubling. `pairs`: variance of the measured over the predicted ratio of two runs of a job:
# where `equal` is predicted, and how it `grows` with the logarithm of the predicted ratio. `apart`: predicted time
# over that of another run of the same job from which on `share` of such pairs had that order. Rows are measurements
# published by: {sources}.
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
Files that make bands, and their publishers.

Left out are nanotron's sweep (each run measured one cold step, and the program does not export to nanotron), and WANT,
for its licence.
"""

CHECKED_ONLY = {"want_llama_a100": "WANT (arXiv 2311.05610)"}
"""Files that check bands and never make one."""

MIN_SEEN = 5
"""Number of runs that must have a degree of at least this size for it to count as seen. Chosen."""

MIN_OF_SOURCE = 5
"""Minimum number of runs of a kind from one source to estimate how much the source's jobs differ. Chosen."""

NOT_THIS_JOB = ("sft", "lora", "hybrid", "nemotron-h", "nemotron-3", "nemotron v3", "gpt-oss", "gpt oss", "deepseek")
"""Words of rows whose jobs the simulator does not support here: fine-tuning, and layers without a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Measured run with its prediction; ``ratio`` is measured over predicted time."""

    kind: str
    gpu: str
    source: str
    num_gpus: int
    ratio: float
    predicted_s: float = 1.0
    job: Hashable = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    compared: ComparedRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Bands of the runs of a source that makes none of them: share of runs inside, median width, median error."""

    inside: float
    width: float
    error: float

    @classmethod
    def of(cls, ends: FloatArray, ratios: FloatArray) -> "Held":
        """Return what bands hold of measured over predicted times; ``ends`` has low end, middle and high end."""
        low, middle, high = ends.T
        return cls(
            inside=float(((low <= ratios) & (ratios <= high)).mean()),
            width=float(np.median((high - low) / middle)),
            error=float(np.median(np.abs(middle / ratios - 1))),
        )

    def cells(self) -> str:
        """Return the cells of a table's row."""
        return f"{self.inside:.0%} | {self.width:.2f} | {100 * self.error:.1f} %"


def main() -> None:
    """Predict the runs, write the table, and print how the bands hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "bands.yaml")
    parser.add_argument("--backtests", type=Path, default=ROOT / "data" / "backtests.yaml")
    parser.add_argument("--page", type=Path, help="File for the page of results; by default no page.")
    options = parser.parse_args()
    folder = measured_folder()
    missing = [name for name in SOURCES if not (folder / f"{name}.csv").is_file()]
    if missing:
        raise SystemExit(f"{folder} has no {', '.join(missing)}: a table of fewer sources would claim too much.")
    points = points_of(folder, SOURCES)
    table = bands_of(points)
    head = HEAD.format(fewest=MIN_SEEN, sources=", ".join(SOURCES.values())).rstrip()
    write_atomically(options.out, f"{_wrapped(head)}\n{yaml.safe_dump(table, sort_keys=False, width=120)}")
    compared = [point.compared for point in points if point.compared is not None]
    write_backtests("benchmarks/backtest/bands.py", compared, options.backtests)
    for name, row in table["kinds"].items():
        print(name, row)
    checked = points_of(folder, [file for file in CHECKED_ONLY if (folder / f"{file}.csv").is_file()])
    notes = []
    for (kind, source), own in _by_source(checked).items():
        inside = np.mean([_is_inside(point, table) for point in own])
        notes.append(f"Not used for any band: {len(own)} runs of {source}, {kind}: {inside:.0%} inside.")
        print(notes[-1])
    if options.page is not None:
        without = compared_bands(folder, [*points, *checked])
        write_atomically(options.page, "\n".join([page_of(points, table, notes), *worlds_lines(without)]))


def page_of(points: Sequence[Point], table: Mapping[str, Any], notes: Sequence[str]) -> str:
    """Return the page of results: how often bands hold, and how wide they are."""
    kinds = {kind: row for kind, row in table["kinds"].items() if not kind.startswith(ANY_JOB)}
    held = {name: _mean_share(points, kinds, name) for name in ("left_out", "larger")}
    lines = [
        "# Bands of predicted times",
        "",
        f"- {held['left_out']:.0%} of the runs of a source left out lie inside the band of the others, "
        f"{held['larger']:.0%} of the larger jobs inside that of the smaller ones.",
        *(f"- {line}" for line in notes),
        "",
        "Measured over predicted iteration time, shipped stack, nothing fitted: `python -m benchmarks.backtest.bands "
        "--page PAGE`. A calibrated stack has the bands of the worlds.",
        "",
        "| public runs of | runs | sources | middle | band | source left out | larger jobs |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, row in table["kinds"].items():
        low, high = _ends(row, table["reach"])
        shares = ["" if row.get(name) is None else f"{row[name]:.0%}" for name in ("left_out", "larger")]
        lines.append(
            f"| {kind} | {row['runs']} | {row['sources']} | {row['middle']} | {low:.2f} to {high:.2f} | "
            f"{' | '.join(shares)} |"
        )
    lines += [
        "",
        "## Beyond what was seen",
        "",
        "Standard deviation of the logarithm that runs with more of something than others of their kind and source had "
        "beside that of these others; of GPUs for each doubling. And what was measured.",
        "",
        "| | added | models | small models |",
        "|---|---|---|---|",
    ]
    large, small = (table["kinds"][name] for name in (ANY_JOB, ANY_JOB + SMALL_MODEL))
    for name, variance in table["beyond"].items():
        seen = [row["largest_gpus"] if name == WORLD_SIZE else row["seen"][name] for row in (large, small)]
        lines.append(f"| {name} | {np.sqrt(variance):.3f} | {' | '.join(map(str, seen))} |")
    apart, pairs = table["apart"], table["pairs"]
    ends = [table["reach"] * np.sqrt(pairs["equal"] + pairs["grows"] * np.log(ratio)) for ratio in (1.0, 1.1, 1.5)]
    lines += [
        "",
        f"Two plans of one job are told apart from a ratio of {apart['ratio']} on: {apart['share']:.0%} of such pairs "
        f"had the predicted order ({apart['pairs']:,} pairs). Of pairs predicted equal, 1.1 and 1.5 times as long, "
        f"nine in ten were within a factor of {', '.join(f'{np.exp(end):.2f}' for end in ends)} of that; every job "
        "counts as much.",
        "",
    ]
    return "\n".join(lines)


def compared_bands(folder: Path, points: Sequence[Point]) -> dict[str, tuple[int, Held, Held]]:
    """Return by source its number of runs, and what bands of the other sources hold: by this table, and by worlds."""
    publishers = {table: publisher for publisher, tables in PUBLISHERS.items() for table in tables}
    found = {}
    for source in dict.fromkeys(point.source for point in points):
        own = [point for point in points if point.source == source]
        table = _spreads_of([point for point in points if point.source not in (source, *CHECKED_ONLY)])
        priors = shipped_priors()
        prior = priors.without[publishers[source]] if source in publishers else priors.all_sources
        cases = [case for case in cases_of(folder / f"{source}.csv") if case.run.iter_time_s is not None]
        times_s, terms = describe_cases(cases)
        ends = np.array([_ends_of(point, table) for point in own])
        worlds = Worlds(prior=prior).bands(terms[np.isfinite(times_s)])
        ratios = _ratios(own)
        found[source] = (len(own), Held.of(ends, ratios), Held.of(worlds, ratios))
    return found


def worlds_lines(compared: Mapping[str, tuple[int, Held, Held]]) -> list[str]:
    """Return the section of the page that compares these bands with those of the worlds, answer first."""
    runs = np.array([number for number, _, _ in compared.values()])
    ours, worlds = ([held[number] for held in compared.values()] for number in (1, 2))
    shares = [float(runs @ [held.inside for held in side] / runs.sum()) for side in (ours, worlds)]
    widths = [float(np.median([held.width for held in side])) for side in (ours, worlds)]
    lines = [
        "## Worlds without a run",
        "",
        f"The prior's own bands (5 to 95 % of `data/worlds.yaml`) hold {shares[1]:.0%} of the runs, these "
        f"{shares[0]:.0%}; the median source's width is {widths[1]:.2f} of the time, here {widths[0]:.2f}. So bands "
        "without a measured run stay those of this table.",
        "",
        "Each source is left out of both.",
        "",
        "| source | runs | inside | width | error of the middle | worlds: inside | width | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for source, (number, held, of_worlds) in compared.items():
        lines.append(f"| {source} | {number} | {held.cells()} | {of_worlds.cells()} |")
    return [*lines, ""]


def _ends_of(point: Point, table: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return low end, middle and high end of the band of a run, over its predicted time."""
    any_job = table["kinds"][any_kind(point.kind)]
    row = table["kinds"].get(point.kind, any_job)
    variance = table["beyond"][WORLD_SIZE] * max(0.0, np.ceil(np.log2(point.num_gpus / row["largest_gpus"])))
    more = [table["beyond"][name] for name in DISTANCES if point.sizes.get(name, 1) > any_job["seen"][name]]
    low, high = _ends(row, table["reach"], max([variance, *more]))
    return low, row["middle"], high


def _ends(row: Mapping[str, Any], reach: float, variance: float = 0.0) -> tuple[float, float]:
    """Return the lower and upper end of the band of a row, as factors on a predicted time."""
    factor = float(np.exp(reach * np.sqrt(row["spread"] ** 2 + variance)))
    return row["middle"] / factor, row["middle"] * factor


def _mean_share(points: Sequence[Point], kinds: Mapping[str, Any], name: str) -> float:
    """Return the share of runs inside their band, averaged over kinds and weighted by their runs."""
    known = {kind: row for kind, row in kinds.items() if row[name] is not None}
    counts = [sum(point.kind == kind for point in points) for kind in known]
    return float(np.average([row[name] for row in known.values()], weights=counts))


def points_of(folder: Path, names: Iterable[str]) -> list[Point]:
    """Return every run of these files whose time can be predicted."""
    points = []
    for name in names:
        cases = cases_of(folder / f"{name}.csv")
        for case, predicted in zip(cases, predicted_times_s(cases).tolist(), strict=True):
            kind = job_kind(case.instance)
            measured = case.run.iter_time_s
            if measured is not None and np.isfinite(predicted):
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
                        sizes={name: getattr(case.config, name) for name in DISTANCES},
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


def cases_of(path: Path) -> list[Case]:
    """Return the timed rows of a file whose job can be predicted, with the usual links of their machine."""
    runs = [_as_usual(run) for run in measured_runs(path) if _is_this_job(run)]
    return [
        case
        for case in make_cases(runs, read_stack())
        if isinstance(case, Case) and not why_untimed(case) and not case.run.oom and case.run.iter_time_s
    ]


def bands_of(points: Sequence[Point]) -> dict[str, Any]:
    """Return the content of ``data/bands.yaml``."""
    table = _spreads_of(points)
    for kind, row in table["kinds"].items():
        if not kind.startswith(ANY_JOB):
            row["left_out"] = _share(points, _sources_left_out(points, kind))
            row["larger"] = _share(points, _larger_left_out(points, kind))
    return table | {"apart": apart_of(points)}


def _spreads_of(points: Sequence[Point]) -> dict[str, Any]:
    """Return middles and spreads of all kinds, without the shares that hold."""
    sizes = [[point for point in points if any_kind(point.kind) == name] for name in (ANY_JOB, ANY_JOB + SMALL_MODEL)]
    found = [_rows_of_size(own) for own in sizes if own]
    return {
        "share": SHARE,
        "reach": round(student_reach(max(sum(degrees for _, degrees in found), 1)), 3),
        "kinds": {kind: row for rows, _ in found for kind, row in rows.items()},
        "beyond": {name: round(beyond_of(points, name), 5) for name in (WORLD_SIZE, *DISTANCES)},
        "pairs": pairs_of(points),
    }


def _rows_of_size(points: Sequence[Point]) -> tuple[dict[str, Any], int]:
    """Return the rows of the kinds of one model size, and the degrees of freedom of the spread between sources."""
    means = _means(points)
    within = within_of(points)
    squares = sum(float(((np.array(own) - np.mean(own)) ** 2).sum()) for own in means.values())
    degrees = sum(len(own) - 1 for own in means.values())
    between = squares / max(degrees, 1)
    weights = [len(own) / (len(own) + 1) for own in means.values()]
    middle = float(np.average([np.mean(own) for own in means.values()], weights=weights))
    rows = {}
    for kind, own in {any_kind(points[0].kind): [], **means}.items():
        members = [point for point in points if not own or point.kind == kind]
        # Kinds differ as much as sources do: the mean of all counts as one more source.
        rows[kind] = {
            "middle": round(float(np.exp((sum(own) + middle) / (len(own) + 1))), 3),
            "within": round(within**0.5, 3),
            "spread": round((between * (1 + 1 / (len(own) + 1)) + within) ** 0.5, 3),
            "runs": len(members),
            "sources": len({point.source for point in members}),
            "largest_gpus": max(point.num_gpus for point in members),
            **({} if own else {"seen": seen_of(members)}),
        }
    return rows, degrees


def _means(points: Sequence[Point]) -> dict[str, list[float]]:
    """Return the mean log ratio of each source, by kind."""
    found: dict[str, list[float]] = defaultdict(list)
    for (kind, _), own in sorted(_by_source(points).items()):
        found[kind].append(float(np.log(_ratios(own)).mean()))
    return found


def student_reach(degrees: float) -> float:
    """
    Return the number of standard deviations within which ``SHARE`` of Student's t distribution lies.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5; within 0.1 % from 5 degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + SHARE) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def within_of(points: Sequence[Point]) -> float:
    """Return the variance of the log ratio between jobs of a source and kind, averaged over sources and kinds."""
    found = [np.log(_ratios(own)).var(ddof=1) for own in _by_source(points).values() if len(own) >= MIN_OF_SOURCE]
    return float(np.mean(found)) if found else 0.0


def _by_source(points: Iterable[Point]) -> dict[tuple[str, str], list[Point]]:
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        found[point.kind, point.source].append(point)
    return found


def seen_of(points: Sequence[Point]) -> dict[str, int]:
    """Return, for each of ``DISTANCES``, the largest size that ``MIN_SEEN`` runs or more have."""
    sizes = {name: sorted((point.sizes.get(name, 1) for point in points), reverse=True) for name in DISTANCES}
    return {name: found[min(MIN_SEEN, len(found)) - 1] for name, found in sizes.items()}


def beyond_of(points: Sequence[Point], name: str) -> float:
    """
    Return the additional variance of runs with a larger degree ``name`` than others; for GPUs, per doubling.

    The runs of each kind and source are split at every size. The mean of the runs of a larger size differs from that of
    the smaller ones by the variance within sources and by this additional variance.
    """
    more, doublings = 0.0, 0.0
    noise = {kind: within_of([point for point in points if any_kind(point.kind) == kind]) for kind in _sizes(points)}
    for (kind, _), own in _by_source(points).items():
        logs = np.log(_ratios(own))
        sizes = np.array([point.num_gpus if name == WORLD_SIZE else point.sizes.get(name, 1) for point in own])
        for most in sorted(set(sizes.tolist()))[:-1]:
            fewer = logs[sizes <= most]
            for size in sorted(set(sizes[sizes > most].tolist())):
                larger = logs[sizes == size]
                expected = noise[any_kind(kind)] * (1 / len(larger) + 1 / len(fewer))
                more += (larger.mean() - fewer.mean()) ** 2 - expected
                doublings += float(np.log2(size / most)) if name == WORLD_SIZE else 1.0
    return float(max(more / doublings, 0.0)) if doublings else 0.0


def _sizes(points: Iterable[Point]) -> set[str]:
    return {any_kind(point.kind) for point in points}


def pairs_of(points: Sequence[Point]) -> dict[str, float]:
    """
    Return a line through the squared errors of the predicted ratio of two runs of a job; every job has equal weight.

    ``equal`` is the value for pairs predicted equal; ``grows`` is the slope over the log of the predicted ratio.
    """
    gaps, squares, weights = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for own in _by_job(points).values():
        predicted = np.array([point.predicted_s for point in own])
        pairs = pairs_of_jobs(predicted, predicted * _ratios(own), [0] * len(own))
        gaps.append(pairs[:, 0])
        squares.append((pairs[:, 1] - pairs[:, 0]) ** 2)
        weights.append(np.full(len(pairs), 1 / max(len(pairs), 1)))
    gap, square, root = np.concatenate(gaps), np.concatenate(squares), np.sqrt(np.concatenate(weights))
    if len(gap) < MIN_SEEN:
        return {"equal": 0.0, "grows": 0.0}
    columns = np.column_stack([np.ones(len(gap)), gap])
    equal, grows = np.maximum(np.linalg.lstsq(columns * root[:, None], square * root, rcond=None)[0], 0.0)
    return {"equal": round(float(equal), 5), "grows": round(float(grows), 5)}


def _by_job(points: Iterable[Point]) -> dict[Hashable, list[Point]]:
    found: dict[Hashable, list[Point]] = defaultdict(list)
    for point in points:
        found[point.job].append(point)
    return found


def apart_of(points: Sequence[Point]) -> dict[str, Any]:
    """Return the predicted ratio from which on two runs of one job had the predicted order."""
    predicted = np.array([point.predicted_s for point in points])
    measured = predicted * np.array([point.ratio for point in points])
    pairs = pairs_of_jobs(predicted, measured, [point.job for point in points])
    ratio = reliable_ratio(pairs)
    return {"ratio": None if ratio is None else round(ratio, 2), "share": ORDERED, "pairs": len(pairs)}


def _sources_left_out(points: Sequence[Point], kind: str) -> list[BoolArray]:
    """Return a mask of runs for each source that has this kind: all runs of the source."""
    sources = dict.fromkeys(point.source for point in points if point.kind == kind)
    return [np.array([point.source == source for point in points]) for source in sources]


def _larger_left_out(points: Sequence[Point], kind: str) -> list[BoolArray]:
    """Return the mask of a kind's jobs with more GPUs than the median; empty if all have equally many."""
    middle = np.median([point.num_gpus for point in points if point.kind == kind])
    larger = np.array([point.kind == kind and point.num_gpus > middle for point in points])
    return [larger] if larger.any() else []


def _share(points: Sequence[Point], portions: Sequence[BoolArray]) -> float | None:
    """Return the share of left-out runs inside the band that the other runs make; ``None`` without any mask."""
    inside: list[bool] = []
    for out in portions:
        table = _spreads_of([point for point, left in zip(points, out, strict=True) if not left])
        kinds = {point.kind for point, left in zip(points, out, strict=True) if left}
        inside += [
            _is_inside(point, table) for point, left in zip(points, out, strict=True) if left and point.kind in kinds
        ]
    return round(float(np.mean(inside)), 2) if inside else None


def _is_inside(point: Point, table: Mapping[str, Any]) -> bool:
    """Return whether a run lies inside the band of its kind, or else of any job, in a table."""
    if any_kind(point.kind) not in table["kinds"]:
        return False
    low, _, high = _ends_of(point, table)
    return bool(low <= point.ratio <= high)


def _ratios(points: Sequence[Point]) -> FloatArray:
    return np.array([point.ratio for point in points])


def _is_this_job(run: MeasuredRun) -> bool:
    """Return whether a row is pre-training of a supported model, in a precision that the row names."""
    task = " ".join((run.extra.get("task", ""), run.extra.get("train_mode", ""), run.extra.get("hybrid", "")))
    words = f"{run.model} {run.notes} {task}".lower()
    tables_without_precision = not run.precision and "megatronbridge" in run.source.lower()
    lora = run.extra.get("is_lora", "").lower() == "true"
    return not (lora or tables_without_precision or any(word in words for word in NOT_THIS_JOB))


def _as_usual(run: MeasuredRun) -> MeasuredRun:
    """Return the row with the usual links of its machine, unless it gives its own."""
    usual = None if run.gpu is None else run.gpu.usual_host
    if usual is None or run.extra.get(BANDWIDTH_COLUMN):
        return run
    rate = usual.nics.host_bytes_per_s / usual.gpus_per_node
    return replace(run, extra={**run.extra, BANDWIDTH_COLUMN: f"{rate * run.gpus_per_node / 1e9:g}"})


def _wrapped(head: str) -> str:
    """Return the text as comment lines of at most 120 characters."""
    words, lines = head.replace("\n# ", " ").removeprefix("# ").split(), ["#"]
    for word in words:
        if len(lines[-1]) + len(word) >= 119:
            lines.append("#")
        lines[-1] += f" {word}"
    return "\n".join(lines)


if __name__ == "__main__":
    main()
