"""
How good anyone could be on the judged rows of the memory benchmark: twins, hindsight, refusals.

Run ``python benchmarks/memory/ceiling.py -o benchmarks/results/memory-ceiling.md``; measured runs are looked for as in
``evaluate.py``.
"""

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import NormalDist

import numpy as np

from pipette_opt.base.files import write_atomically
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import framework_of_stack
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.calibrate.memory_spread import fit_framework, oom_probability
from pipette_opt.lab.backtest.memory_ceiling import (
    FREE_FIT,
    OUR_FIT,
    Pair,
    Twin,
    furthest_off,
    hindsight,
    labelled_room,
    least_refusals,
    on_full_device,
    relative_errors,
    reversals,
    twins,
)
from pipette_opt.lab.backtest.memory_endings import Ending, endings, replayed_peaks
from pipette_opt.lab.backtest.memory_evaluation import SPLITS, Split, measured_folder, split_cases
from pipette_opt.memory.framework import Framework
from pipette_opt.memory.twins import without_twins
from pipette_opt.read.runs import MeasuredRun, read_runs
from pipette_opt.read.stack import read_stack

SWEEP, LABELS = SPLITS[1], SPLITS[2]
SPREADS = (0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05)

WORST = 10
"""Rows that a mean hangs on."""

TOO_LARGE = ("80G", "469G")
"""Models of the sweep of which no job with such micro-batches fits."""

FULL_TEXT = (
    "All jobs that fill their device by our constants, and would not without what the allocator can take back: buffers "
    "that hosts run ahead of, leftovers of the step. PyTorch's allocator waits for such buffers and takes them back "
    "before it fails, so that by the book all of these should live. Those with fewer than 32 tensor ranks died, at "
    "once or after they had logged some iterations; those with 32 lived. Who has seen the calibrating ones alone "
    "cannot accept such a job at a small risk: by Laplace's rule the next one dies with the probability in the last "
    "column."
)

REPLAY_TEXT = (
    "A replay of what nanotron allocates and frees, in the order that its sources have, hosts ahead by the 1,024 "
    "launches of a queue, through our model of the allocator. Nothing of it is fitted. Peaks of the jobs without a "
    "pipeline that it has room for; the judged mean hangs on four jobs whose hosts were not ahead, which is not known "
    "beforehand. Ours is that of the constants alone, without what twins tell:"
)

ENDINGS_TEXT = (
    "On devices of what is usable, where the allocator takes back all that is late before it fails; all labelled jobs "
    "of the sweep with one replica, no pipeline, 8 tensor ranks or more, a micro-batch of 16 or more and a model that "
    "fits at all:"
)

LUCK_TEXT = (
    "So what is right to a few percent about jobs that have room does not tell which one lives where there is none: "
    "jobs died that by the book had gigabytes to spare, and one lived that had not. That a full device is a matter of "
    "luck is known elsewhere: NCCL asks the device, "
    "not the allocator, which returns nothing for it (github.com/pytorch/torchtitan pull request 660), and one and the "
    "same step runs out now and then while buffers wait for events (github.com/pytorch/pytorch issue 71616). Whether "
    "that is what happened here, no file tells."
)

Row = dict[str, str]

KINDS: Sequence[tuple[str, Callable[[MeasuredRun], bool]]] = (
    ("all", lambda run: True),
    ("ZeRO 0: nothing on a rank depends on the number of replicas", lambda run: run.zero_stage == 0),
    ("ZeRO 1", lambda run: run.zero_stage == 1),
    ("micro-batch of 1", lambda run: run.mbs == 1),
    ("of 2 and 4", lambda run: 1 < (run.mbs or 1) <= 4),
    ("of 8 and more", lambda run: (run.mbs or 1) > 4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A split, our constants from its small jobs, and those of hindsight."""

    split: Split
    known: list[Pair]
    judged: list[Pair]
    ours: Framework
    hindsight: dict[str, Framework]


def main() -> None:
    """Measure the limits, and write or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, help="Markdown file; shown without it.")
    parser.add_argument("--max-oom-risk", type=float, default=0.01)
    arguments = parser.parse_args()
    folder = measured_folder()
    if not all((folder / split.file).is_file() for split in (SWEEP, LABELS)):
        text = "No measured runs here: set PIPETTE_OPT_SHARED. Nothing measured.\n"
    else:
        text = report([read_split(split, folder) for split in (SWEEP, LABELS)], folder, arguments.max_oom_risk)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_atomically(arguments.out, text)


def read_split(split: Split, folder: Path) -> Judged:
    """The rows of a split, and both kinds of constants."""
    known, judged = split_cases(split, folder)
    start = framework_of_stack(read_stack())
    return Judged(
        split=split,
        known=known,
        judged=judged,
        ours=fit_framework([memory for _, memory in known], start),
        hindsight=hindsight([memory for _, memory in judged], start),
    )


def report(splits: Sequence[Judged], folder: Path, max_oom_risk: float) -> str:
    """Every table, with what it shows and what it does not."""
    sweep = splits[0]
    found = twins(sweep.known, sweep.judged, sweep.ours)
    head = (
        f"# How good could anyone be?\n\n{datetime.date.today()}, Python {platform.python_version()}, numpy "
        f"{np.__version__}. `python benchmarks/memory/ceiling.py`; the judged rows are those of "
        "[memory.md](memory.md). Nothing here is a prediction: all of it looks at the judged rows, and none of it goes "
        "into what is shipped. What it bounds are our physics and the likes of it, not all that could be thought of."
    )
    sections = (
        head,
        "## Twins\n\nNo configuration of these splits was measured twice. The nearest to it, in the H100 sweep: judged "
        "peaks by a twin, a calibrating job of fewer replicas whose ranks do the same work (same model, tensor "
        "and pipeline degree, micro-batch, ZeRO stage). What the twin was *measured* to take beyond what stays between "
        "iterations, plus what the judged job was *measured* to hold then. With ZeRO 1 the source's column is the peak "
        "of the optimizer step, of which 4 + 2/dp bytes a parameter are what it gathers, and these are taken off; how "
        "much of what the step leaves behind the passes find use for depends on the number of replicas, so that twins "
        "are not quite repetitions there. With ZeRO 0 they are. Ours stands beside, on the same rows; it "
        f"believes a part of what it was off by on the twin (correlation {sweep.ours.alike:.2f}, learnt from "
        "calibrating jobs alone).",
        _table(_twin_rows(found)),
        "A twin is one measurement and scatters itself: were all scatter normal and alike, whoever knew the mean of "
        "all repetitions would be off by the twin's error over the square root of two.",
        f"## The jobs furthest off\n\n{_worst_text(sweep, max_oom_risk)}",
        _table(_worst_rows(sweep, found)),
        f"## Jobs that lived although jobs with no more to hold died\n\n{_reversal_text(sweep)}",
        _table(_reversal_rows(sweep)),
        FULL_TEXT,
        _table(_full_rows(sweep)),
        REPLAY_TEXT,
        _table(_peak_rows(sweep)),
        ENDINGS_TEXT,
        _table(_replay_rows(sweep, folder)),
        LUCK_TEXT,
        "## Hindsight\n\nOur physics with its constants fitted to the judged rows themselves, against the constants "
        "from small jobs. The last are searches for the very number that is reported, in sample, the best of "
        f"three local optima. What the {WORST} rows furthest off add to the mean is beside it. Verdicts at even "
        "odds: need against what is usable.",
        _table([row for one in splits for row in _hindsight_rows(one)]),
        f"## Refusals\n\nWhoever knows every need up to a normal error, and accepts a risk of {max_oom_risk:.0%}, must "
        "refuse fitting jobs that leave less room than "
        f"{_quantile(max_oom_risk):.2f} standard deviations. How many these are expected to be, with the needs as two "
        "fits of hindsight have them, and the accuracy that is left; jobs that hindsight has on the wrong side count "
        "as judged rightly, so that these are the fewest.",
        _table(_refusal_rows(splits, max_oom_risk)),
        _scale_text(found, splits[1]),
    )
    return "\n\n".join(sections) + "\n"


def _configuration(run: MeasuredRun) -> str:
    return f"{run.model}, {run.num_gpus} GPUs, tp {run.tp}, pp {run.pp}, dp {run.dp}, mbs {run.mbs}"


def _twin_rows(found: Sequence[Twin]) -> list[Row]:
    rows = []
    for name, chosen in KINDS:
        members = [twin for twin in found if chosen(twin.run)]
        if members:
            twin = np.array([abs(one.twin_gib / one.peak_gib - 1) for one in members])
            ours = np.array([abs(one.predicted_gib / one.peak_gib - 1) for one in members])
            rows.append(
                {
                    "rows": name,
                    "peaks": str(len(members)),
                    "twin: mean error": f"{twin.mean():.1%}",
                    "median": f"{np.median(twin):.1%}",
                    "mean over root 2": f"{twin.mean() / np.sqrt(2):.1%}",
                    "ours: mean error": f"{ours.mean():.1%}",
                    "median of ours": f"{np.median(ours):.1%}",
                }
            )
    return rows


def _worst_text(sweep: Judged, max_oom_risk: float) -> str:
    errors = [error for error, _ in furthest_off(sweep.ours, sweep.judged)]
    said = [(run, predict_memory(sweep.ours, memory)) for run, memory in sweep.judged if memory.ran_out is False]
    refused = [run.tp for run, memory in said if oom_probability(memory) > max_oom_risk]
    return (
        f"Of the mean error of ours, {np.mean(errors):.2%}, {sum(errors[:WORST]) / len(errors):.2%} are the {WORST} "
        f"jobs below; the mean of the {len(errors) - WORST} others is {np.mean(errors[WORST:]):.2%}. Beside them what "
        "their twins were measured to take, where they have one, and what ours would say were no host ahead of its "
        "GPU: they are jobs on full devices, or their hosts were ahead, or were not, where jobs of 8 and 16 GPUs say "
        f"otherwise. No smaller job has 32 tensor ranks; of the {len(refused)} false alarms {refused.count(32)} have. "
        f"{_wide_text(sweep, max_oom_risk)}"
    )


def _wide_text(sweep: Judged, max_oom_risk: float) -> str:
    """Peaks of one replica without a pipeline, where nothing is full: with 32 tensor ranks and with fewer."""
    off, ours = [], without_twins(sweep.ours)
    for pairs, tensor in ((sweep.known, range(2, 32)), (sweep.judged, (32,))):
        alone = [one for run, one in pairs if run.dp == run.pp == 1 and run.tp in tensor and one.peak_gib is not None]
        roomy = [one for one in alone if oom_probability(predict_memory(ours, one)) <= max_oom_risk]
        off.append(relative_errors(ours, roomy))
    small, wide = off
    return (
        f"Where ours has room, though, the {len(wide)} jobs of one replica with 32 tensor ranks are off by "
        f"{np.mean(wide):.1%} in the mean, the {len(small)} with fewer, which calibrate, by {np.mean(small):.1%} "
        "(constants alone, in sample): nothing large that such a job holds is missing; it is full devices that are not "
        "understood."
    )


def _worst_rows(sweep: Judged, found: Sequence[Twin]) -> list[Row]:
    behind = replace(sweep.ours, run_ahead_buffers=0.0, pile_up_buffers=0.0)
    of_twins = {id(twin.run): f"{twin.twin_gib:.1f}" for twin in found}
    worst = furthest_off(sweep.ours, sweep.judged)
    return [
        {
            "job": f"{_configuration(run)}, ZeRO {run.zero_stage}",
            "iteration, s": f"{run.iter_time_s or 0:.1f}",
            "peak, GiB": f"{memory.peak_gib or 0:.1f}",
            "ours": f"{predict_memory(sweep.ours, memory).taken_gib:.1f}",
            "no host ahead": f"{predict_memory(behind, memory).taken_gib:.1f}",
            "twin": of_twins.get(id(run), ""),
            "adds to the mean": f"{error / len(worst):.2%}",
        }
        for error, (run, memory) in worst[:WORST]
    ]


def _reversal_text(sweep: Judged) -> str:
    found = reversals(sweep.known, sweep.judged)
    lived = {_configuration(one.lived) for one in found}
    return (
        "One replica, no pipeline, tensor groups over more hosts. Micro-batch and its share on a rank are as large or "
        "larger in the job that lived, so that no activation is smaller; parameters and state are, by so much. Who "
        "predicts needs that grow with what is held, and believes the dead jobs, which calibrate, refuses the living "
        f"ones: {len(lived)} false alarms of {sum(memory.ran_out is False for _, memory in sweep.judged)}."
    )


def _reversal_rows(sweep: Judged) -> list[Row]:
    return [
        {
            "ran out": _configuration(one.died),
            "lived": _configuration(one.lived),
            "peak, GiB": f"{(one.lived.peak_mem_bytes or 0) / GIB:.1f}",
            "iteration, s": f"{one.lived.iter_time_s or 0:.1f}",
            "parameters and state less by, GiB": f"{one.less_static_gib:.1f}",
        }
        for one in reversals(sweep.known, sweep.judged)
    ]


def _full_rows(sweep: Judged) -> list[Row]:
    rows = []
    for name, pairs in (("calibrating", sweep.known), ("judged", sweep.judged)):
        found = on_full_device(sweep.ours, pairs)
        for kind, members in (
            ("no pipeline", [one for one in found if one[0].pp == 1]),
            ("pipeline", [one for one in found if one[0].pp != 1]),
        ):
            died, lived = (sum(memory.ran_out is label for _, memory in members) for label in (True, False))
            rows.append(
                {
                    "jobs": f"{name}, {kind}",
                    "tensor ranks": ", ".join(sorted({str(run.tp) for run, _ in members}, key=int)),
                    "died": str(died),
                    "ran and then died": str(len(members) - died - lived),
                    "lived": str(lived),
                    "the next one dies": f"{(len(members) - lived + 1) / (len(members) + 2):.0%}",
                }
            )
    return rows


def _peak_rows(sweep: Judged) -> list[Row]:
    said = {id(run): predict_memory(without_twins(sweep.ours), memory) for run, memory in (*sweep.known, *sweep.judged)}
    rows = []
    for name, pairs in (("calibrating", sweep.known), ("judged", sweep.judged)):
        replayed = replayed_peaks([run for run, _ in pairs], read_stack())
        roomy = [(run, peak) for run, peak in replayed if peak < said[id(run)].usable_gib]
        measured = np.array([(run.peak_mem_bytes or 0) / GIB for run, _ in roomy])
        off = np.abs(np.array([peak for _, peak in roomy]) / measured - 1)
        ours = np.abs(np.array([said[id(run)].taken_gib for run, _ in roomy]) / measured - 1)
        rows.append(
            {
                "jobs": name,
                "peaks": str(len(roomy)),
                "replay: mean error": f"{off.mean():.1%}",
                "median": f"{np.median(off):.1%}",
                "ours: mean error": f"{ours.mean():.1%}",
                "median of ours": f"{np.median(ours):.1%}",
            }
        )
    return rows


def _replay_rows(sweep: Judged, folder: Path) -> list[Row]:
    runs = [run for run in read_runs(folder / sweep.split.file) if _is_replayed(run)]
    found = sorted(endings(runs, read_stack(), sweep.ours), key=lambda one: (one.run.tp, one.run.model, one.run.mbs))
    return [
        {
            "tensor ranks": str(tp),
            "model": model,
            "lived with micro-batches of": _batches(one for one in group if not one.ran_out),
            "died with": _batches(one for one in group if one.ran_out),
            "the replay lives with": _batches(one for one in group if not one.replay_ran_out),
            "of these on a full device": _batches(one for one in group if one.num_waits),
        }
        for (tp, model), group in _grouped(found)
    ]


def _is_replayed(run: MeasuredRun) -> bool:
    return (run.tp or 1) >= 8 and (run.mbs or 1) >= 16 and not run.model.endswith(TOO_LARGE)


def _grouped(found: Sequence[Ending]) -> list[tuple[tuple[int | None, str], list[Ending]]]:
    groups = groupby(found, key=lambda one: (one.run.tp, one.run.model))
    return [(key, list(members)) for key, members in groups]


def _batches(found: Iterable[Ending]) -> str:
    return ", ".join(str(one.run.mbs) for one in found)


def _hindsight_rows(split: Judged) -> list[Row]:
    runs = [memory for _, memory in split.judged]
    rows = []
    for name, framework in {"ours, from small jobs": split.ours, **split.hindsight}.items():
        errors = np.sort(relative_errors(framework, runs))
        over, ran_out = labelled_room(framework, runs)
        missed, false = int((ran_out & (over <= 0)).sum()), int((~ran_out & (over > 0)).sum())
        rows.append(
            {
                "runs": split.split.name,
                "constants": name,
                "mean error": f"{errors.mean():.2%}" if len(errors) else "",
                "median": f"{np.median(errors):.1%}" if len(errors) else "",
                f"of it the {WORST} worst": f"{errors[-WORST:].sum() / len(errors):.1%}" if len(errors) else "",
                "missed": f"{missed} of {ran_out.sum()}",
                "false": f"{false} of {(~ran_out).sum()}",
            }
        )
    return rows


def _scale_text(found: Sequence[Twin], labels: Judged) -> str:
    median = float(np.median([abs(np.log(one.twin_gib / one.peak_gib)) for one in found]))
    deviation = median / NormalDist().inv_cdf(0.75) / np.sqrt(2)
    return (
        f"For scale: the twins' median difference is that of single runs with a standard deviation of {deviation:.1%}, "
        f"were they normal and alike; our fit to the labels of WANT's 64 GPUs finds errors of {labels.ours.spread:.1%} "
        "likeliest."
    )


def _refusal_rows(splits: Sequence[Judged], max_oom_risk: float) -> list[Row]:
    rooms = {
        f"{one.split.name}; {name}": labelled_room(one.hindsight[name], [memory for _, memory in one.judged])
        for one in splits
        for name in (OUR_FIT, FREE_FIT)
    }
    rows = []
    for spread in SPREADS:
        row = {"error": f"{spread:.1%}"}
        for name, (over, ran_out) in rooms.items():
            least = least_refusals(over, ran_out, spread, max_oom_risk)
            share = least.refused / least.fitted
            row[name] = f"{least.refused:.1f} of {least.fitted}: {share:.1%}; right {least.accuracy:.1%}"
        rows.append(row)
    return rows


def _quantile(max_oom_risk: float) -> float:
    return NormalDist().inv_cdf(1 - max_oom_risk)


def _table(rows: list[Row]) -> str:
    if not rows:
        return "nothing"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
