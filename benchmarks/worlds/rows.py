"""Public runs as arrays: terms of their predictions, and measured over predicted time."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.backtest.sources import described
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, why_untimed
from pipette_opt.calibrate.described import describe_cases, references_of
from pipette_opt.read.runs import MeasuredRun, read_rows
from pipette_opt.read.stack import read_stack

SOURCES: Mapping[str, tuple[str, ...]] = {
    "AMP (NeurIPS 2022)": ("amp_aws16",),
    "Hugging Face's Ultra-Scale sweep with nanotron": ("hf_ultrascale_h100",),
    "MLPerf Training": ("mlperf_training", "mlperf_v51", "mlperf_v60"),
    "Megatron-Bridge on AWS": ("aws_moe_dispatchers",),
    "Megatron-LM functional tests": ("megatron_ci_golden",),
    "MooreThreads SimuMax": ("simumax",),
    "MosaicML llm-foundry": ("llm_foundry",),
    "NVIDIA DGX Cloud Benchmarking": ("dgxc_25_05",),
    "NVIDIA Megatron-Bridge": ("nvidia_perf_tables", "megatron_bridge_cards"),
    "NVIDIA NeMo AutoModel": ("automodel",),
    "Korthikanti et al. 2022 and torchtitan": ("published_tables", "torchtitan_trl_threads"),
    "reports in public threads": ("field_cases",),
    "vTrain (MICRO 2024)": ("vtrain_a100",),
}
"""Publishers whose measured runs make the prior, and their tables."""

CHECKED_ONLY = {
    "want_llama_a100": "WANT (arXiv 2311.05610)",
    "internevo_a100": "InternLM InternEvo",
    "torchao_fp8_h100_mi300x_b200": "PyTorch torchao",
}
"""
Tables that only judge.

WANT's licence is CC BY-NC-SA. With the two others vTrain is 2.4 and LLM Foundry 1.7 points further off, and only AMP,
whose kinds of GPU no other publisher has, is nearer.
"""

NOT_PRETRAINING = ("sft", "lora", "hybrid", "nemotron-h", "nemotronh")
"""Words in rows whose jobs the simulator does not support: fine-tuning, and layers without a model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """
    Public run with its prediction by the shipped stack.

    Parameters
    ----------
    table
        Name of its table, without suffix.
    case
        Run as it was read, with its job and its configuration.
    terms
        Terms of the prediction, shape ``(num_terms,)``.
    reference
        Terms of the reference layout of its job, shape ``(num_terms,)``.
    predicted_s
        Predicted time, seconds.
    log_ratio
        Logarithm of measured over predicted time.
    """

    table: str
    case: Case
    terms: FloatArray
    reference: FloatArray
    predicted_s: float
    log_ratio: float

    @property
    def run(self) -> MeasuredRun:
        """Run as it was read."""
        return self.case.run

    @property
    def job(self) -> Hashable:
        """Key that the runs of its job share."""
        return (self.table, *job_of(self.run))

    @property
    def stack(self) -> Hashable:
        """Key that the runs of its stack share: table, GPU, precision, and whether the model has experts."""
        run = self.run
        return self.table, run.gpu_name, run.precision, self.case.instance.model.num_experts is not None


def rows_of(folder: Path, table: str) -> list[Row]:
    """Return the timed pre-training runs of a table whose time can be predicted."""
    cases = timed_cases(described(read_rows(folder / f"{table}.csv")[0]))
    if not cases:
        return []
    predicted_s, terms = describe_cases(cases)
    measured_s = np.array([case.run.iter_time_s for case in cases])
    log_ratios = np.log(measured_s / predicted_s)
    return [
        Row(table=table, case=case, terms=own, reference=reference, predicted_s=time_s, log_ratio=log_ratio)
        for case, own, reference, time_s, log_ratio in zip(
            cases, terms, references_of(cases), predicted_s.tolist(), log_ratios.tolist(), strict=True
        )
        if np.isfinite(time_s)
    ]


def job_of(run: MeasuredRun) -> tuple[Hashable, ...]:
    """Return the cells that runs of one job share."""
    launch = run.launch
    place = (run.source, run.gpu_name, run.model, launch.seq_length, launch.global_batch_size, run.num_gpus)
    return (*place, run.attention_kernel, run.precision)


def by_job(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each job."""
    found: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.job].append(row)
    return list(found.values())


def timed_cases(runs: Sequence[MeasuredRun]) -> list[Case]:
    """Return the runs with a time that the simulator can predict."""
    return [
        case
        for case in make_cases([run for run in runs if _is_pretraining(run)], read_stack())
        if isinstance(case, Case)
        and not why_untimed(case)
        and not case.run.oom
        and case.run.iter_time_s
        and _names_its_precision(case)
    ]


def _names_its_precision(case: Case) -> bool:
    """Return whether the precision of a run's products is known: named, or on a GPU without FP8."""
    gpu = case.instance.cluster.nodes[0].gpu
    return bool(case.run.precision) or "fp8" not in gpu.peak_flops


def _is_pretraining(run: MeasuredRun) -> bool:
    task = " ".join((run.cells.get("task", ""), run.cells.get("train_mode", ""), run.cells.get("hybrid", "")))
    words = f"{run.model} {run.notes} {task}".lower()
    lora = run.cells.get("is_lora", "").lower() == "true"
    return not (lora or any(word in words for word in NOT_PRETRAINING))
