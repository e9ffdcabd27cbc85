"""Everything given, together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import Collective, Launcher, P2PMode
from pipette_opt.specs.cluster import ClusterSpec
from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.not_modelled import NotModelled
from pipette_opt.specs.profile import ComputeProfile
from pipette_opt.specs.stack import DEFAULT_STACK, StackSpec
from pipette_opt.specs.training import TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """
    The model, the cluster and the job, and how they will be launched.

    Parameters
    ----------
    p2p
        Whether stages wait for their sends.
    launcher
        Bounds the placement to what it can express.
    profile
        Measured layer times; used where they have the kind of GPU and the sizes.
    stack
        What the software attains of the hardware.
    allreduce
        How gradients are reduced over several hosts.
    edge_loss_s
        Seconds that a configuration loses in one iteration where its memory is nearly full; see
        :mod:`pipette_opt.simulate.fullness`.
    not_modelled
        Options of the job's own arguments, and parts of its model, that no number counts.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    p2p: P2PMode = "blocking"
    launcher: Launcher = "slurm"
    profile: ComputeProfile | None = None
    stack: StackSpec = DEFAULT_STACK
    allreduce: Collective = "ring"
    edge_loss_s: Callable[[Any], float] | None = None
    not_modelled: tuple[NotModelled, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what would be timed wrongly."""
        if self.model.num_experts is not None and self.profile is not None:
            problem = f"has times of dense layers; model {self.model.name} has {self.model.num_experts} experts."
            raise InputError("--profile", problem)
        if self.allreduce != "ring" and self.cluster.most_in_domain > 1:
            problem = f"is {self.allreduce}; over NVLink domains of several hosts only ring is known."
            raise InputError("--allreduce", problem)
        if self.training.recipe is not None and self.profile is not None:
            raise InputError("--profile", "has times of layers in 16 or 32 bits, not in fewer.")
