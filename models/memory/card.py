"""Model card: training data of the network, its errors, and its limits."""

from typing import TYPE_CHECKING

from pipette_opt.memory.features import FEATURES
from pipette_opt.specs.memory_constants import MemoryConstants

if TYPE_CHECKING:
    import pandas as pd

    from models.memory.fit import Fit

_TEMPLATE = """# Memory predictor

Predicts the peak of allocated GPU memory of one rank of each pipeline stage, without a GPU: a closed formula
(weights, gradients, optimizer state, activations in flight) times the exponential of what a small network adds for
the temporaries of the running pass. Written by `python -m models.memory.train`.

## Data

{points} points from `python -m models.memory.collect --num-points {points} --seed {seed}`: random GPT-like and
Llama-like models of 100 million to a trillion parameters, one in five with experts (8 to 256, shared ones and leading
dense layers among them); tensor parallel 1-16, pipeline 1-64, data 1-256, context 1-16, expert 1-64 with experts whole
or split, interleaved or not; sequences of 1 k to 128 k tokens; no, selective, uniform and block recomputation; with and
without sequence parallelism; ZeRO 0 to 3; bf16, fp16, fp32 and fp8 products, optimizer states in fp32 and less;
attention with and without stored scores. Each is traced: the stage runs forward and backward in its 1F1B order on
tensors without data while live storages are counted. **No point was measured on a GPU.**

{train} points train, {test} (below) are not seen. The same data, seed, libraries and kind of processor give the same
bytes, whatever the number of threads. Another kind of processor adds up in another order: traces come out the same,
weights differ by a hundredth, predictions by less than 0.1 %.

## Error against the trace, by slice

{errors}

## Small models to large ones

A network trained on models up to 30 billion parameters only, on models above 100 billion:

{shift}

## What a trace cannot see

Constants of a stack (`memory` in its file). Those of Megatron-Core are allowances rather than fits:
{base:.4f} GiB of workspaces and {group:.3f} GiB of NCCL's buffers for each group of several ranks are added, and
{context:.3f} GiB for CUDA's context and libraries are kept free on every GPU. Stacks and versions are assumed to differ
by a standard deviation of {spread:.0%}; what is unknown about their constants comes on top. The range of nine in ten
peaks that follows holds 92 % of public ones (`benchmarks/results/memory-odds.md`).

## Where not to trust it

- The probability of running out of memory rests on the allowances above for what lies between a trace and a real
  stack, which are assumed; what measured jobs took: `benchmarks/results/memory.md`.
- Frameworks with unfused kernels, fp32 copies of logits, or gradients kept twice (nanotron, plain PyTorch) need far
  more: up to half of the activations again. `pipette-opt calibrate` fits the constants of such a stack; in a
  checkout `python -m benchmarks.memory.evaluate` says how well that does on measured runs.
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


def model_card(fit: "Fit", shift: "pd.DataFrame", *, seed: str) -> str:
    """Return the model card of a trained network as Markdown."""
    return _TEMPLATE.format(
        points=fit.num_train + fit.num_test,
        seed=seed,
        train=fit.num_train,
        test=fit.num_test,
        errors=markdown_table(fit.errors),
        shift=markdown_table(shift.iloc[:1]),
        base=MemoryConstants().base_gib,
        group=MemoryConstants().group_gib,
        context=MemoryConstants().unusable_gib,
        spread=MemoryConstants().spread,
        features="\n".join(f"- `{name}` ({unit})" for name, unit in FEATURES),
    )


def markdown_table(frame: "pd.DataFrame") -> str:
    """Return a data frame as a Markdown table, floats with three decimals."""
    rows = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row]
        for row in frame.itertuples(index=False)
    ]
    lines = [list(frame.columns), ["---"] * len(frame.columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
