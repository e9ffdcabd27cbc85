"""The model card: what the network was trained on, how wrong it is, where not to trust it."""

from typing import TYPE_CHECKING

from pipette_opt.base.units import gib
from pipette_opt.memory.features import FEATURES
from pipette_opt.memory.overhead import DEFAULT_OVERHEAD

if TYPE_CHECKING:
    import pandas as pd

    from pipette_opt.memory_training.fit import Fit

_TEMPLATE = """# Memory predictor

Predicts the peak of allocated GPU memory of one rank of each pipeline stage, without a GPU: a closed formula
(weights, gradients, optimizer state, activations in flight) times the exponential of what a small network adds for
the temporaries of the running pass. Written by `pipette-opt memory train`.

## Data

{points} points from `pipette-opt memory collect --num-points {points} --seed {seed}`: random GPT-like and Llama-like
models of 100 million to a trillion parameters, one in five with experts (8 to 256, shared ones and leading dense layers
among them); tensor parallel 1-16, pipeline 1-64, data 1-256, context 1-16, expert 1-64 with experts whole or split,
interleaved or not; sequences of 1 k to 128 k tokens; no, selective, uniform and block recomputation; with and without
sequence parallelism; ZeRO 0 to 3; bf16, fp16, fp32 and fp8 products, optimizer states in fp32 and less; attention with
and without stored scores. Each is traced: the stage runs forward and backward in its 1F1B order on tensors without data
while live storages are counted. **No point was measured on a GPU.**

{train} points train, {calibration} calibrate the risk bound, {test} (below) are seen by neither. The same data, seed,
libraries and kind of processor give the same bytes, whatever the number of threads. Another kind of processor adds up
in another order: traces come out the same, weights differ by a hundredth, predictions by less than 0.1 %.

## Error against the trace, by slice

{errors}

## Stated and attained coverage of the upper bound

{coverage}

## What the caching allocator adds

Reserved over allocated memory: every trace replayed, two iterations with the optimizer's moments coming after the
first, through a model of PyTorch's caching allocator (`pipette_opt/memory_training/allocator.py`). It depends on how
sizes happen to fit into each other, which features do not tell, so the network does not predict it; `pipette-opt memory
predict --trace` replays one stage.

{slack}

## Small models to large ones

A network trained on models up to 30 billion parameters only, on models above 100 billion:

{shift}

## What a trace cannot see

Named constants (`pipette_opt/memory/overhead.py`), allowances rather than fits: {context:.2f} GiB CUDA context,
{communicators:.2f} GiB NCCL buffers and {library:.3f} GiB library workspaces are kept free on every GPU; allocator
fragmentation multiplies the prediction by {fragmentation}. Stacks and versions are assumed to differ by a standard
deviation of {spread:.0%}, which widens the risk bound beyond the coverage on traces above.

## Where not to trust it

- The probability of running out of memory rests on the network's error against traces, which is measured, and on
  the allowances above for what lies between a trace and a real stack, which are assumed, not measured.
- Frameworks with unfused kernels, fp32 copies of logits, or gradients kept twice (nanotron, plain PyTorch) need far
  more: up to half of the activations again. `pipette-opt calibrate` fits the constants of such a stack, `pipette-opt
  memory train --runs` tunes this network on your own runs besides, and `pipette-opt memory evaluate` says how well
  that does on measured runs.
- Megatron-Core's behaviour is assumed: fused weight-gradient accumulation, main gradients kept all the time, freed
  pipeline outputs, no overlap buffers.
- Experts: tokens routed evenly, none dropped, the all-to-all dispatcher with fused permutations. A rank whose experts
  get more than their share needs more, in proportion to its routed activations.
- ZeRO 2 and 3 as two buffers of the largest units; fp8 as Transformer Engine's delayed or current scaling, with copies
  of the weights by rows and columns; context parallelism as its ring of keys and values on the last rank.
- Outside of the ranges above the prediction says so (`extrapolates`); its network term is then held inside the
  range seen in training, and the closed formula carries the rest.

## Features

{features}
"""


def model_card(fit: "Fit", shift: "pd.DataFrame", slack: "pd.DataFrame", *, seed: str) -> str:
    """The text of the card."""
    return _TEMPLATE.format(
        points=fit.num_train + len(fit.network.residuals) + fit.num_test,
        seed=seed,
        train=fit.num_train,
        calibration=len(fit.network.residuals),
        test=fit.num_test,
        errors=markdown_table(fit.errors),
        coverage=markdown_table(fit.coverage),
        shift=markdown_table(shift.iloc[:1]),
        slack=markdown_table(slack),
        context=gib(DEFAULT_OVERHEAD.context_bytes),
        communicators=gib(DEFAULT_OVERHEAD.communicator_bytes),
        library=gib(DEFAULT_OVERHEAD.library_bytes),
        fragmentation=DEFAULT_OVERHEAD.fragmentation,
        spread=DEFAULT_OVERHEAD.stack_spread,
        features="\n".join(f"- `{name}` ({unit})" for name, unit in FEATURES),
    )


_TUNING_TEMPLATE = """# Memory predictor, tuned on {runs}

{num_runs} measured peaks; the constants of the stack are in the .yaml file beside, which belongs to these weights.
Mean errors of peaks on runs that were not learnt from:

{table}

{verdict} Bounds and probabilities rest on the constants' errors on runs left out; far from the models, degrees and
sizes of {runs} the network is held by the traces it was first trained on, and the constants by their priors. Written by
`pipette-opt memory train --runs`; used by `pipette-opt memory predict --weights ... --framework ...`.
"""


def tuning_card(table: str, *, runs: str, num_runs: int, improves: bool) -> str:
    """The text beside fine-tuned weights."""
    kept = "The network was tuned." if improves else "Tuning did not help, so the network stays as it was."
    return _TUNING_TEMPLATE.format(table=table, runs=runs, num_runs=num_runs, verdict=kept)


def markdown_table(frame: "pd.DataFrame") -> str:
    """A frame as a Markdown table, floats with three decimals."""
    rows = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    lines = [list(frame.columns), ["---"] * len(frame.columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
