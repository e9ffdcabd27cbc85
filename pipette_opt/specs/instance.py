"""Planning instance: all inputs in one object."""

from dataclasses import dataclass

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
    Model, cluster and training job, with the launcher and the software stack.

    Parameters
    ----------
    p2p
        ``blocking`` if pipeline stages wait for their sends, ``async`` if they do not.
    launcher
        Program that starts the processes; the placement must be one that it can express.
    profile
        Measured layer times; used for the GPU types and sizes that it covers.
    stack
        Constants of the software stack: rates and overheads on this hardware.
    allreduce
        Algorithm that reduces gradients over several hosts.
    not_modelled
        Options of the job, and parts of its model, that the estimates leave out.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    p2p: P2PMode = "blocking"
    launcher: Launcher = "slurm"
    profile: ComputeProfile | None = None
    stack: StackSpec = DEFAULT_STACK
    allreduce: Collective = "ring"
    not_modelled: tuple[NotModelled, ...] = ()

    def __post_init__(self) -> None:
        """Raise ``InputError`` for combinations of inputs whose time cannot be estimated."""
        if self.model.num_experts is not None and self.profile is not None:
            problem = f"has times of dense layers; model {self.model.name} has {self.model.num_experts} experts."
            raise InputError("--profile", problem)
        if self.allreduce != "ring" and self.cluster.most_in_domain > 1:
            problem = f"is {self.allreduce}; over NVLink domains of several hosts only ring is known."
            raise InputError("allreduce", problem)
        if self.training.recipe is not None and self.profile is not None:
            raise InputError("--profile", "has times of layers in 16 or 32 bits, not in fewer.")
