"""
At the edge of memory: the caching allocator gives its blocks back to the driver and asks for them again.

A deep pipeline has another number of micro-batches in flight each time it allocates, so its blocks seldom fit again;
short of memory the allocator then flushes in every micro-batch, which stops the device. The last stage, which holds one
micro-batch at a time, and a job without a pipeline ask for the same blocks each time and do not. That is an
explanation, not a measurement. What is measured, in a public sweep on up to 16 H100: nine pipelines lose 0.47 to 0.53 s
in every micro-batch with two stages (six of them) and 0.82 to 0.95 s with four or eight (three), among them all three
that also logged an error of memory; jobs without a pipeline lose nothing, however full they are.

What fragments cannot be used, so the edge is set a little before the end. It does not part the runs cleanly: of the
nine, three are neither predicted to be near it nor of the version below.

Once in an iteration any job may lose time there: the optimizer's step and the reductions ask for other sizes than the
layers did, so cached blocks go back and are asked for again in the next iteration. How much comes and goes follows from
what a framework does with gradients (:func:`frees_gradients`). Nanotron and Megatron-Core keep them in one buffer, and
the loss is the same for all, in the mean. Aleph-Alpha/scaling frees them after the step, reduces them through new
buffers, and lets them grow anew in the first backward pass; so the loss is in proportion to what a rank holds of the
parameters. It begins where the buffers of the reduction no longer fit beside the rest, and there is none where
gradients fit into blocks that activations leave (:func:`~pipette_opt.costs.edge.gradients_outgrow`).

That form was chosen on the 13B runs of a sweep with that framework (A100), jobs left out in turn, in a clock linear in
its constants: full jobs (more than 0.85 in use, without the late trials of 2,048 tokens on up to 64 GPUs) are 3.8 %
off, instead of 4.7 % with one loss for all, 4.5 % in proportion to parameters wherever memory is full, 4.0 % in
proportion to all that is not kept, and 4.6 % if no group is let off (see :mod:`~pipette_opt.calibrate.losing`). The
judged 30B runs had been looked at before, and they showed the way: of equally full ones those with large micro-batches
lost nothing.

Plans have the same from :mod:`pipette_opt.simulate.fullness`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case
from pipette_opt.calibrate.memory import framework_of_stack, row_memory
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.memory.framework import Framework
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.simulate.fullness import EDGE, near_risks
from pipette_opt.specs import StackSpec

GRADIENTS_COLUMN = "gradients"
"""Column of ``runs.csv``: ``freed`` after each step, or ``kept`` (default)."""

FREEING = ("want-2311.05610",)
"""
Sources, by the beginning of their names, whose framework frees its gradients after each step.

Aleph-Alpha/scaling @ 01b9d21: ``Optimizer.step`` ends with ``zero_grad(set_to_none=True)``, and ``allreduce_no_retain``
copies buckets, in fp32. Nanotron accumulates into one fp32 buffer (huggingface/nanotron, ``FP32GradientAccumulator``).
"""


def edge_risks(cases: Sequence[Case], stack: StackSpec) -> FloatArray:
    """
    Probabilities of being at the edge of memory, near it, and near it with freed gradients, ``(len(cases), 3)``.

    A run has one of the last two. 0 for stacks whose memory was not fitted.
    """
    if stack.memory is None:
        return np.zeros((len(cases), 3))
    framework = framework_of_stack(stack)
    risks = np.array([edge_risk(case, framework) for case in cases]).reshape(-1, 3)
    risks[:, 0] = np.maximum(risks[:, 0], [float(keeps_memory(case.run)) for case in cases])
    return risks


def edge_risk(case: Case, framework: Framework) -> tuple[float, float, float]:
    """The same of one run; 0 if nobody can say."""
    run = row_memory(case)
    if run is None:
        return 0.0, 0.0, 0.0
    memory = predict_memory(framework, run)
    at_edge = oom_probability(replace(memory, usable_gib=EDGE * memory.usable_gib))
    needed, usable = np.array([memory.needed_gib * GIB]), np.array([memory.usable_gib * GIB])
    kept, freed = near_risks(case.instance, case.config, needed, usable)
    return (at_edge, 0.0, freed) if frees_gradients(case.run) else (at_edge, kept, 0.0)


def frees_gradients(run: MeasuredRun) -> bool:
    """Whether gradients are freed after each step, as the row says, or as is known of its source."""
    said = run.extra.get(GRADIENTS_COLUMN, "").lower()
    return said == "freed" if said else run.source.lower().startswith(FREEING)


def keeps_memory(run: MeasuredRun) -> bool:
    """
    Whether the row is of a version that its source marks as broken: pipelines kept memory (``after_pp_fix`` false).

    With a sharded optimizer there was room enough for that.
    """
    broken = run.extra.get("after_pp_fix", "").lower() == "false" and (run.pp or 1) > 1
    return broken and not run.zero_stage
