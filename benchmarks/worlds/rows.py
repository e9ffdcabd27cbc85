"""Public runs as arrays: terms of their predictions, and measured over predicted time."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, why_untimed
from pipette_opt.calibrate.described import describe_cases
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

CHECKED_ONLY = {"want_llama_a100": "WANT (arXiv 2311.05610)"}
"""Tables that only judge: WANT's licence is CC BY-NC-SA."""

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
    run
        Row as it was read.
    job
        Key that the runs of its job share.
    stack
        Key that the runs of its stack share: table, GPU, precision, and whether the model has experts.
    terms
        Terms of the prediction, shape ``(num_terms,)``.
    log_ratio
        Logarithm of measured over predicted time.
    """

    table: str
    run: MeasuredRun
    num_gpus: int
    source: str
    job: Hashable
    stack: Hashable
    terms: FloatArray
    log_ratio: float
    predicted_s: float


def rows_of(folder: Path, table: str) -> list[Row]:
    """Return the timed pre-training runs of a table whose time can be predicted."""
    cases = _timed(read_rows(folder / f"{table}.csv")[0])
    if not cases:
        return []
    predicted_s, terms = describe_cases(cases)
    rows = []
    for case, time_s, row in zip(cases, predicted_s.tolist(), terms, strict=True):
        if np.isfinite(time_s) and case.run.iter_time_s is not None:
            run = case.run
            rows.append(
                Row(
                    table=table,
                    run=run,
                    num_gpus=run.num_gpus,
                    source=run.source,
                    job=(table, *job_of(run)),
                    stack=(table, run.gpu_name, run.precision, case.instance.model.num_experts is not None),
                    terms=row,
                    log_ratio=float(np.log(case.run.iter_time_s / time_s)),
                    predicted_s=time_s,
                )
            )
    return rows


def job_of(run: MeasuredRun) -> tuple[Hashable, ...]:
    """Return the cells that runs of one job share."""
    place = (run.source, run.gpu_name, run.model, run.seq_len, run.gbs, run.num_gpus)
    return (*place, run.attention_kernel, run.precision)


def by_job(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the rows of each job."""
    found: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.job].append(row)
    return list(found.values())


def _timed(runs: Sequence[MeasuredRun]) -> list[Case]:
    """Return the runs with a time that the simulator can predict."""
    return [
        case
        for case in make_cases([run for run in runs if _is_pretraining(run)], read_stack())
        if isinstance(case, Case) and not why_untimed(case) and not case.run.oom and case.run.iter_time_s
    ]


def _is_pretraining(run: MeasuredRun) -> bool:
    task = " ".join((run.extra.get("task", ""), run.extra.get("train_mode", ""), run.extra.get("hybrid", "")))
    words = f"{run.model} {run.notes} {task}".lower()
    lora = run.extra.get("is_lora", "").lower() == "true"
    return not (lora or any(word in words for word in NOT_PRETRAINING))
