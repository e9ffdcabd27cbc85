"""Parameters of each part of a model: layers, embeddings, head."""

from typing import TYPE_CHECKING, Any

from pipette_opt.layers.branch import Parameters
from pipette_opt.layers.branches import branches_of
from pipette_opt.layers.kinds import LayerKind

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec


def layer_parameters(model: "ModelSpec", kind: LayerKind) -> Parameters:
    """Return the parameters of one layer of a kind."""
    parts = zip(*(branch.parameters for branch in branches_of(model, kind)), strict=True)
    return Parameters(*(sum(part) for part in parts))


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
