"""Readers of rotary positions and attention windows in Hugging Face's ``config.json``."""

import math
from collections.abc import Sequence
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import is_number
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.specs import YarnScaling

ROUNDING = 1e-6
"""Largest relative distance of a rotary base from a whole number; StarCoder2 has 999,999.442. Chosen."""

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Keys that ``rope_scaling`` and ``rope_parameters`` may have with any type of scaling."""

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
"""Kinds of layers that ``rope_parameters`` may list: with a window, and with full attention."""

_SCALING_KEYS = {
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
"""Further keys of each type of scaling that Megatron-LM also has; ``mrope`` equals ``default`` for text."""

_LLAMA_3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""Constants of Llama 3's scaling in Megatron-Core (``core/models/common/embeddings/rotary_pos_embedding.py``)."""


def rotary_fields(keys: Keys, names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")) -> dict[str, Any]:
    """
    Return the rotary fields of ``rope_theta`` and ``rope_scaling``, or of ``rope_parameters`` (transformers 5).

    Parameters
    ----------
    names
        Keys of the family for the base and the share, outside of ``rope_parameters``.
    """
    scaling = _parameters(keys)
    if any(isinstance(parameters, dict) for parameters in scaling.values()):
        scaling = _full_attention_parameters(keys, scaling)
    kind = _kind(keys, scaling)
    for name in scaling:
        if name not in (*_COMMON, *_SCALING_KEYS[kind]):
            raise _wrong(keys, f"{name} is not known of type {kind}")
    base = _number(keys, scaling, "rope_theta", keys.positive(names[0], 10000.0))
    if abs(round(base) - base) > ROUNDING * base:
        problem = f"{names[0]}: {base} is not supported; --rotary-base of Megatron is whole."
        raise InputError(keys.where, problem)
    given = keys.positive(names[1], keys.positive("partial_rotary_factor", 1.0))
    share = _number(keys, scaling, "partial_rotary_factor", given)
    found = {"position_embedding_type": "rope", "rotary_base": round(base), "rotary_percent": share}
    if kind == "linear":
        factor = _number(keys, scaling, "factor")
        if not factor.is_integer():
            raise _wrong(keys, f"a linear factor of {factor} is not a whole number, as Megatron's are")
        return found | {"rotary_seq_len_interpolation_factor": int(factor) if factor > 1 else None}
    if kind == "llama3":
        for name, wanted in _LLAMA_3.items():
            if scaling.get(name) != wanted:
                raise _wrong(keys, f"{name} must be {wanted}, a constant of Megatron")
        return found | {"rope_scaling_factor": _number(keys, scaling, "factor")}
    if kind == "yarn":
        return found | {"position_embedding_type": "yarn", "yarn": _yarn(keys, scaling)}
    return found


def local_rotary_base(keys: Keys, default: float) -> int:
    """Return the rotary base of layers with a window, from ``rope_parameters``, else the default."""
    local = _parameters(keys).get(_LOCAL)
    base = default if local is None else _number(keys, _cleaned(local), "rope_theta", default)
    if abs(round(base) - base) > ROUNDING * base:
        raise _wrong(keys, f"a rotary base of {base} is not whole")
    return round(base)


def window_fields(keys: Keys, window: int | None, windowed: Sequence[bool]) -> dict[str, Any]:
    """
    Return the fields of a window of ``window`` tokens, including the token itself, in the layers marked in
    ``windowed``.

    Megatron counts only the tokens before: ``--window-size 4095,0`` means 4,096 tokens.
    """
    if window is None or not any(windowed):
        return {}
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise InputError(keys.where, f"sliding_window must be a whole number >= 1, got {shown(window)}.")
    return {"window_size": (window - 1, 0), "window_attn_skip_freq": _skipping(windowed)}


def layer_frequency_of(flags: Sequence[bool]) -> int | tuple[int, ...] | None:
    """Return the marked layers in Megatron's form: ``None`` for none, N for every Nth, or 0 and 1 for each layer."""
    if not any(flags):
        return None
    first = list(flags).index(True) + 1
    if all(flag is ((layer + 1) % first == 0) for layer, flag in enumerate(flags)) and len(flags) % first == 0:
        return first
    return tuple(int(flag) for flag in flags)


def windowed_layers(
    keys: Keys, num_layers: int, default: Sequence[bool], marked: str = _LOCAL, other: str = _GLOBAL
) -> Sequence[bool]:
    """Return for each layer whether it is of the kind ``marked``, from ``layer_types`` or else the family's default."""
    types = keys.value("layer_types")
    if types is None:
        return default
    if not isinstance(types, list) or len(types) != num_layers or any(kind not in (other, marked) for kind in types):
        raise keys.wrong("layer_types", f"it must be {num_layers} times {other} or {marked}")
    return [kind == marked for kind in types]


def _skipping(windowed: Sequence[bool]) -> int | tuple[int, ...] | None:
    """Return Megatron's ``window_attn_skip_freq``: N if every Nth layer has no window, else 0 and 1, 1 for a window."""
    frequency = layer_frequency_of([not has_window for has_window in windowed])
    return tuple(int(has_window) for has_window in windowed) if isinstance(frequency, tuple) else frequency


def _parameters(keys: Keys) -> dict[str, Any]:
    """Return ``rope_parameters`` or ``rope_scaling`` without null values; empty if both are absent."""
    found = [keys.value(name) for name in ("rope_parameters", "rope_scaling")]
    given = [parameters for parameters in found if parameters]
    if len(given) > 1 and given[0] != given[1]:
        raise InputError(
            keys.where, "rope_parameters and rope_scaling are both given, and differ; remove one of the two."
        )
    parameters = given[0] if given else {}
    if not isinstance(parameters, dict):
        raise _wrong(keys, "must be an object")
    return _cleaned(parameters)


def _cleaned(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters without null values."""
    return {name: value for name, value in parameters.items() if value is not None}


def _full_attention_parameters(keys: Keys, by_kind: dict[str, Any]) -> dict[str, Any]:
    """
    Return the rotary parameters of layers without a window. ``InputError`` if windowed layers have scaled positions.

    A family whose windowed layers have their own base also calls :func:`local_rotary_base`. In any other family both
    kinds of layers must have equal parameters.
    """
    kinds = {name: _cleaned(parameters) for name, parameters in by_kind.items() if isinstance(parameters, dict)}
    if len(kinds) != len(by_kind) or not kinds.keys() <= {_LOCAL, _GLOBAL} or _GLOBAL not in kinds:
        raise _wrong(keys, f"by kind of layer it must have {_GLOBAL} and {_LOCAL}")
    local = kinds.get(_LOCAL, {})
    if local.get("rope_type", "default") != "default":
        raise _wrong(keys, f"Megatron has no scaled positions of {_LOCAL}")
    if local and local != kinds[_GLOBAL] and not keys.has_local_positions:
        raise _wrong(keys, "this family has no positions that differ by kind of layer")
    return kinds[_GLOBAL]


def _kind(keys: Keys, scaling: dict[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in _SCALING_KEYS:
        raise _wrong(keys, f"type {kind!r} is not one of Megatron's ({', '.join(_SCALING_KEYS)})")
    return kind


def _yarn(keys: Keys, scaling: dict[str, Any]) -> YarnScaling:
    """
    Return YaRN scaling. ``InputError`` if ``attention_factor`` differs from the value that Megatron computes.

    That value is ``0.1 ln(factor) + 1``, unless ``mscale`` and ``mscale_all_dim`` are both set.
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
