"""
Rows of Megatron-LM's functional tests: columns from their notes, and layouts for fit and test.

Most rows are a model of twelve layers, 512 wide, on eight GPUs. A test runs with two software versions, and often again
from a checkpoint. So layouts are halved, not rows: the fit sees no layout of the test.
"""

import re
from collections.abc import Sequence

import numpy as np

from benchmarks.measured import completed
from pipette_opt.read.runs import MeasuredRun

SMALL = 512
"""Hidden size of the small model."""

NOT_MODELLED = ("use-megatron-fsdp", "multi-latent-attention")
PARTLY_KNOWN = ("decoder-first-pipeline-num-layers", "account-for-embedding-in-pipeline-split")
"""Flags of rows that are left out: options without a model, and layers per stage that the row does not give."""


def small_models(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """Return the small model's runs, divided by layout into one half and the other."""
    usable = [flagged for run in runs if hidden(run) == SMALL and (flagged := with_flags(run)) is not None]
    layouts = list(dict.fromkeys(layout(run) for run in usable))
    order = np.random.default_rng(0).permutation(len(layouts))
    seen = {layouts[index] for index in order[: len(layouts) // 2]}
    return [run for run in usable if layout(run) in seen], [run for run in usable if layout(run) not in seen]


def large_models(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """Return no runs to fit to, and the runs of larger models with a known batch."""
    found = [with_flags(run) for run in runs if hidden(run) > SMALL and run.launch.global_batch_size is not None]
    return [], [run for run in found if run is not None]


def hidden(run: MeasuredRun) -> int:
    """Return the hidden size of a run; 0 if it is not known."""
    return 0 if run.launch.model is None else run.launch.model.hidden_size


def layout(run: MeasuredRun) -> tuple[object, ...]:
    """Return the configuration of a test as a key."""
    degrees = ("tp", "pp", "dp", "vpp", "cp", "ep")
    how = ("zero_stage", "seq_parallel", "recompute", "attention_kernel", "precision")
    return run.model, *(run.cells.get(name, "") for name in (*degrees, *how))


def with_flags(run: MeasuredRun) -> MeasuredRun | None:
    """
    Return the row with its notes as columns; ``None`` if an option in them is not modelled.

    Experts per token: one, or two in tests with ``top2router`` in their name (NVIDIA/Megatron-LM,
    ``tests/functional_tests/test_cases/moe/*/model_config.yaml``).
    """
    flags = flags_of(run)
    if any(flag.startswith((*NOT_MODELLED, *PARTLY_KNOWN)) for flag in flags):
        return None
    version = re.search(r"env (\w+)", run.notes)
    cells = {
        "tied_embeddings": "false" if "untie-embeddings-and-output-weights" in flags else "true",
        "gated_linear_unit": "true" if "swiglu" in flags else "false",
        "stack_version": version.group(1) if version else "",
    }
    experts = run.cells.get("n_experts", "").removesuffix(".0")
    if experts:
        cells |= {
            "num_experts": experts,
            "moe_router_topk": "2" if "top2router" in run.model else "1",
            "moe_ffn_hidden_size": run.cells.get("ffn_hidden") or str(4 * SMALL),
        }
    cells["model"] = f"{run.cells['num_layers']} layers, {run.cells['hidden']} wide"
    if experts:
        cells["model"] += f", {experts} experts"
    if run.cells.get("recompute") == "full uniform 1":
        cells["recompute"] = "full"
    return completed(run, cells)


def flags_of(run: MeasuredRun) -> list[str]:
    """Return Megatron's options in the notes."""
    found = re.search(r"flags ([^;]+)", run.notes)
    return [flag.strip() for flag in found.group(1).split(",")] if found else []
