"""Keys of Hugging Face's ``config.json`` that change nothing, and keys that must have a certain value."""

import difflib
import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipette_opt.base.errors import MAX_SHOWN, InputError, shown
from pipette_opt.read.fields import Fields

logger = logging.getLogger(__name__)

HARMLESS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "names a file, a class or a version": (
            "auto_map",
            "finetuning_task",
            "name_or_path",
            "tokenizer_class",
            "transformers_version",
        ),
        "number format of the stored weights; --precision sets that of training": (
            "dtype",
            "quantization_config",
            "torch_dtype",
        ),
        "of inference": (
            "attn_implementation",
            "do_sample",
            "generation_config",
            "max_length",
            "max_new_tokens",
            "repetition_penalty",
            "temperature",
            "top_k",
            "top_p",
            "use_cache",
        ),
        "choice of a kernel": (
            "attention_implementation",
            "experts_implementation",
            "moe_implementation",
            "use_flash_attention",
            "use_grouped_mm",
        ),
        "without effect where no layer has a window": ("max_window_layers",),
        "numbers of special tokens": (
            "bos_token_id",
            "decoder_start_token_id",
            "eos_token_id",
            "mask_token_id",
            "pad_token_id",
            "sep_token_id",
            "unk_token_id",
        ),
        "output of a forward pass": (
            "output_attentions",
            "output_hidden_states",
            "output_router_logits",
            "return_dict",
            "torchscript",
            "use_return_dict",
        ),
        "of heads for classification and other tasks": (
            "classifier_dropout",
            "id2label",
            "is_decoder",
            "label2id",
            "num_labels",
            "prefix",
            "problem_type",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "task_specific_params",
        ),
        "sums in another order": ("pretraining_tp", "reorder_and_upcast_attn"),
        "a term of the loss, which the training chooses": (
            "aux_loss_alpha",
            "mtp_loss_scaling_factor",
            "router_aux_loss_coef",
            "router_z_loss_coef",
            "seq_aux",
            "z_loss_coef",
        ),
    }
)
"""Keys that change neither the model nor time nor memory, whatever their value, by reason."""

REQUIRED: Mapping[str, tuple[tuple[object, ...], str]] = MappingProxyType(
    {
        "is_encoder_decoder": ((False,), "only decoders are supported"),
        "add_cross_attention": ((False,), "only decoders are supported"),
        "tie_encoder_decoder": ((False,), "only decoders are supported"),
        "pruned_heads": (({},), "every layer must have all its heads"),
        "chunk_size_feed_forward": ((0,), "Megatron's MLP takes all tokens at once"),
        "attn_logit_softcapping": ((), "Megatron-Core has no soft cap of attention scores"),
        "final_logit_softcapping": ((), "Megatron-Core has no soft cap of logits"),
        "logit_scale": ((1,), "Megatron-Core does not scale logits"),
        "logits_scaling": ((1,), "Megatron-Core does not scale logits"),
        "embedding_multiplier": ((1,), "Megatron-LM does not scale embeddings"),
        "residual_multiplier": ((1,), "Megatron-Core does not scale residuals"),
        "attention_multiplier": ((), "Megatron-LM has no argument for another scale of attention"),
        "query_pre_attn_scalar": ((), "Megatron-LM has no argument for another scale of attention"),
        "scale_attn_weights": ((True,), "Megatron-Core always scales attention by the size of a head"),
        "scale_attn_by_inverse_layer_idx": ((False,), "Megatron-LM divides and multiplies again, which cancels"),
        "clip_qkv": ((), "Megatron-Core does not clip queries, keys and values"),
        "alibi": ((False,), "Megatron-Core has no ALiBi"),
        "qk_layernorm": ((False,), "only families whose queries and keys are normalised head by head are supported"),
        "use_qk_norm": ((False,), "only families whose queries and keys are normalised head by head are supported"),
        "attention_bias": ((False,), "this family has no such biases"),
        "mlp_bias": ((False,), "this family has no such biases"),
        "lm_head_bias": ((False,), "Megatron's output head has no bias"),
        "use_bias": ((False,), "this family has no such biases"),
        "sliding_window": ((), "this family has no windows"),
        "use_sliding_window": ((False,), "this family has no windows"),
        "layer_types": ((), "this family has layers of one kind, full_attention"),
        "full_attn_mod": ((1,), "every layer must have full attention"),
        "interpolate_factor": ((1,), "positions must not be interpolated apart from rope_scaling"),
        "rope_type": (("default",), "rope_scaling sets how positions are scaled"),
        "use_mrope": ((False,), "positions of images and video are not supported"),
        "rope_interleaved": ((False,), "this family rotates halves of a head"),
        "norm_type": (("layer_norm",), "only layer_norm is known for this key"),
        "mlp_type": (("default",), "only the default MLP is known"),
        "kv_lora_rank": ((), "multi-head latent attention is not supported"),
        "q_lora_rank": ((), "multi-head latent attention is not supported"),
        "num_nextn_predict_layers": ((0,), "multi-token prediction is not supported"),
        "num_mtp_modules": ((0,), "multi-token prediction is not supported"),
        "n_group": ((1,), "routing in groups of experts is not supported"),
        "topk_group": ((1,), "routing in groups of experts is not supported"),
        "topk_method": (("greedy",), "only the experts with the highest scores are supported"),
        "scoring_func": (("softmax",), "only routers with a softmax are supported"),
        "routed_scaling_factor": ((1,), "scaled outputs of experts are not supported"),
        "router_jitter_noise": ((0,), "noise of the router is not supported"),
        "ep_size": ((1,), "expert parallelism is an option here"),
    }
)
"""Keys that a family does not read: their values without effect, and the error text for any other value."""

_STRUCTURE = re.compile(
    r"(^|_)(index|indexer|experts?|layers?|heads?|hidden|intermediate|dims?|size|width|rank|ranks|attention|attn|mlp|ffn|"
    r"norms?|layernorm|rope|rotary|window|gates?|gated|linear|conv|state|ssm|mamba|vocab|embeddings?|mtp|share|shared|"
    r"topk|router|routing|bias|factor|multiplier|scale|scaling|softcap\w*)(_|$)"
)
"""Words in names of keys that may change the structure of a model."""

_TRAINING_WORDS = re.compile(
    r"drop|loss|coef|init|dtype|precision|fuse|kernel|token|parallel|checkpoint|recompute|cache|plan|version"
)
"""Words in names of keys about training or running a model; estimates never use such keys of a ``config.json``."""

_TASK = re.compile(r"For(?P<task>[A-Z]\w*)|(?P<model>(?:Reward|DoubleHeads)Model)$")
_LANGUAGE_MODEL = ("CausalLM", "ConditionalGeneration", "PreTraining", "Generation")
"""Beginnings of task names whose head is the output layer of a language model."""

_HARMLESS = {key for keys in HARMLESS.values() for key in keys}


class Keys(Fields):
    """
    Fields of a ``config.json`` that remember which keys a reader asked for.

    A reader asks for every key that it knows; :meth:`refuse_others` then finds the keys that no reader knows.
    """

    def __init__(self, where: str, data: Mapping[str, Any]) -> None:
        super().__init__(where, data, data.keys())
        self.asked: set[str] = {"model_type"}
        self.left_out: list[str] = []
        self.has_local_positions = False

    def has(self, name: str) -> bool:
        """Return whether the key exists and is not null."""
        self.asked.add(name)
        return super().has(name)

    def given(self, name: str) -> bool:
        """Return whether the key exists, even if null."""
        self.asked.add(name)
        return name in self.data

    def value(self, name: str) -> Any:
        """Return the value of a key; ``None`` if the key is absent."""
        self.asked.add(name)
        return self.data.get(name)

    def wrong(self, name: str, why: str) -> InputError:
        """Return an ``InputError`` for the value of a key that is not supported, with the reason."""
        return InputError(self.where, f"{name}: {shown(self.value(name))} is not supported; {why}.")

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Set keys that are absent or null to the defaults of the family's configuration class."""
        given = {name: value for name, value in self.data.items() if value is not None}
        self.data = {**self.data, **defaults, **given}

    def leave_out(self, name: str) -> None:
        """Mark a key as known but not used; a warning names the key if it is set."""
        if self.value(name):
            self.left_out.append(name)

    def refuse_others(self) -> None:
        """
        Raise ``InputError`` for a key that no reader asked for and that may change the model; warn of other unknown
        keys.

        Keys that begin with ``_`` are transformers' own notes. Null and switched-off unknown keys change nothing. A
        single warning names all unknown keys.
        """
        self._check_head()
        for name, value in self.data.items():
            if name in self.asked or name in _HARMLESS or name.startswith("_") or value is None:
                continue
            if name in REQUIRED:
                self._check_required(name, value)
            else:
                self._check_unknown(name, value)
        if self.left_out:
            named = ", ".join(f"{name} ({shown(self.data[name])})" for name in self.left_out)
            logger.warning("%s: not used: %s", self.where, named)

    def _check_head(self) -> None:
        """
        Raise ``InputError`` if ``architectures`` names a head other than a language model's; warn of a class without a
        head.
        """
        names = self.value("architectures")
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise self.wrong("architectures", 'must be a list of names of classes, e.g. ["LlamaForCausalLM"]')
        for name in names or []:
            found = _TASK.search(name)
            task = "" if found is None else found["task"] or found["model"]
            if task and not task.startswith(_LANGUAGE_MODEL):
                why = "its head is not a language model's output layer, which Megatron-LM trains and which is counted"
                raise self.wrong("architectures", why)
            if found is None and not name.endswith("LMHeadModel"):
                logger.warning(
                    "%s: architectures: %s names no head; a language model's output layer is counted.", self.where, name
                )

    def _check_required(self, name: str, value: object) -> None:
        """
        Raise ``InputError`` unless the value of a key in ``REQUIRED``, which this family does not read, has no
        effect.
        """
        allowed, why = REQUIRED[name]
        if name == "layer_types" and isinstance(value, list) and {*map(str, value)} <= {"full_attention", "attention"}:
            return
        if not any(
            value == allowed_value and isinstance(value, bool) is isinstance(allowed_value, bool)
            for allowed_value in allowed
        ):
            raise self.wrong(name, why)

    def _check_unknown(self, name: str, value: object) -> None:
        """
        Raise ``InputError`` for an unknown key that is misspelt or may change the model; otherwise note the key for a
        warning.
        """
        near = difflib.get_close_matches(name[:MAX_SHOWN], [*self.asked, *_HARMLESS, *REQUIRED], n=1, cutoff=0.85)
        if near and near[0] not in _HARMLESS:
            raise InputError(self.where, f"unknown key {name!r} ({shown(value)}). Did you mean {near[0]}?")
        is_off = value is False or value in ([], {}, "")
        if _STRUCTURE.search(name) and not _TRAINING_WORDS.search(name) and not is_off:
            hint = "Remove it from the file if it does not change the architecture."
            raise InputError(self.where, f"unknown key {name!r} ({shown(value)}). {hint}")
        self.left_out.append(name)
