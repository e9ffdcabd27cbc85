"""
Runs of Aceso, Megatron and Mist (rows of Mist's repository) as stages of operators, parsed from their notes.

Aceso cuts a GPT between operators: a look-up, 13 operators for each layer, a last norm and the head
(microsoft/SuperScaler, ``runtime/megatron/model/flex_gpt.py``). Stages have their own GPUs and recompute some of their
operators. Only the number of recomputed operators is recorded. Aceso's rule (``check_recompute`` in ``search/
aceso_cost_model.py``) gives the rest: by kind, the largest activations first, each with the operator behind it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.read.runs import MeasuredRun

OPERATORS = (
    *("first norm", "query key value", "scores", "softmax", "attention dropout", "context", "projection", "dropout"),
    *("second norm", "MLP up", "activation", "MLP down", "MLP dropout"),
)
"""Kinds of operators of one layer, in order."""

NUM_KINDS = len(OPERATORS)
SCORES, SOFTMAX, ATTENTION_DROPOUT, CONTEXT = (OPERATORS.index(name) for name in ("scores", *OPERATORS[3:6]))

WHOLE = np.array([1, 0, 0, 0, 0, 0, 1, 1.5, 1, 0, 0, 1, 1.5])
SPLIT = np.array([0, 3, 0, 0, 0, 1, 0, 0, 0, 4, 4, 0, 0])
"""
Activation of each kind of operator in hidden states (dropouts keep a mask); tensor ranks divide those of ``SPLIT``.
"""

CROSSING = {
    "first norm": (2, 0),
    "query key value": (1, 3),
    "context": (1, 1),
    "projection": (2, 0),
    "dropout": (1, 0),
    "second norm": (2, 0),
    "MLP up": (1, 4),
    "activation": (1, 4),
    "MLP down": (2, 0),
    "MLP dropout": (1, 0),
}
"""Hidden states that cross a cut behind an operator: whole ones, including the residual, and split ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePlan:
    """
    Stage of a pipeline of operators.

    Parameters
    ----------
    first, end
        Its range of the model's operators: the look-up is 0, then come the layers, the last norm and the head.
    twice
        Number of recomputed operators of each kind, shape ``(13,)``.
    """

    first: int
    end: int
    num_layers: int
    tp: int
    dp: int
    twice: IntArray

    @property
    def kinds(self) -> IntArray:
        """Number of operators of each kind inside layers, shape ``(13,)``."""
        return kinds_between(self.first, self.end, self.num_layers)

    @property
    def has_lookup(self) -> bool:
        """Return whether the stage has the embedding."""
        return self.first == 0

    @property
    def has_head(self) -> bool:
        """Return whether the stage has the head."""
        return self.end == NUM_KINDS * self.num_layers + 3

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the stage."""
        return self.tp * self.dp

    @property
    def crossing(self) -> tuple[int, int]:
        """Number of hidden states sent to the next stage: whole, and split over tensor ranks."""
        return CROSSING[OPERATORS[(self.end - 2) % NUM_KINDS]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """
    Run with its stages.

    Parameters
    ----------
    samples
        Samples of one micro-batch over all replicas.
    shards_states
        Whether replicas share the optimizer's states (in Mist; not in Aceso and Megatron here).
    """

    run: MeasuredRun
    stages: tuple[StagePlan, ...]
    samples: int
    shards_states: bool

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches of an iteration."""
        return (self.run.gbs or 0) // self.samples


def kinds_between(first: int, end: int, num_layers: int) -> IntArray:
    """Return the number of operators of each kind in a range of the model's operators, shape ``(13,)``."""
    inside = np.arange(max(first - 1, 0), min(end - 1, NUM_KINDS * num_layers))
    return np.bincount(inside % NUM_KINDS, minlength=NUM_KINDS)


def make_plans(runs: Sequence[MeasuredRun], stage_rows: Sequence[MeasuredRun]) -> list[Plan]:
    """Return the plan of every run; ``stage_rows`` describe the stages of single ranks of Aceso."""
    known: dict[str, dict[int, Mapping[str, str]]] = {}
    for row in stage_rows:
        known.setdefault(_log(row), {})[int(row.extra["stage"])] = row.extra
    return [make_plan(run, known.get(_log(run), {})) for run in runs]


def make_plan(run: MeasuredRun, known: Mapping[int, Mapping[str, str]]) -> Plan:
    """Return the plan of one run; ``known`` has the columns of its recorded stages."""
    if "aceso" in run.source.lower():
        stages = _aceso_stages(run, known)
    else:
        layers, full = _whole_layers(run)
        ends = [1 + NUM_KINDS * int(end) for end in np.cumsum(layers)]
        ends[-1] += 2
        stages = tuple(
            StagePlan(
                first=first,
                end=end,
                num_layers=run.num_layers or 0,
                tp=run.tp or 1,
                dp=run.dp or 1,
                twice=np.full(NUM_KINDS, again),
            )
            for first, end, again in zip([0, *ends[:-1]], ends, full, strict=True)
        )
    return Plan(run=run, stages=stages, samples=_samples(run), shards_states=bool(run.zero_stage))


def _log(run: MeasuredRun) -> str:
    """Return the key of the log that a row comes from: its folder and name."""
    return ";".join(part.strip() for part in run.notes.split(";")[:2])


def _samples(run: MeasuredRun) -> int:
    """Return the samples of a micro-batch over all replicas, as Aceso counts them where stages differ."""
    found = re.search(r"micro_batch_size (\d+) is counted across the dp group", run.notes)
    if found:
        return int(found.group(1))
    if run.mbs is None or run.dp is None:
        raise ValueError(f"row {run.row}: mbs and dp are empty, and the notes do not tell the micro-batch.")
    return run.mbs * run.dp


def _list(run: MeasuredRun, name: str) -> list[int]:
    """Return the list ``name [1,2,3]`` from the row's notes or recomputation."""
    found = re.search(re.escape(name) + r" \[([\d, ]+)\]", f"{run.notes}; {run.recompute_text}")
    if found is None:
        raise ValueError(f"row {run.row}: the notes have no '{name} [...]'.")
    return [int(part) for part in found.group(1).split(",")]


def _whole_layers(run: MeasuredRun) -> tuple[list[int], list[int]]:
    """Return the layers of each stage, and the number of recomputed layers of each stage."""
    pp = run.pp or 1
    if "of layers-per-stage" in run.recompute_text:
        return _list(run, "layers-per-stage"), _list(run, "full on")
    if run.recompute != "full":
        raise ValueError(f"row {run.row}: recomputation {run.recompute_text!r} is not known.")
    layers = [(run.num_layers or 0) // pp] * pp
    return layers, layers


def _aceso_stages(run: MeasuredRun, known: Mapping[int, Mapping[str, str]]) -> tuple[StagePlan, ...]:
    operators, gpus = _list(run, "ops per stage"), _list(run, "gpus per stage")
    num_layers = run.num_layers or 0
    if sum(operators) != NUM_KINDS * num_layers + 3 or sum(gpus) != run.num_gpus or len(gpus) != len(operators):
        raise ValueError(f"row {run.row}: {sum(operators)} operators on {sum(gpus)} GPUs do not make the model.")
    counts = recomputed_counts(run.recompute_text, operators, known)
    stages: list[StagePlan] = []
    for index, (size, on, count) in enumerate(zip(operators, gpus, counts, strict=True)):
        dp = int(known[index]["stage_dp_ops"].split("x")[0]) if index in known else 1
        first = stages[-1].end if stages else 0
        present = kinds_between(first, first + size, num_layers)
        tp = on // dp
        twice = recomputed_kinds(present, count, activation_sizes(run, tp))
        stages.append(
            StagePlan(first=first, end=first + size, num_layers=num_layers, tp=tp, dp=dp, twice=twice),
        )
    return tuple(stages)


def recomputed_counts(text: str, operators: Sequence[int], known: Mapping[int, Mapping[str, str]]) -> list[int]:
    """
    Return the number of recomputed operators of each stage.

    Only the first host's ranks were recorded. The other stages share the rest of the total, in proportion to their
    operators.
    """
    found = re.search(r"op-level ([\d.]+) of ops", text)
    if found is None:
        raise ValueError(f"recomputation {text!r} is not 'op-level SHARE of ops'.")
    recorded = {index: round(float(extra["stage_recompute_ops"])) for index, extra in known.items()}
    others = sum(size for index, size in enumerate(operators) if index not in recorded)
    left = float(found.group(1)) * sum(operators) - sum(recorded.values())
    share = min(max(left / others, 0.0), 1.0) if others else 0.0
    return [recorded.get(index, round(share * size)) for index, size in enumerate(operators)]


def activation_sizes(run: MeasuredRun, tp: int) -> list[float]:
    """Return the activation of each kind of operator, in hidden states of one tensor rank."""
    heads = (run.heads or 0) * (run.seq_len or 0) / (run.hidden or 1)
    sizes = WHOLE + SPLIT / tp
    sizes[[SCORES, SOFTMAX]] = heads / tp
    sizes[ATTENTION_DROPOUT] = 1.5 * heads / tp
    return list(sizes.tolist())


def recomputed_kinds(present: IntArray, count: int, sizes: Sequence[float]) -> IntArray:
    """
    Return the number of recomputed operators of each kind, shape ``(13,)``.

    Parameters
    ----------
    present
        Operators of each kind in the stage, shape ``(13,)``.
    count
        Number of recomputed operators.
    sizes
        Activation of each kind. The kind that keeps most in the stage goes first, each with the operator behind it. A
        first norm never leads.
    """
    twice = np.zeros(NUM_KINDS, dtype=np.int64)
    left = int(min(count, present.sum()))
    for kind in sorted(range(1, NUM_KINDS), key=lambda kind: -present[kind] * sizes[kind]):
        behind = (kind + 1) % NUM_KINDS
        if twice[kind]:
            continue
        pair = 1 if twice[behind] else 2
        led = min(int(present[kind]), -(-left // pair))
        twice[kind] += led
        left -= led
        if pair == 2:
            followed = min(int(present[behind]), led, left)
            twice[behind] += followed
            left -= followed
    for kind in range(NUM_KINDS):
        more = min(left, int(present[kind] - twice[kind]))
        twice[kind] += more
        left -= more
    return twice
