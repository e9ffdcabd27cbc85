"""Megatron-LM options for kinds of layers: hybrid patterns, Mamba-2 and gated delta nets, and their sizes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError, made_at
from pipette_opt.layers.recurrent import RECURRENT_MIXERS
from pipette_opt.read.megatron_fields import NUMBER, WHOLE, Field, read_fields
from pipette_opt.specs import GatedDeltaNet, Mamba, SparseAttention
from pipette_opt.specs.layer_patterns import layer_frequency


class MixerOptions(NamedTuple):
    """
    Megatron-LM's options of a mixer whose sizes are a field of the model.

    Parameters
    ----------
    make
        Class of the sizes.
    fields
        Sizes and coefficients, and the options that set them.
    variants
        Values of ``--experimental-attention-variant`` that choose the mixer; the first is exported.
    needs
        Options that these values need.
    """

    make: Callable[..., Any]
    fields: tuple[Field, ...]
    variants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


INDEXER = (
    Field("n_heads", "dsa_indexer_n_heads", WHOLE),
    Field("head_dim", "dsa_indexer_head_dim", WHOLE),
    Field("topk", "dsa_indexer_topk", WHOLE),
)
"""Sizes of sparse attention's indexer."""

MIXER_OPTIONS: Mapping[str, MixerOptions] = {
    "mamba": MixerOptions(
        Mamba,
        (
            Field("state_dim", "mamba_state_dim", WHOLE),
            Field("head_dim", "mamba_head_dim", WHOLE),
            Field("num_groups", "mamba_num_groups", WHOLE),
            Field("num_heads", "mamba_num_heads", WHOLE),
        ),
    ),
    "gated_delta_net": MixerOptions(
        GatedDeltaNet,
        (
            Field("conv_kernel_dim", "linear_conv_kernel_dim", WHOLE),
            Field("key_head_dim", "linear_key_head_dim", WHOLE),
            Field("value_head_dim", "linear_value_head_dim", WHOLE),
            Field("num_key_heads", "linear_num_key_heads", WHOLE),
            Field("num_value_heads", "linear_num_value_heads", WHOLE),
        ),
        variants=("gated_delta_net", "gdn"),
        needs=("linear_attention_freq",),
    ),
    "sparse_attention": MixerOptions(
        SparseAttention,
        (*INDEXER, Field("loss_coeff", "dsa_indexer_loss_coeff", NUMBER, unwritten=0.0)),
        variants=("dsa",),
        needs=tuple(row.option for row in INDEXER),
    ),
}
"""Options of Megatron-LM for every mixer whose sizes are a field of the model, by that field."""

MAMBA_EXPANSION = 2
"""Default ratio of the channels of all heads to the hidden size (``expand`` of Megatron-Core's ``MambaMixer``)."""


def given_pattern(given: Mapping[str, Any]) -> str | None:
    """Return the hybrid layer pattern, from its current option or that of Megatron-Core 0.16; or ``None``."""
    pattern = given.get("hybrid_layer_pattern", given.get("hybrid_override_pattern"))
    return None if pattern is None else str(pattern)


def counts_of_pattern(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of layers and prediction depths in the hybrid pattern, which override their options."""
    pattern = given_pattern(given)
    if pattern is None:
        return {}
    depths = pattern.count("/")
    return {"num_layers": len(_main_part(pattern).replace("|", ""))} | ({"mtp_num_layers": depths} if depths else {})


def layer_list_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the model fields for kinds of layers: pattern, Mamba-2, gated delta net, sparse attention."""
    fields: dict[str, Any] = {}
    pattern = given_pattern(given)
    if given.get("is_hybrid_model") and pattern is None:
        raise InputError(where, "--is-hybrid-model needs --hybrid-layer-pattern, which lists the layers.")
    letters = "" if pattern is None else _main_part(pattern).replace("|", "")
    if pattern is not None:
        fields |= {"hybrid_layer_pattern": letters, "mtp_layer_pattern": _depth_pattern(given, pattern, where)}
    names: list[str] = [name for name, mixer in RECURRENT_MIXERS.items() if mixer.letter in letters]
    variant = given.get("experimental_attention_variant")
    for name, options in MIXER_OPTIONS.items():
        # Of mixers that patterns have letters for, a pattern says where they are.
        if variant in options.variants and (pattern is None or name not in RECURRENT_MIXERS):
            missing = [need for need in options.needs if need not in given]
            if missing:
                need = missing[0].replace("_", "-")
                raise InputError(where, f"--experimental-attention-variant {variant} needs --{need}.")
            names.append(name)
    if "gated_delta_net" in names and pattern is None:
        text = str(given["linear_attention_freq"])
        fields["linear_attention_freq"] = layer_frequency(text, "--linear-attention-freq", where)
    return fields | {name: _mixer(name, given, where) for name in names}


def _mixer(name: str, given: Mapping[str, Any], where: str) -> Any:
    """Return the sizes of a mixer."""
    options = MIXER_OPTIONS[name]
    sizes = read_fields(options.fields, given, where) | (_heads(given, where) if name == "mamba" else {})
    return made_at(where, options.make, **sizes)


def stage_bounds(given: Mapping[str, Any], where: str) -> str | None:
    """Return the pipeline layout that the bars in the hybrid pattern set; ``None`` without bars."""
    pattern = given_pattern(given)
    if pattern is None or "|" not in pattern:
        return None
    parts = ["t" * len(part) for part in _main_part(pattern).split("|")]
    return f"E{'|'.join(parts)}{'m' * pattern.count('/')}L"


def _main_part(pattern: str) -> str:
    """Return the hybrid pattern up to the first slash; each slash begins a depth of multi-token prediction."""
    return pattern.partition("/")[0]


def _depth_pattern(given: Mapping[str, Any], pattern: str, where: str) -> str | None:
    """Return the pattern of a depth of multi-token prediction, which all depths share; ``None`` without depths."""
    depths = pattern.split("/")[1:]
    if not depths and given.get("mtp_num_layers"):
        problem = f"must list the layers of each depth after a slash with --mtp-num-layers {given['mtp_num_layers']}"
        raise InputError(where, f"--hybrid-layer-pattern {problem}.")
    if len(set(depths)) > 1:
        problem = f"must have equal layers after each /, got {' '.join(depths)}"
        raise InputError(where, f"--hybrid-layer-pattern {problem}.")
    return depths[0] if depths else None


def _heads(given: Mapping[str, Any], where: str) -> dict[str, int]:
    """Return the number of Mamba-2 heads if not given: enough to fill twice the hidden size."""
    if "mamba_num_heads" in given:
        return {}
    size, head = MAMBA_EXPANSION * int(given["hidden_size"]), int(given.get("mamba_head_dim", 64))
    if size % head:
        raise InputError(where, f"--mamba-head-dim {head} must divide twice the hidden size, {size}.")
    return {"num_heads": size // head}
