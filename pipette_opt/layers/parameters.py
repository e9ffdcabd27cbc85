"""Parameters of each part of a model: layers, embeddings, head."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pipette_opt.layers.adapters import adapter_parameters
from pipette_opt.layers.branch import Parameters
from pipette_opt.layers.branches import branches_of
from pipette_opt.layers.kinds import LayerKind

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec


@lru_cache(maxsize=256)
def layer_parameters(model: "ModelSpec", kind: LayerKind) -> Parameters:
    """Return the parameters of one layer of a kind, without adapters."""
    parts = zip(*(branch.parameters for branch in branches_of(model, kind)), strict=True)
    return Parameters(*(sum(part) for part in parts))


@lru_cache(maxsize=256)
def trained_layer_parameters(model: "ModelSpec", kind: LayerKind) -> Parameters:
    """Return the trained parameters of one layer of a kind: all, or those of its adapters."""
    if model.adapters is None:
        return layer_parameters(model, kind)
    parts = zip(*map(adapter_parameters, branches_of(model, kind)), strict=True)
    return Parameters(*(sum(part) for part in parts))


def num_trained_parameters(model: "ModelSpec") -> int:
    """Return the number of trained parameters of a model: all, or those of its adapters."""
    if model.adapters is None:
        return model.num_parameters
    layers = (*model.layers, *model.num_own_mtp_layers * model.mtp_layers)
    return sum(trained_layer_parameters(model, kind).total for kind in layers)


def embedding_parameters(model: "ModelSpec", tp: Any) -> Parameters:
    """
    Return the parameters of the word embeddings, padded for ``tp`` tensor ranks, and of learned positions.

    ``tp`` is a number or an array of them.
    """
    learned = model.position_embedding_type == "learned_absolute"
    return Parameters(
        sharded=model.padded_vocab_size(tp) * model.hidden_size,
        replicated=learned * model.max_position_embeddings * model.hidden_size,
    )


def head_parameters(model: "ModelSpec", tp: Any, pp: Any) -> Parameters:
    """
    Return the parameters of the last of ``pp`` stages beside its layers: final norm, output head, token prediction.

    On one stage the head may share the table of the embeddings. On several, multi-token prediction has a second copy of
    the embeddings. Each depth of it has a projection of the last hidden state and of the next token's embedding, and
    norms of both inputs and of the result (``MultiTokenPredictionLayer`` in megatron-core). ``tp`` and ``pp`` are
    numbers or arrays of them.
    """
    tables = 1 * (model.untie_embeddings_and_output_weights | (pp > 1)) + (model.mtp_num_layers > 0) * (pp > 1)
    depths, norm = model.num_own_mtp_layers, model.norm_parameters
    return Parameters(
        sharded=tables * model.padded_vocab_size(tp) * model.hidden_size + depths * 2 * model.hidden_size**2,
        replicated=norm + depths * 3 * norm,
    )


class RankParameters(NamedTuple):
    """
    Parameters of each part of a model on one rank; numbers, or arrays with a number for each configuration.

    Parameters
    ----------
    layers, experts
        Parameters of a layer of each kind: all but routed experts, and routed experts.
    matrices
        Parameters of a layer of each kind that tensor ranks split, without adapters.
    embeddings, head
        Parameters of the first and of the last stage beside their layers.
    """

    layers: Mapping[LayerKind, Any]
    experts: Mapping[LayerKind, Any]
    matrices: Mapping[LayerKind, Any]
    embeddings: Any
    head: Any


def rank_parameters(
    model: "ModelSpec", tp: Any, pp: Any, expert_ranks: Any, *, trained: bool = False
) -> RankParameters:
    """
    Return the parameters of one rank, with the vocabulary padded as Megatron does.

    Parameters
    ----------
    trained
        Whether frozen parameters are left out; adapters always count.
    tp, pp
        Tensor-parallel ranks, and pipeline stages: numbers or arrays of them.
    expert_ranks
        Ranks that together hold every expert once.
    """
    kinds = dict.fromkeys(model.layers)
    frozen = {kind: layer_parameters(model, kind) for kind in kinds}
    own = {kind: trained_layer_parameters(model, kind) for kind in kinds}
    has_adapters = model.adapters is not None
    parts = own if trained else frozen
    layers = {kind: part.on_rank(tp) for kind, part in parts.items()}
    experts = {kind: part.experts / expert_ranks for kind, part in parts.items()}
    if has_adapters and not trained:
        layers = {kind: size + own[kind].on_rank(tp) for kind, size in layers.items()}
        experts = {kind: size + own[kind].experts / expert_ranks for kind, size in experts.items()}
    ends = 0 if has_adapters and trained else 1
    return RankParameters(
        layers=layers,
        experts=experts,
        matrices={kind: ends * part.sharded / tp for kind, part in frozen.items()},
        embeddings=ends * embedding_parameters(model, tp).on_rank(tp),
        head=ends * head_parameters(model, tp, pp).on_rank(tp),
    )
