"""
Rows of public measurements, completed with known columns of their sources in the form of ``runs.csv``.

Cells that the file fills stay unchanged. Expert-parallel degrees are read from notes where no column has them.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.backtest.vendor import expert_degree, tokens_sent
from benchmarks.measured import completed
from pipette_opt.read.run_launches import recomputation_word
from pipette_opt.read.runs import MeasuredRun, read_runs

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "mlperf": {"framework": "NeMo", "tuned": "true"},
    "richardyu114/training_results": {"framework": "NeMo", "tuned": "true"},
    "nemo-launcher": {"framework": "NeMo", "tuned": "true"},
    "dgxc": {"framework": "NeMo", "tuned": "true"},
    "amp": {"framework": "Megatron-DeepSpeed"},
    "vtrain": {"framework": "Megatron-DeepSpeed"},
    "want": {"framework": "AA-Scaling"},
    "megatronbridge-": {"tuned": "true"},
    "nvidia-nemo/megatron-bridge": {"grad_reduce_in_fp32": "true"},
    "megatronlm-ci": {"peak_mem_stage": "last"},
}
"""
Columns of each source, by the beginning of its name in lower case; rows of other sources name their software.

MLPerf's submissions use NeMo's performance recipes (GPT-3: ``model.optim.grad_sync_dtype: bf16``). Other recipes of
Megatron-Bridge reduce in fp32 (``bf16_mixed`` in ``training/mixed_precision.py``). Megatron-LM's tests measure the last
rank.
"""

OLD_ATTENTION = re.compile(r"mcore_tp\d|uninstall_te")
"""
Names of Megatron-LM tests whose peaks show unfused attention; other tests without a named backend have fused attention.
"""


EXPERT_RECIPES = re.compile("Qwen3|OSS")
"""Models of NVIDIA's tables whose recipes say how tokens are sent (:func:`~benchmarks.backtest.vendor.tokens_sent`)."""


def measured_runs(path: Path) -> list[MeasuredRun]:
    """Return every row of a file of measured runs, completed with known columns of its source."""
    return described(read_runs(path))


def described(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """
    Return the rows, completed with known columns of their sources.

    torchtitan's ``selective`` is by operation (``selective_ac_option = "op"`` of its Llama configurations).
    """
    return [
        completed(
            run, {name: cell for name, cell in columns_of(run).items() if not run.cells.get(name)} | by_operation(run)
        )
        for run in runs
    ]


def by_operation(run: MeasuredRun) -> dict[str, str]:
    """Return the recomputation of a row of torchtitan that is ``selective``; empty for other rows."""
    is_selective = recomputation_word(run.cells.get("recompute", "none")) == "selective"
    return {"recompute": "ops"} if is_selective and "torchtitan" in run.source + run.notes else {}


def columns_of(run: MeasuredRun) -> dict[str, str]:
    """Return the known columns of a row's source."""
    source = run.source.lower()
    known = next((columns for start, columns in COLUMNS.items() if source.startswith(start)), {})
    if source.startswith("megatronlm-ci"):
        return {**known, "fused_attention": str(not OLD_ATTENTION.search(run.model)).lower()}
    degree = expert_degree(run)
    if degree in ("", "1"):
        return dict(known)
    if not source.startswith("megatronbridge"):
        return {**known, "ep": degree}
    return {**known, "ep": degree, "etp": "1"} | (tokens_sent(run) if EXPERT_RECIPES.search(run.model) else {})
