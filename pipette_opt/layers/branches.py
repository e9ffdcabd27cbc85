"""The branches of every kind of layer."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipette_opt.layers.attention import AttentionBranch, WindowedAttentionBranch
from pipette_opt.layers.branch import Branch
from pipette_opt.layers.experts import ExpertBranch
from pipette_opt.layers.kinds import LayerKind
from pipette_opt.layers.latent import LatentAttentionBranch
from pipette_opt.layers.mlp import MlpBranch
from pipette_opt.layers.recurrent import RECURRENT_MIXERS, RecurrentBranch
from pipette_opt.layers.sparse import SparseAttentionBranch

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec

MIXERS: Mapping[str, type[Branch]] = MappingProxyType(
    {
        "attention": AttentionBranch,
        "windowed_attention": WindowedAttentionBranch,
        "latent_attention": LatentAttentionBranch,
        "sparse_attention": SparseAttentionBranch,
        **dict.fromkeys(RECURRENT_MIXERS, RecurrentBranch),
    }
)
"""Branches that mix tokens, by the name that a kind of layer has for them."""

MLPS: Mapping[str, type[MlpBranch]] = MappingProxyType({"dense": MlpBranch, "experts": ExpertBranch})
"""MLPs, by the name that a kind of layer has for them."""


@lru_cache(maxsize=256)
def named_branches(model: "ModelSpec") -> Mapping[str, Branch]:
    """Return the branches of all layers of a model by the name of mixer or MLP, which decides their sizes."""
    kinds = dict.fromkeys((*model.layers, *model.mtp_layers * model.mtp_num_layers))
    branches = [branch for kind in kinds for branch in branches_of(model, kind)]
    return {branch.kind.mixer if branch.core else branch.kind.mlp: branch for branch in branches}


@lru_cache(maxsize=1024)
def branches_of(model: "ModelSpec", kind: LayerKind) -> tuple[Branch, ...]:
    """Return the branches of a layer: what mixes tokens, then the MLP; a layer of a hybrid model has only one."""
    return (
        *((MIXERS[kind.mixer](model, kind),) if kind.mixer != "none" else ()),
        *((MLPS[kind.mlp](model, kind),) if kind.mlp != "none" else ()),
    )
