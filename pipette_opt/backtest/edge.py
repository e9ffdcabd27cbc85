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
layers did, so cached blocks go back and are asked for again in the next iteration. Of the 13B runs of another sweep
(A100) with more than nine tenths of the memory in use five lose 4 to 6 s in an iteration of 30 to 50 s, jobs without a
pipeline among them, and more than ten lose nothing; so what is near is soft, and the loss is the mean over all. (A loss
in proportion to what a rank holds of the parameters predicts groups left out worse: 4.3 % instead of 4.1 % on H100,
alike on A100.)

Tried and left out: groups of runs that each lose in proportion to parameters, or not at all, by likelihood, with a
chance that any rank does (``1 - 0.5 ** (GPUs / half)``), from 0.85 of the memory. Fitted to 13B it predicts 30B on 256
GPUs better (5.6 % and rank 0.942 instead of 6.0 % and 0.911, regret 0 instead of 5.9 %; these rows were scored while
forms were tried), and 13B jobs left out as well as before in a clock linear in its constants. But on H100 the groups
take a large loss from few runs: jobs on 32 GPUs are 8.0 % off instead of 7.5 %, with two picks of four within 2 %
instead of all. It needs a reason, of the framework or of runs left out, to hold for one stack and not for the other.

Plans have the same from :mod:`pipette_opt.fullness`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.backtest.cases import Case
from pipette_opt.backtest.memory import framework_of_stack, row_memory
from pipette_opt.fullness import EDGE, near_risk
from pipette_opt.memory.calibration import predict_memory
from pipette_opt.memory.framework import Framework
from pipette_opt.memory.spread import oom_probability
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec
from pipette_opt.types import FloatArray


def edge_risks(cases: Sequence[Case], stack: StackSpec) -> FloatArray:
    """
    Probabilities that a job is at the edge of memory, and near it, shape ``(len(cases), 2)``.

    0 for stacks whose memory was not fitted.
    """
    if stack.memory is None:
        return np.zeros((len(cases), 2))
    framework = framework_of_stack(stack)
    risks = np.array([edge_risk(case, framework) for case in cases]).reshape(-1, 2)
    risks[:, 0] = np.maximum(risks[:, 0], [float(keeps_memory(case.run)) for case in cases])
    return risks


def edge_risk(case: Case, framework: Framework) -> tuple[float, float]:
    """The same of one run; 0 if nobody can say."""
    run = row_memory(case)
    if run is None:
        return 0.0, 0.0
    memory = predict_memory(framework, run)
    at_edge = oom_probability(replace(memory, usable_gib=EDGE * memory.usable_gib))
    return at_edge, near_risk(memory.needed_gib / memory.usable_gib)


def keeps_memory(run: MeasuredRun) -> bool:
    """
    Whether the row is of a version that its source marks as broken: pipelines kept memory (``after_pp_fix`` false).

    With a sharded optimizer there was room enough for that.
    """
    broken = run.extra.get("after_pp_fix", "").lower() == "false" and (run.pp or 1) > 1
    return broken and not run.zero_stage
