"""
Near-OOM slowdown of measured runs: close to full memory the caching allocator returns blocks to the driver, then
requests them again.

Loss per micro-batch. A deep pipeline has a different number of micro-batches in flight at each allocation, so cached
blocks seldom fit again. When memory is short, the allocator then flushes in every micro-batch, which stops the GPU. The
last stage, with one micro-batch in flight, and jobs without a pipeline request equal blocks each time, and do not
flush. This cause explains the measurements but was not measured itself.

A public sweep on up to 16 H100 shows the loss: nine pipelines lose 0.47 to 0.53 s per micro-batch with two stages (six
pipelines) and 0.82 to 0.95 s with four or eight stages (three). All three that also logged an out-of-memory error are
among them. Jobs without a pipeline lose nothing, however full they are. Fragmented memory is unusable, so the slowdown
begins a little before memory is full. This limit does not separate the runs cleanly: three of the nine are neither
predicted to be near it nor of the version in :func:`keeps_memory`.

Loss once per iteration. Any job may have it. The optimizer's step and the reductions request other sizes than the
layers, so cached blocks are returned, and requested again in the next iteration. The amount depends on how the
framework treats gradients (:func:`frees_gradients`). Nanotron and Megatron-Core keep them in one buffer, and the mean
loss is equal for all jobs. Aleph-Alpha/scaling frees them after the step, reduces them through new buffers, and
allocates them again in the first backward pass. Its loss is proportional to the rank's parameters. The loss begins
where the buffers of the reduction no longer fit. It is zero where gradients fit into blocks that activations leave
(:func:`~pipette_opt.costs.edge.gradients_outgrow`).

The formula was chosen on the 13B runs of a sweep with that framework (A100), with each job held out in turn. Full jobs
(more than 0.85 of memory in use, without the late trials of 2,048 tokens on up to 64 GPUs) are 3.8 % off. Other
formulas are worse: 4.7 % with an equal loss for all, 4.5 % proportional to parameters wherever memory is full, 4.0 %
proportional to everything that is not kept, and 4.6 % if every group has a loss (see
:mod:`~pipette_opt.calibrate.losing`). The 30B test runs had been seen before and suggested the formula: of equally full
runs, those with large micro-batches lost nothing.

:mod:`pipette_opt.simulate.fullness` adds the slowdown to the times of plans.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case
from pipette_opt.calibrate.memory import framework_of_stack, memory_run
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.memory.framework import Framework
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.simulate.fullness import EDGE, near_risks
from pipette_opt.specs import StackSpec

GRADIENTS_COLUMN = "gradients"
"""Column of ``runs.csv``: ``freed`` if gradients are freed after each step, or ``kept`` (default)."""


def edge_risks(cases: Sequence[Case], stack: StackSpec) -> FloatArray:
    """
    Return three probabilities of near-OOM slowdown per run, shape ``(len(cases), 3)``.

    Columns: loss per micro-batch; loss once per iteration with kept gradients; the same with freed gradients. One of
    the last two is 0. All are 0 for a stack without fitted memory constants.
    """
    if stack.memory is None:
        return np.zeros((len(cases), 3))
    framework = framework_of_stack(stack)
    risks = np.array([edge_risk(case, framework) for case in cases]).reshape(-1, 3)
    risks[:, 0] = np.maximum(risks[:, 0], [float(keeps_memory(case.run)) for case in cases])
    return risks


def edge_risk(case: Case, framework: Framework) -> tuple[float, float, float]:
    """Return the probabilities of near-OOM slowdown of one run, as :func:`edge_risks` orders them."""
    memory = predict_memory(framework, memory_run(case))
    at_edge = oom_probability(replace(memory, usable_gib=EDGE * memory.usable_gib))
    needed, usable = np.array([memory.needed_gib * GIB]), np.array([memory.usable_gib * GIB])
    kept, freed = near_risks(case.instance, case.config, needed, usable)
    return (at_edge, 0.0, freed) if frees_gradients(case.run) else (at_edge, kept, 0.0)


def frees_gradients(run: MeasuredRun) -> bool:
    """Return whether the framework of a run frees gradients after each step, by the run's row."""
    return run.extra.get(GRADIENTS_COLUMN, "").lower() == "freed"


def keeps_memory(run: MeasuredRun) -> bool:
    """
    Return whether a run is of a version whose pipelines did not release memory.

    Its source marks these rows with a false ``after_pp_fix``. Runs with a sharded optimizer had enough room anyway.
    """
    broken = run.extra.get("after_pp_fix", "").lower() == "false" and (run.pp or 1) > 1
    return broken and not run.zero_stage
