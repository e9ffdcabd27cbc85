"""Constants of a stack that a fit may change, their priors, and the constants that given runs determine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.calibrate.cases import Case
from pipette_opt.read.runs import BANDWIDTH_COLUMN
from pipette_opt.specs import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeConstant:
    """
    Constant that is fitted; the fit works on its logarithm.

    Parameters
    ----------
    spread
        Standard deviation of the prior of the logarithm.
    start
        Centre of the prior if the constant is 0 in the starting stack.
    slow
        Value at which a second descent starts, for a slow host; ``None`` to keep the centre.
    largest
        Upper limit.
    between_hosts
        Whether only runs on several hosts determine the constant.
    """

    name: str
    spread: float
    start: float = 1.0
    slow: float | None = None
    largest: float = np.inf
    between_hosts: bool = False


FREE = (
    FreeConstant(name="matmul_speed", spread=0.3),
    FreeConstant(name="attention_speed", spread=0.3),
    FreeConstant(name="attention_backward_speed", spread=0.3),
    FreeConstant(name="flash1", spread=0.3, largest=1.0),
    FreeConstant(name="streaming", spread=0.15, largest=1.0),
    FreeConstant(name="elementwise", spread=0.5),
    FreeConstant(name="host_kernel_s", spread=0.7, start=8e-6, slow=70e-6),
    FreeConstant(name="pipelined_wait_s", spread=1.5, start=2e-6, slow=2e-4, between_hosts=True),
    FreeConstant(name="group_wait_s", spread=1.5, start=5e-7, slow=2e-6),
    FreeConstant(name="micro_batch_s", spread=1.0, start=1e-3, slow=2e-3),
    FreeConstant(name="iteration_s", spread=1.0, start=20e-3),
    FreeConstant(name="collective_s", spread=0.5, start=30e-6),
    FreeConstant(name="intra_node", spread=0.3, largest=1.0),
    FreeConstant(name="straggling", spread=1.0, start=0.01, between_hosts=True),
    FreeConstant(name="assumed_links", spread=1.0, largest=1.0, between_hosts=True),
)
"""All constants that a fit may change; ``spread`` is the standard deviation of their logarithms among stacks."""


def informed_constants(cases: Sequence[Case], cluster: ClusterSpec | None) -> tuple[FreeConstant, ...]:
    """Return the constants that these runs can determine."""
    runs = [case.run for case in cases]
    several_hosts = any(run.num_gpus > run.gpus_per_node for run in runs)
    flash = any(case.instance.training.attention_kernel == "flash" for case in cases)
    flash1 = any(case.instance.training.flash_version == 1 for case in cases)
    groups = any(case.config.tensor_model_parallel_size > 1 for case in cases)

    def is_informed(constant: FreeConstant) -> bool:
        known = cluster is not None or all(run.cells.get(BANDWIDTH_COLUMN) for run in runs)
        if constant.name == "assumed_links" and known:
            return False
        if constant.between_hosts and not several_hosts:
            return False
        informed_by = {
            "flash1": flash1,
            "group_wait_s": groups,
        }
        if not informed_by.get(constant.name, True):
            return False
        return flash or not constant.name.startswith("attention_")

    return tuple(constant for constant in FREE if is_informed(constant))
