"""
Effect of the memory network on a search: ``python -m benchmarks.memory.effect -o PAGE``.

Every legal configuration of a few jobs is predicted twice: by the shipped predictor, and by its formula and constants
alone, with the network held at a correction of zero. Compared are the peak of the fullest stage, and the verdict of the
memory filter at the default accepted risk.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import made_by, run_page
from pipette_opt.base.types import FloatArray
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import without_overlap
from pipette_opt.read.model import read_model
from pipette_opt.read.nominal import nominal_cluster
from pipette_opt.specs import Instance, TrainingSpec

JOBS = (("llama-3-8b", 2), ("llama-2-13b", 4), ("mixtral-8x7b", 4), ("llama-2-70b", 16), ("llama-3.1-405b", 64))
"""Models, and their numbers of hosts of eight GPUs. Chosen."""

GPU = "a100-80gb"
"""GPU of all hosts; 80 GiB."""

SEQUENCES_PER_HOST = 32
"""Global batch size of a job, per host. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Effect:
    """
    Changes that the network makes to the predictions of a job's configurations.

    Parameters
    ----------
    name
        Model and number of hosts.
    changes
        Peak of the fullest stage with the network, over the peak without it, less 1, shape ``(num_configs,)``.
    fits, fits_alone
        Number of configurations that fit with the network, and without it.
    flipped
        Number of configurations that fit by one prediction only.
    """

    name: str
    changes: FloatArray
    fits: int
    fits_alone: int
    flipped: int


def without_network(predictor: MemoryPredictor) -> MemoryPredictor:
    """Return the predictor with a correction of zero: formula and constants alone."""
    return replace(predictor, network=replace(predictor.network, log_ratio_range=np.zeros(2)))


def effect_on(model: str, nodes: int) -> Effect:
    """Return the network's effect on all configurations of a job; those that differ in overlap only count once."""
    instance = Instance(
        model=read_model(model),
        cluster=nominal_cluster(nodes=str(nodes), gpu=GPU, nics="4x200", gpus_per_node=8),
        training=TrainingSpec(global_batch_size=SEQUENCES_PER_HOST * nodes, seq_length=4096),
    )
    configs = list(dict.fromkeys(map(without_overlap, enumerate_candidates(instance, SearchSpace()))))
    predictor = MemoryPredictor.load()
    peaks, fitting = [], []
    for each in (predictor, without_network(predictor)):
        check = keep_fitting(instance, configs, each)
        found = {checked.config: checked.prediction for checked in (*check.fitting, *check.rejected)}
        peaks.append(np.array([found[config].predicted_bytes.max() for config in configs], dtype=np.float64))
        fitting.append({checked.config for checked in check.fitting})
    return Effect(
        name=f"{model}, {nodes} hosts",
        changes=peaks[0] / peaks[1] - 1,
        fits=len(fitting[0]),
        fits_alone=len(fitting[1]),
        flipped=len(fitting[0] ^ fitting[1]),
    )


def page(effects: Sequence[Effect]) -> str:
    """Return the page: the answer, then a row for each job."""
    count, flipped = sum(len(effect.changes) for effect in effects), sum(effect.flipped for effect in effects)
    means = [np.abs(effect.changes).mean() for effect in effects]
    largest = max(np.abs(effect.changes).max() for effect in effects)
    lines = [
        "# What the memory network changes",
        "",
        f"- It moves the peak of the fullest stage by {min(means):.3%} to {max(means):.3%} in the mean of a job, by "
        f"{largest:.2%} at most.",
        f"- It changes {flipped} of {count:,} verdicts. Counted tensors and the constants of the stack decide what "
        "fits.",
        "- What is unknown is far larger: the bound assumes that stacks differ by a standard deviation of 5 %.",
        "",
        made_by(),
        f"All legal configurations of the default search space on hosts of eight {GPU}, {SEQUENCES_PER_HOST} sequences "
        "of 4,096 tokens a host, with and without the network. Its error against traces is in "
        "[its card](../../models/memory.md).",
        "",
        "| job | configurations | mean change | largest | fit | fit without | verdicts changed |",
        "|---|---|---|---|---|---|---|",
    ]
    for effect in effects:
        size = np.abs(effect.changes)
        lines.append(
            f"| {effect.name} | {len(size):,} | {size.mean():.3%} | {size.max():.2%} | {effect.fits:,} | "
            f"{effect.fits_alone:,} | {effect.flipped} |"
        )
    return "\n".join([*lines, ""])


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page after each job."""
    effects: list[Effect] = []
    for model, nodes in JOBS:
        effects.append(effect_on(model, nodes))
        yield page(effects)


if __name__ == "__main__":
    run_page(make)
