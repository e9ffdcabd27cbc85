"""Whole jobs that vendors and other projects measured, predicted with the shipped stack."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.backtest import vendor
from benchmarks.backtest.sources import measured_runs
from benchmarks.silicon.tables import folder
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, why_untimed
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import StackSpec

SLICES = "SimuMax, Llama slices in bf16 on 8 B200"

BEFORE = {
    SLICES: 25.4,
    "vendor's dense rows in fp8": 8.6,
    "DGX Cloud's recipes, dense, bf16 and fp8": 18.1,
    "MLPerf 3.0 to 5.0, dense": 9.1,
    "MLPerf 5.1, Llama 3.1 8B and 405B": 10.5,
    "Automodel, dense, bf16 on H100": 4.7,
    "GPT-OSS 120B, 64 GPUs": 24.2,
    "mixtures, GPT-OSS and Qwen3": 23.2,
    "Bridge's cards, Qwen3 30B over two H100 hosts": 93.4,
    "Korthikanti et al., A100": 2.5,
}
"""
Mean errors in percent of the same rows before measured links, launches and dispatch, from an earlier run of this
script.

They had all of the links' rate, no launches, and an all-to-all of all copies of tokens.
"""

PROFILED_SHARE = 0.49
"""
Fraction of the dense peak that large forward products reach on the B200 host of the slices.

Source: its operator profile, mean of shapes ``TN`` of 4,096 tokens and at least 8,192 columns both ways
(github.com/MooreThreads/SimuMax at 4dcaae5, ``configs/system/b200_bf16_ceperm.json``).
"""


def job_lines() -> Iterator[str]:
    """Yield the lines of the page's section on whole jobs: mean errors before and now."""
    stack = read_stack()
    yield "## Whole jobs, shipped stack\n"
    yield "None of these rows was fitted to, but MLPerf 3.0 to 5.0 is one of five sources of the stack's launches"
    yield "(`data/stacks/megatron-core.yaml`). Each row overlaps what its framework's recipe does.\n"
    yield "| rows | number | before | now | worst | median of predicted / measured |"
    yield "|---|---|---|---|---|---|"
    for name, runs in _rows(folder().parent / "measured"):
        yield _row(name, f"{BEFORE[name]:.1f} %", _ratios(runs, stack))
        if name == SLICES:
            share = next(run.gpu.gpu.efficiency.wide.share for run in runs if run.gpu is not None)
            profiled = stack.with_constants({"matmul_speed": PROFILED_SHARE / share})
            yield _row("the same, products at the rate that SimuMax profiled on its host", "", _ratios(runs, profiled))
    yield "\n- SimuMax's GPUs multiply at 0.49 of the peak by its own operator profile; NVIDIA's tables have 0.60,"
    yield "  and bf16 rows of GB200 from DGX Cloud agree with NVIDIA's. The constants stay NVIDIA's: hosts differ, and"
    yield "  what a host sustains has to be measured there (`pipette-opt profile compute`)."
    yield "- A law of power does not tell it: sustained bf16 products of 10^11 FLOP and more draw 900 to 1,000 W on"
    yield "  B200 and attain 0.60 of the peak, 1.4 TFLOP/s a watt; 0.49 is what 780 W would give, and nobody says what"
    yield "  a host may draw."
    yield "- DGX Cloud: most of the gain, 18.1 to 6.1 %, is reading rows right: attention was taken as unfused."
    yield "- Mixtures: rows are now read by the recipe of their release. From 26.06 on tokens go beside compute in"
    yield "  mxfp8 on Blackwell, and one graph launches an iteration of the 235B: 37 to 11 % for these ten rows, and"
    yield "  most of what that release gained over the one before. GPT-OSS has an all-to-all."
    yield "- GPT-OSS: a fifth too fast on every GPU and release, a third with its windows"
    yield "  (`benchmarks/layer_lists.py`). What is missing grows with tokens: 0.5 to 0.7 us a token and layer on"
    yield "  Blackwell, the same at 4,096 and at 8,192 tokens a sequence, so it is not attention; 0.8 to 1.2 us on"
    yield "  H100. Times the memory's rate that is 2 to 5 MB a token on all GPUs. With the recipe in mxfp8 whose"
    yield "  operations Transformer Engine fuses one release is 9 % off, the next, same layout, took 58 % longer"
    yield "  and is 43 % off. Clamping the activation apart (ten passes) is a seventh."
    yield "- Rows on Hopper whose framework runs FlashAttention 2 have 0.57 of the rate of the third version, as"
    yield "  published: Automodel 4.1 to 3.3 %, worst 16 to 10 %."


def _row(name: str, before: str, ratios: FloatArray) -> str:
    error = 100 * np.abs(ratios - 1)
    now = f"{error.mean():.1f} % | {error.max():.0f} % | {np.median(ratios):.2f}"
    return f"| {name} | {len(ratios)} | {before} | {now} |"


def _rows(measured: Path) -> Iterator[tuple[str, Sequence[MeasuredRun]]]:
    """Yield name and runs of each table row."""
    tables = measured_runs(measured / "nvidia_perf_tables.csv")
    dense = [run for part in vendor.dense(tables) for run in part if "fp8" in (run.precision or "")]
    slices = [run for run in measured_runs(measured / "simumax.csv") if run.gpu_name and "B200" in run.gpu_name.upper()]
    papers = measured_runs(measured / "published_tables.csv")
    cloud = [run for run in measured_runs(measured / "dgxc_25_05.csv") if not run.cells.get("num_experts")]
    cards = [run for run in measured_runs(measured / "megatron_bridge_cards.csv") if run.model == "Qwen3-30B-A3B"]
    names = iter(BEFORE)
    yield next(names), slices
    yield next(names), dense
    yield next(names), [vendor.on_hosts(run, {}) for run in cloud]
    logs = vendor.mlperf(measured_runs(measured / "mlperf_training.csv"))
    yield next(names), [run for part in logs for run in part]
    yield next(names), [vendor.on_hosts(run, {}) for run in measured_runs(measured / "mlperf_v51.csv")]
    yield next(names), [run for run in measured_runs(measured / "automodel.csv") if not run.cells.get("num_experts")]
    yield next(names), vendor.gpt_oss(tables)[1]
    yield next(names), [run for part in vendor.experts(tables) for run in part]
    yield next(names), cards
    yield next(names), [run for run in papers if run.source.startswith("Korthikanti")]


def _ratios(runs: Sequence[MeasuredRun], stack: StackSpec) -> FloatArray:
    cases = [
        case
        for case in make_cases(runs, stack)
        if isinstance(case, Case) and not why_untimed(case) and case.run.iter_time_s and not case.run.oom
    ]
    return predicted_times_s(cases) / np.array([case.run.iter_time_s for case in cases])
