"""
Ten steps and the memory peak of five small jobs on one GPU, predicted before they run.

``python -m benchmarks.silicon.five_jobs --predict predictions.json --gpu h200`` writes the predictions. Where torch has
a GPU, ``python -m benchmarks.silicon.five_jobs --run predictions.json --out measured.json`` runs the jobs of that file
in under ten minutes, and writes the measured rows with the predictions, and the page ``measured.md`` beside them. It
needs torch, and none of the package's dependencies. Neither command overwrites a file: predictions stay as they were
made. ``benchmarks/silicon/plain_models.py`` has the jobs in PyTorch.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""Folder of the checkout."""

WARM_UP, STEPS = 3, 10
"""Steps before the timed ones, and timed steps."""

LIMIT_S = 110.0
"""Seconds after which a job is stopped, so that all five take under ten minutes. Chosen."""

GIB = 2.0**30

SMALL_LLAMA = {
    "num_layers": 16,
    "hidden_size": 2048,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "kv_channels": 64,
    "vocab_size": 128256,
}
"""Sizes of Llama 3.2 1B, with Megatron-Core's names; embedding and head share a table."""

LLAMA_3B = SMALL_LLAMA | {"num_layers": 28, "hidden_size": 3072, "num_attention_heads": 24, "kv_channels": 128}
"""Sizes of Llama 3.2 3B."""

MIXTURE = SMALL_LLAMA | {
    "num_layers": 12,
    "ffn_hidden_size": 2816,
    "num_attention_heads": 16,
    "kv_channels": 128,
    "num_experts": 8,
    "moe_router_topk": 2,
}
"""Sizes of a mixture of 2.1 billion parameters, 0.8 billion of them for each token."""


@dataclass(frozen=True, kw_only=True)
class SmallJob:
    """
    Job on one GPU.

    Parameters
    ----------
    method
        ``full``: all parameters, with fp32 main copies. ``fsdp2``: the same with ``fully_shard`` over one rank.
        ``lora``, ``qlora``: adapters on all products of a frozen model in bf16, or in four bits.
    sizes
        Sizes of the model, with the names of ``ModelSpec``.
    software
        Shipped stack that prices the job; ``None`` if the product has no price for it.
    peak
        Peak that this stack's constants describe: ``allocated`` or ``reserved``.
    """

    name: str
    method: str
    sizes: Mapping[str, int]
    software: str | None = None
    peak: str = "allocated"
    seq_length: int = 4096
    micro_batch_size: int = 2
    global_batch_size: int = 8


JOBS: Sequence[SmallJob] = (
    SmallJob(name="dense", method="full", sizes=SMALL_LLAMA, software="megatron-core"),
    SmallJob(name="experts", method="full", sizes=MIXTURE, software="megatron-core"),
    SmallJob(name="fsdp2", method="fsdp2", sizes=SMALL_LLAMA, software="torchtitan", peak="reserved"),
    SmallJob(name="lora", method="lora", sizes=LLAMA_3B),
    SmallJob(name="qlora", method="qlora", sizes=LLAMA_3B),
)
"""The five jobs."""

NOTES = """\
- Predicted is the expected time, its range in nine of ten jobs like it, and the peak of the fullest moment; the error
  is predicted / measured - 1. Predictions of `megatron-core` mean the allocated peak, of `torchtitan` the reserved one.
- `-`: not predicted. The product has no model of LoRA and QLoRA yet; these rows are measured only.
- The jobs are plain PyTorch, and Megatron-Core's kernels are priced: here queries, keys and values are three products,
  the gate is not fused and keeps one more tensor, rotary positions are separate kernels, and the loss holds three fp32
  tensors of the logits' size at once. All of it makes the measured figures larger than the predicted ones.
- `dense` and `experts` keep fp32 copies, gradients and moments beside bf16 parameters, as Megatron-Core does, but
  products do not add to the gradients themselves. In `experts` tokens go to the experts in turn: loads are equal.
- `fsdp2`: `fully_shard` over one rank, parameters in fp32 that are cast to bf16. torchtitan's memory is assumed, not
  fitted, and counts another 2 bytes a parameter.
- `lora`, `qlora`: rank 16 on all products of the layers; the frozen weights are in bf16, or in four bits (NF4).
"""


def predictions(jobs: Sequence[SmallJob], gpu: str) -> dict[str, Any]:
    """Return the predictions of jobs on one GPU of a type, with their date and commit."""
    return {
        "predicted": _now(),
        "commit": _commit(),
        "gpu": gpu,
        "torch": "unknown",
        "jobs": [asdict(job) | {"predicted": predicted(job, gpu)} for job in jobs],
    }


def model_of(job: SmallJob) -> Any:
    """Return the model of a job as the product describes it (``ModelSpec``)."""
    from pipette_opt.specs import ModelSpec

    return ModelSpec(
        name=job.name,
        **job.sizes,
        max_position_embeddings=job.seq_length,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=False,
        normalization="RMSNorm",
        position_embedding_type="rope",
    )


def predicted(job: SmallJob, gpu: str) -> dict[str, Any] | None:
    """Return seconds of a step, bytes of the peak and parameters of a job; ``None`` if the product has no price."""
    if job.software is None:
        return None
    import numpy as np

    from pipette_opt.job.read import Made, read_job
    from pipette_opt.options.description import JobOptions
    from pipette_opt.parallel import ParallelConfig, identity_placement
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.estimate import estimate
    from pipette_opt.simulate.solutions import stage_memory
    from pipette_opt.worlds.bands import with_band

    model = model_of(job)
    machine = JobOptions(
        nodes="1",
        gpu=gpu,
        gpus_per_node=1,
        software=job.software,
        global_batch_size=job.global_batch_size,
        seq_length=job.seq_length,
    )
    instance = read_job(machine, Made(model=model)).instance
    is_sharded = job.method == "fsdp2"
    config = ParallelConfig(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=job.micro_batch_size,
        layers_per_stage=(model.num_layers,),
        zero_stage=3 * is_sharded,
        use_distributed_optimizer=is_sharded,
    )
    placement = identity_placement(config, 1, np.arange(1), "tp-cp-ep-dp-pp")
    time_s = with_band(estimate(instance, config, placement), instance, config, placement)
    (memory,) = stage_memory(instance, config, placement, load_predictor(0.01, instance), 0.01)
    assert time_s.band is not None
    return {
        "parameters": model.num_parameters,
        "step_s": time_s.expected_s,
        "low_s": time_s.band.low_s,
        "high_s": time_s.band.high_s,
        "simulated_s": time_s.iteration_time_s,
        "peak_bytes": memory.predicted_bytes,
        "components": dict(memory.components),
    }


def measured(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Run a job in this process; return its seconds, bytes of its peaks (``None`` without a GPU) and parameters.

    Weights in four bits count as the bytes that hold two of them.
    """
    if job["method"] == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        return {"failed": "not run: needs bitsandbytes"}
    import torch

    from benchmarks.silicon import plain_models

    cuda = torch.cuda if plain_models.DEVICE == "cuda" else None
    model = plain_models.built(job)
    row = {
        "device": cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "parameters": sum(each.numel() for each in model.parameters()),
        "trained_parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
    }
    step = plain_models.training_step(job, model)
    for _ in range(WARM_UP):
        step()
    if cuda:
        cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        loss = step()  # reads the loss from the device
        if cuda:
            cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return row | {
        "steps_s": seconds,
        "step_s": statistics.median(seconds),
        "loss": loss,
        "allocated_bytes": cuda.max_memory_allocated() if cuda else None,
        "reserved_bytes": cuda.max_memory_reserved() if cuda else None,
    }


def measured_apart(path: Path, name: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run a job of a prediction file in a process of its own; a crash or too long a run gives a row with the reason."""
    command = [sys.executable, "-m", "benchmarks.silicon.five_jobs", "--run", str(path.resolve()), "--job", name]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"stopped after {limit_s:g} s"}
    if found := [line for line in ended.stdout.splitlines() if line.startswith("{")]:
        row: dict[str, Any] = json.loads(found[-1])
        return row
    lines = [line for line in ended.stderr.splitlines() if line.strip()] or ["no message"]
    error = next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return {"failed": f"ended with {ended.returncode}: {error[:300]}"}


def run(path: Path, out: Path) -> None:
    """Measure the jobs of a prediction file, and write the results after each job, with the page beside them."""
    given = json.loads(path.read_text(encoding="utf-8"))
    began = time.perf_counter()
    results = {"measured": _now(), "predictions": given, "rows": {}}
    for job in given["jobs"]:
        row = measured_apart(path, job["name"])
        results["rows"][job["name"]] = row
        print(f"{time.perf_counter() - began:6.1f} s  {job['name']}: {row.get('failed') or row['step_s']}", flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(page(results), encoding="utf-8")
    print("\n" + page(results))


def page(results: Mapping[str, Any]) -> str:
    """Return the page on predictions and what was measured."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    given, rows = results["predictions"], results["rows"]
    found = next((row for row in rows.values() if "device" in row), {"device": "no device", "torch": "unknown"})
    yield "# Five small jobs, predicted before they ran\n"
    yield f"Predicted for {given['gpu']} on {given['predicted']} (commit {given['commit']}), measured from"
    yield f"{results['measured']} on {found['device']} with torch {found['torch']}."
    yield f"Medians of {STEPS} steps after {WARM_UP}; peaks in GiB.\n"
    yield "Made by `python -m benchmarks.silicon.five_jobs`.\n"
    yield "| job | seconds predicted | measured | error | peak predicted | allocated | reserved | error | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for job in given["jobs"]:
        if job["name"] in rows:
            yield _row(job, rows[job["name"]])
    yield f"\n{NOTES}"


def _row(job: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return a job's line of the table."""
    before, seconds = job["predicted"], row.get("step_s")
    allocated, reserved = row.get("allocated_bytes"), row.get("reserved_bytes")
    peak = row.get(f"{job['peak']}_bytes")
    cells = [
        f"{before['step_s']:.3g} ({before['low_s']:.3g} to {before['high_s']:.3g})" if before else "-",
        f"{seconds:.3g}" if seconds else "-",
        _error(before["step_s"] if before else None, seconds),
        f"{before['peak_bytes'] / GIB:.1f}" if before else "-",
        *(f"{value / GIB:.1f}" if value else "-" for value in (allocated, reserved)),
        _error(before["peak_bytes"] if before else None, peak),
        row.get("failed", ""),
    ]
    return f"| {job['name']} | {' | '.join(cells)} |"


def _error(before: float | None, after: float | None) -> str:
    return f"{100 * (before / after - 1):+.0f} %" if before and after else "-"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _commit() -> str:
    """Return the checkout's commit, marked if files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def main() -> None:
    """Predict, or run what was predicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", type=Path, metavar="FILE", help="write the predictions")
    parser.add_argument("--gpu", default="h200", help="with --predict: GPU type of `pipette-opt gpus`")
    parser.add_argument("--run", type=Path, metavar="FILE", help="run the jobs of a prediction file on this GPU")
    parser.add_argument("--out", type=Path, help="with --run: JSON file for the results; the page goes beside it")
    parser.add_argument("--job", help="with --run: run this job only, in this process, and print its row")
    options = parser.parse_args()
    if (options.predict is None) == (options.run is None):
        parser.error("needs either --predict or --run")
    if options.job:
        jobs = json.loads(options.run.read_text(encoding="utf-8"))["jobs"]
        print(json.dumps(measured(next(job for job in jobs if job["name"] == options.job))))
        return
    written = options.predict or options.out
    if written is None:
        parser.error("--run needs --out")
    if written.exists():
        parser.error(f"{written} exists, and predictions and results stay as they were made; name another file")
    if options.predict:
        made = json.dumps(predictions(JOBS, options.gpu), indent=1) + "\n"
        options.predict.write_text(made, encoding="utf-8")
    else:
        run(options.run, options.out)


if __name__ == "__main__":
    main()
