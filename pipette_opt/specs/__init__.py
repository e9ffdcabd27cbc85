"""Inputs of planning: the model, the cluster, the training job and the software stack."""

from pipette_opt.layers.kinds import LayerKind
from pipette_opt.layers.latent import LatentAttention
from pipette_opt.layers.recurrent import GatedDeltaNet, Mamba
from pipette_opt.layers.sparse import SparseAttention
from pipette_opt.layers.yarn import YarnScaling
from pipette_opt.specs.cluster import ClusterSpec, GpuSpec, LinkMatrix, NodeSpec
from pipette_opt.specs.instance import Instance
from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.not_modelled import NotModelled
from pipette_opt.specs.profile import ComputeProfile, ProfileKey
from pipette_opt.specs.stack import DEFAULT_STACK, StackSpec
from pipette_opt.specs.training import TrainingSpec

__all__ = [
    "DEFAULT_STACK",
    "ClusterSpec",
    "ComputeProfile",
    "GpuSpec",
    "GatedDeltaNet",
    "Instance",
    "LatentAttention",
    "LayerKind",
    "LinkMatrix",
    "Mamba",
    "ModelSpec",
    "NodeSpec",
    "NotModelled",
    "ProfileKey",
    "SparseAttention",
    "StackSpec",
    "TrainingSpec",
    "YarnScaling",
]
