"""
Pipelines whose micro-batches are slices of a sequence: optimal slice lengths against equal slices and none.

Z. Li et al., "TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models" (ICML 2021, arXiv
2102.07988). In a causal model a slice needs only the slices before it, so the stages of a pipeline can work on slices
of one sequence at the same time. A slice of ``l`` tokens after ``c`` tokens takes the matrix products of ``l`` tokens,
and the attention of ``c + l`` tokens less that of ``c``. Later slices take longer, so with equal slices stages wait.
``S`` slices of ``B`` sequences through ``K`` stages take ``B sum_i t_i + (K - 1) max_i t_i``, as in the paper; forward
and backward of a slice count together. The dynamic programme tries every largest time in turn and takes the least sum
below it.

No launcher runs slices in training: *planned only*. Activations of all slices are kept, as without slices.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import table
from benchmarks.slowest import slowest_pair
from benchmarks.whole_hosts import whole_host_config
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import percent, seconds_text
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.messages import inter_node_message_s
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.specs import Instance

MAX_UNITS = 64
"""Maximum number of units per sequence; a slice is a whole number of units. Chosen: a run takes a second or two."""

SMALLEST_UNIT = 32
"""Minimum number of tokens in a unit. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """
    Result for one pipeline.

    Parameters
    ----------
    stages
        Number of pipeline stages.
    sequences
        Sequences of a replica that go through one after the other, each in slices.
    whole_s, equal_s, best_s
        Seconds without slices, with the best number of equal slices, and with the best lengths.
    num_equal
        Number of the equal slices.
    lengths
        Tokens of each of the best slices, first to last.
    """

    stages: int
    sequences: int
    whole_s: float
    equal_s: float
    num_equal: int
    best_s: float
    lengths: tuple[int, ...]


def compare_slices(instance: Instance, stages: tuple[int, ...], sequences: tuple[int, ...]) -> Iterator[SliceRow]:
    """
    Yield the result for each number of stages and of sequences; a stage is a host, and a host is a tensor group.

    Raises ``InputError`` for sequences that are no multiple of their unit, numbers of stages that do not divide the
    layers, unequal hosts, and heads that a host's GPUs do not divide.
    """
    length, layers = instance.training.seq_length, instance.model.num_layers
    unit = unit_of(length)
    if length % unit:
        raise InputError("--seq-length", f"must be a multiple of {unit}, got {length}.")
    if instance.model.num_experts is not None:
        raise InputError("--model", "slices are priced for models without experts only.")
    for depth in stages:
        if layers % depth or depth > instance.cluster.num_nodes:
            raise InputError("--stages", f"must divide the {layers} layers and be at most the hosts, got {depth}.")
        times = slice_times_s(instance, layers // depth)
        for count in sequences:
            equal_s, num_equal = best_equal(times, depth, count)
            best_s, lengths = best_slices(times, depth, count)
            yield SliceRow(
                stages=depth,
                sequences=count,
                whole_s=(count + depth - 1) * float(times[0, -1]),
                equal_s=equal_s,
                num_equal=num_equal,
                best_s=best_s,
                lengths=tuple(unit * length for length in lengths),
            )


def unit_of(length: int) -> int:
    """Return the tokens per unit for sequences of this length; slices are multiples of it."""
    return max(SMALLEST_UNIT, length // MAX_UNITS)


def slice_times_s(instance: Instance, layers: int) -> FloatArray:
    """
    Return the seconds of a slice on a stage of ``layers`` layers: forward, backward, and the message to the next stage.

    Shape ``(units, units)``: entry ``[c, l]`` is a slice of ``l + 1`` units after ``c`` units; infinite beyond the
    sequence's end.
    """
    cluster, training, gpu = instance.cluster, instance.training, instance.cluster.gpu_kinds[0]
    unit = unit_of(training.seq_length)
    config = whole_host_config(instance)
    units, tp = training.seq_length // unit, config.tensor_model_parallel_size
    whole, core, message = np.zeros(units + 1), np.zeros(units + 1), np.zeros(units + 1)
    for count in range(1, units + 1):
        part = replace(instance, training=replace(training, seq_length=count * unit))
        whole[count] = sum(layer_times_s(part, config, gpu))
        kind = instance.model.layers[0]
        core[count] = sum(attention_times_s(part.model, part.training, config, gpu, instance.stack, kind))
        if cluster.num_nodes > 1:
            size = count * unit * instance.model.hidden_size * training.parameter_bytes / tp
            message[count] = 2 * slowest_pair(inter_node_message_s(cluster, size, tp))
    times = np.full((units, units), np.inf)
    for before in range(units):
        for count in range(1, units - before + 1):
            attention = core[count] if before == 0 else core[before + count] - core[before]
            times[before, count - 1] = layers * (whole[count] - core[count] + attention) + message[count]
    return times


def total_s(times: FloatArray, lengths: tuple[int, ...], stages: int, sequences: int) -> float:
    """Return the seconds of all slices of all sequences through the pipeline; lengths are in units."""
    begun = np.cumsum([0, *lengths[:-1]])
    each = times[begun, np.array(lengths) - 1]
    return float(sequences * each.sum() + (stages - 1) * each.max())


def best_equal(times: FloatArray, stages: int, sequences: int) -> tuple[float, int]:
    """Return the least seconds with equal slices, and the number of those slices."""
    units = len(times)
    counts = [count for count in range(1, units + 1) if units % count == 0]
    found = [(total_s(times, (units // count,) * count, stages, sequences), count) for count in counts]
    return min(found)


def best_slices(times: FloatArray, stages: int, sequences: int) -> tuple[float, tuple[int, ...]]:
    """Return the least seconds over all slice lengths, and those lengths in units."""
    units = len(times)
    best: tuple[int, ...] = (units,)
    best_s = np.inf
    for ceiling in np.unique(times[np.isfinite(times)]):
        if (stages - 1) * ceiling >= best_s:
            break
        sums, last = np.full(units + 1, np.inf), np.zeros(units + 1, dtype=np.int64)
        sums[0] = 0.0
        for end in range(1, units + 1):
            begins = np.arange(end)
            each = times[begins, end - begins - 1]
            options = np.where(each <= ceiling, sums[begins] + each, np.inf)
            last[end], sums[end] = int(options.argmin()), options.min()
        if not np.isfinite(sums[units]):
            continue
        seconds = sequences * float(sums[units]) + (stages - 1) * float(ceiling)
        if seconds < best_s:
            lengths, end = [], units
            while end:
                lengths.append(end - int(last[end]))
                end = int(last[end])
            best = tuple(reversed(lengths))
            best_s = total_s(times, best, stages, sequences)
    return float(best_s), best


JOB = JobOptions(model="llama-3-8b", nodes="8", gpu="a100-80gb", global_batch_size=2, seq_length=8192)
"""Job of the page's table: eight hosts of eight A100."""


def section() -> str:
    """Return the section of the page: equal slices and the best, on eight hosts."""
    rows = [
        (
            *(str(row.stages), str(row.sequences), seconds_text(row.whole_s)),
            *(f"{seconds_text(row.equal_s)} ({row.num_equal})", seconds_text(row.best_s)),
            *(percent(row.equal_s / row.best_s - 1), ", ".join(map(str, row.lengths))),
        )
        for row in compare_slices(read_job(JOB).instance, (4, 8), (1, 4))
    ]
    head = ("stages", "sequences", "whole", "equal", "best", "over equal", "lengths")
    return (
        "## TeraPipe: slices of sequences\n\nllama-3-8b on 8 hosts of 8 A100, sequences of 8,192 tokens; a host is a "
        "stage. Seconds without slices, with the best number of equal slices, and with the best lengths.\n\n"
        + table(head, rows)
    )
