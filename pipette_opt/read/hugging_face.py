"""Reader of Hugging Face's ``config.json`` for decoder-only transformers, dense or with experts."""

import logging
from typing import Any

from pipette_opt.base.errors import InputError, made_at, shown
from pipette_opt.read.family import Family, families, supported
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.specs import ModelSpec

logger = logging.getLogger(__name__)

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Keys that hold the text part of models with images or sound."""

_OTHER_EXPERTS = ("dbrx", "jamba")
"""Model families with experts whose ``model_type`` does not contain ``moe``."""


def model_from_hugging_face(config: object, where: str, name: str) -> ModelSpec:
    """
    Return the model that a ``config.json`` describes; ``model_type`` selects the reader.

    Absent optional keys have the defaults of the ``transformers`` configuration classes. Every key is used, known to
    change nothing, named in a warning, or refused (:mod:`pipette_opt.read.hugging_face_keys`). Of a model with images,
    only the text part is read.
    """
    if not isinstance(config, dict):
        raise InputError(where, f"must be a JSON object, as in Hugging Face's config.json, got {shown(config)}.")
    if "model_type" in config:
        config = _text_part(config, where)
    keys = Keys(where, config)
    known = _family(keys)
    keys.assume(known.defaults)
    model = made_at(where, lambda: ModelSpec(name=name, **known.read(keys)))
    keys.refuse_others()
    return model


def _text_part(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the text part of a model with images or sound, warning of other parts; other configs are unchanged."""
    held = next((key for key in _TEXT_PARTS if isinstance(config.get(key), dict)), None)
    if held is None:
        return config
    text: dict[str, Any] = config[held]
    others = sorted(key for key, value in config.items() if isinstance(value, dict) and key.endswith("_config"))
    left = [key for key in others if key not in (held, "quantization_config")]
    if left:
        logger.warning("%s: only the text part, %s, is read; left out: %s.", where, held, ", ".join(left))
    inherited = {key: config[key] for key in ("tie_word_embeddings", "vocab_size") if key in config}
    return inherited | text


def _family(keys: Keys) -> Family:
    """Return the family that reads a ``config.json``. ``InputError`` for a ``model_type`` that is not supported."""
    config, where = keys.data, keys.where
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(where, f"the field model_type is missing; it must be one of {supported(with_experts=False)}.")
    known = families().get(model_type)
    experts = [key for key in _EXPERT_KEYS if isinstance(config.get(key), int) and config[key] > 1]
    if known is not None and (known.has_experts or not experts):
        return known
    if experts or "moe" in model_type or model_type in _OTHER_EXPERTS:
        problem = f"model_type {model_type!r} is a mixture of experts that is not supported"
        raise InputError(where, f"{problem}; supported: {supported(with_experts=True)}.")
    raise InputError(where, f"model_type {model_type!r} is not supported; supported: {supported(with_experts=False)}.")
