"""Rotary positions and windows of attention in Hugging Face's words."""

import math
from collections.abc import Sequence
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import is_number
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.specs import YarnScaling

ROUNDING = 1e-6
"""Share of the rotary base by which the next whole number may differ (StarCoder2 has 999,999.442)."""

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Keys of ``rope_scaling`` and ``rope_parameters`` whatever the kind; positions of text are alike in all sections."""

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
"""Kinds of layer that ``rope_parameters`` may tell apart."""

_OF_KIND = {
    "default": (),
    "mrope": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "finetuned",
    ),
}
"""Further keys of each kind that Megatron has, too; ``mrope`` is ``default`` where all tokens are text."""

_LLAMA_3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""Constants of Megatron's scaling (``core/models/common/embeddings/rotary_pos_embedding.py``)."""


def rotary_fields(
    keys: Keys,
    *,
    theta: float = 10000.0,
    percent: float = 1.0,
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
) -> dict[str, Any]:
    """
    Rotary positions out of ``rope_theta`` and ``rope_scaling``, or ``rope_parameters`` of transformers 5.

    Parameters
    ----------
    theta, percent
        Defaults of the family.
    names
        The family's keys for both outside of ``rope_parameters``.
    """
    scaling = _parameters(keys)
    if any(isinstance(one, dict) for one in scaling.values()):
        scaling = _of_full_attention(keys, scaling)
    kind = _kind(keys, scaling)
    for name in scaling:
        if name not in (*_COMMON, *_OF_KIND[kind]):
            raise _wrong(keys, f"{name} is not known of type {kind}")
    base = _number(keys, scaling, "rope_theta", keys.positive(names[0], theta))
    if abs(round(base) - base) > ROUNDING * base:
        problem = f"{names[0]}: {base} is not supported; --rotary-base of Megatron is whole."
        raise InputError(keys.where, problem)
    share = _number(keys, scaling, "partial_rotary_factor", _share(keys, names[1], percent))
    found = {"position_embedding_type": "rope", "rotary_base": round(base), "rotary_percent": share}
    if kind == "linear":
        factor = _number(keys, scaling, "factor")
        if not factor.is_integer():
            raise _wrong(keys, f"a linear factor of {factor} is none of Megatron's, which are whole numbers")
        return found | {"rotary_seq_len_interpolation_factor": int(factor) if factor > 1 else None}
    if kind == "llama3":
        for name, wanted in _LLAMA_3.items():
            if scaling.get(name) != wanted:
                raise _wrong(keys, f"{name} must be {wanted}, which Megatron has as a constant")
        return found | {"rope_scaling_factor": _number(keys, scaling, "factor")}
    if kind == "yarn":
        return found | {"position_embedding_type": "yarn", "yarn": _yarn(keys, scaling)}
    return found


def local_rotary_base(keys: Keys, default: float) -> int:
    """Rotary base of layers with a window: that of ``rope_parameters``, or the default."""
    local = _parameters(keys).get(_LOCAL)
    base = default if local is None else _number(keys, _cleaned(local), "rope_theta", default)
    if abs(round(base) - base) > ROUNDING * base:
        raise _wrong(keys, f"a rotary base of {base} is not whole")
    return round(base)


def window_fields(keys: Keys, window: int | None, windowed: Sequence[bool]) -> dict[str, Any]:
    """
    A window of so many tokens, the token's own among them, in some layers.

    Megatron counts the tokens before it: ``--window-size 4095,0`` is 4,096 of them.
    """
    if window is None or not any(windowed):
        return {}
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise InputError(keys.where, f"sliding_window must be a whole number >= 1, got {shown(window)}.")
    return {"window_size": (window - 1, 0), "window_attn_skip_freq": _skipping(windowed)}


def layer_frequency_of(flags: Sequence[bool]) -> int | tuple[int, ...] | None:
    """Layers that are marked: ``None`` without, N if they are the last of every N, or 0 and 1 for each."""
    if not any(flags):
        return None
    first = list(flags).index(True) + 1
    if all(flag is ((layer + 1) % first == 0) for layer, flag in enumerate(flags)) and len(flags) % first == 0:
        return first
    return tuple(int(flag) for flag in flags)


def windowed_layers(keys: Keys, num_layers: int, default: Sequence[bool]) -> Sequence[bool]:
    """Which layers have a window: ``layer_types`` says it, or the family's rule."""
    types = keys.value("layer_types")
    if types is None:
        return default
    known = (_GLOBAL, _LOCAL)
    if not isinstance(types, list) or len(types) != num_layers or any(one not in known for one in types):
        raise InputError(
            keys.where, f"layer_types must be {num_layers} times {' or '.join(known)}; other kinds are not supported."
        )
    return [one == _LOCAL for one in types]


def _skipping(windowed: Sequence[bool]) -> int | tuple[int, ...] | None:
    """Megatron's ``window_attn_skip_freq``: its list marks the layers with a window, its number those without."""
    frequency = layer_frequency_of([not one for one in windowed])
    return tuple(int(one) for one in windowed) if isinstance(frequency, tuple) else frequency


def _parameters(keys: Keys) -> dict[str, Any]:
    """``rope_parameters`` or ``rope_scaling``, without what is null."""
    found = [keys.value(name) for name in ("rope_parameters", "rope_scaling")]
    given = [one for one in found if one]
    if len(given) > 1 and given[0] != given[1]:
        raise InputError(keys.where, "rope_parameters and rope_scaling say different things; leave one out.")
    parameters = given[0] if given else {}
    if not isinstance(parameters, dict):
        raise _wrong(keys, "must be an object")
    return _cleaned(parameters)


def _cleaned(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters without what is null."""
    return {name: value for name, value in parameters.items() if value is not None}


def _of_full_attention(keys: Keys, by_kind: dict[str, Any]) -> dict[str, Any]:
    """
    Parameters of layers without a window, where those with a window have plain positions.

    A family whose windowed layers have positions of their own asks for :func:`local_rotary_base`, too; in any other
    both kinds must be alike.
    """
    kinds = {name: _cleaned(one) for name, one in by_kind.items() if isinstance(one, dict)}
    if len(kinds) != len(by_kind) or not kinds.keys() <= {_LOCAL, _GLOBAL} or _GLOBAL not in kinds:
        raise _wrong(keys, f"by kind of layer it must have {_GLOBAL} and {_LOCAL}")
    local = kinds.get(_LOCAL, {})
    if local.get("rope_type", "default") != "default":
        raise _wrong(keys, f"scaled positions of {_LOCAL} are none of Megatron's")
    if local and local != kinds[_GLOBAL] and not keys.has_local_positions:
        raise _wrong(keys, "positions that differ by kind of layer are none of this family's")
    return kinds[_GLOBAL]


def _kind(keys: Keys, scaling: dict[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in _OF_KIND:
        raise _wrong(keys, f"type {kind!r} is none of Megatron's ({', '.join(_OF_KIND)})")
    return kind


def _share(keys: Keys, name: str, percent: float) -> float:
    """Share of a head that is rotated, by the family's own key or the common one."""
    return keys.positive(name, keys.positive("partial_rotary_factor", percent))


def _yarn(keys: Keys, scaling: dict[str, Any]) -> YarnScaling:
    """
    YaRN; transformers' scale of attention is Megatron's if it follows from the factor.

    Without ``mscale`` and ``mscale_all_dim``, both of them, it is ``0.1 ln(factor) + 1``, as with 1 and 0.
    """
    both = scaling.get("mscale") and scaling.get("mscale_all_dim")
    if "attention_factor" in scaling:
        factor = max(1.0, _number(keys, scaling, "factor"))
        follows = 0.1 * math.log(factor) + 1
        if both or abs(_number(keys, scaling, "attention_factor") - follows) > ROUNDING:
            raise _wrong(keys, f"Megatron computes attention_factor from the factor, here {follows:.6g}; leave it out")
    return YarnScaling(
        rotary_scaling_factor=_number(keys, scaling, "factor"),
        original_max_position_embeddings=scaling.get(
            "original_max_position_embeddings", keys.whole("max_position_embeddings")
        ),
        beta_fast=_number(keys, scaling, "beta_fast", 32.0),
        beta_slow=_number(keys, scaling, "beta_slow", 1.0),
        mscale=_number(keys, scaling, "mscale") if both else 1.0,
        mscale_all_dim=_number(keys, scaling, "mscale_all_dim") if both else 0.0,
        correction_range_round_to_int=scaling.get("truncate", True) is not False,
    )


def _number(keys: Keys, scaling: dict[str, Any], name: str, default: float | None = None) -> float:
    value = scaling.get(name, default)
    if not is_number(value):
        raise _wrong(keys, f"{name} must be a number, got {shown(value)}")
    return float(value)


def _wrong(keys: Keys, why: str) -> InputError:
    name = "rope_parameters" if keys.value("rope_parameters") else "rope_scaling"
    return InputError(keys.where, f"{name}: {why}.")
