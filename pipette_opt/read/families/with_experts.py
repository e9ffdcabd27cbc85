"""Readers of families of Hugging Face's ``config.json`` with experts and a single kind of attention."""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.family import family
from pipette_opt.read.hugging_face_common import count, experts, llama_like, no_attention_bias, per_head
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_positions import window_fields
from pipette_opt.specs import LatentAttention, SparseAttention


@family(
    "mixtral",
    has_experts=True,
    num_key_value_heads=8,
    rope_theta=1000000.0,
    rms_norm_eps=1e-05,
    num_local_experts=8,
    num_experts_per_tok=2,
)
def mixtral(keys: Keys) -> dict[str, Any]:
    """Return the fields of Mixtral: experts as wide as ``intermediate_size`` in every layer, 2 of 8 by default."""
    return (
        llama_like(keys)
        | experts(keys, "num_local_experts", None)
        | window_fields(keys, keys.value("sliding_window"), [True] * keys.whole("num_hidden_layers"))
    )


@family(
    "qwen2_moe",
    has_experts=True,
    num_key_value_heads=16,
    num_experts=60,
    num_experts_per_tok=4,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
)
def qwen2_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen 1.5 and 2 MoE: biases of query, key and value, and a shared expert with a gate."""
    return _qwen_moe(keys) | {
        "add_qkv_bias": keys.flag("qkv_bias", True),
        "moe_shared_expert_intermediate_size": keys.whole("shared_expert_intermediate_size"),
        "other_arguments": (("--moe-shared-expert-gate",),),
    }


@family(
    "qwen3_moe",
    text_parts=("qwen3_vl_moe_text",),
    has_experts=True,
    num_key_value_heads=4,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
def qwen3_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen 3 MoE: normalised queries and keys, no shared expert."""
    return _qwen_moe(keys) | {"qk_layernorm": True}


def _qwen_moe(keys: Keys) -> dict[str, Any]:
    """Return layers and router of Qwen's families with experts."""
    layers, step, dense = keys.whole("num_hidden_layers"), keys.whole("decoder_sparse_step", 1), _listed_layers(keys)
    if keys.flag("use_sliding_window", False):
        raise keys.wrong("use_sliding_window", "which layers have a window depends on the version of transformers")
    keys.ignore("sliding_window", "max_window_layers")  # without effect unless use_sliding_window is set
    no_attention_bias(keys)
    with_experts = tuple(int(layer not in dense and (layer + 1) % step == 0) for layer in range(layers))
    return (llama_like(keys) | experts(keys)) | {
        "moe_layer_freq": None if all(with_experts) else with_experts,
        "moe_router_pre_softmax": not keys.flag("norm_topk_prob", False),
    }


def _listed_layers(keys: Keys) -> frozenset[int]:
    """Return the numbers of the dense layers that ``mlp_only_layers`` lists."""
    listed = keys.value("mlp_only_layers") or []
    if not isinstance(listed, list) or any(isinstance(layer, bool) or not isinstance(layer, int) for layer in listed):
        raise keys.wrong("mlp_only_layers", "it must be a list of layers")
    return frozenset(listed)


@family("olmoe", has_experts=True, rms_norm_eps=1e-05, num_experts=64, num_experts_per_tok=8)
def olmoe(keys: Keys) -> dict[str, Any]:
    """Return the fields of OLMoE: experts as wide as ``intermediate_size``, queries and keys normed over all heads."""
    no_attention_bias(keys)
    return (llama_like(keys) | experts(keys, width="intermediate_size")) | {
        "qk_layernorm": True,
        "qk_layernorm_across_heads": True,
        "moe_router_pre_softmax": not keys.flag("norm_topk_prob", False),
    }


@family("dots1", has_experts=True, num_key_value_heads=32)
def dots1(keys: Keys) -> dict[str, Any]:
    """Return the fields of dots.llm1: DeepSeek-V3's experts, grouped queries, normalised queries and keys."""
    no_attention_bias(keys)
    keys.ignore("layer_types")  # all full attention
    return llama_like(keys) | _shared_and_dense(keys) | _router(keys) | {"qk_layernorm": True}


@family(
    "minimax_m2",
    has_experts=True,
    num_key_value_heads=8,
    rope_theta=5000000.0,
    num_local_experts=256,
    num_experts_per_tok=8,
)
def minimax_m2(keys: Keys) -> dict[str, Any]:
    """
    Return the fields of MiniMax-M2: experts as wide as ``intermediate_size``, partly rotated heads, a norm over all
    heads.

    ``use_mtp`` and similar keys are ignored: the published weights lack these layers, and neither transformers nor
    Megatron-Bridge builds them.
    """
    for name in ("use_mtp", "num_mtp_modules", "mtp_transformer_layers"):
        keys.leave_out(name)
    kinds = keys.value("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise keys.wrong("attn_type_list", "only 1, full attention, is supported")
    if count(keys, "shared_intermediate_size"):
        raise keys.wrong("shared_intermediate_size", "this family has no shared expert")
    if keys.text("qk_norm_type", "per_layer") != "per_layer":
        raise keys.wrong("qk_norm_type", "it must be per_layer")
    head = keys.whole("head_dim", per_head(keys, keys.whole("hidden_size"), keys.whole("num_attention_heads")))
    keys.assume({"partial_rotary_factor": keys.whole("rotary_dim", head) / head})
    normed = keys.flag("use_qk_norm", True)
    return (
        llama_like(keys)
        | experts(keys, "num_local_experts", "intermediate_size")
        | _sigmoid_router(keys, bias="use_routing_bias", score="scoring_func")
        | {
            "qk_layernorm": normed,
            "qk_layernorm_across_heads": normed,
        }
    )


@family("bailing_moe", "bailing_moe_v2", has_experts=True)
def bailing_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of Ling and Ring: DeepSeek's experts under other key names, with grouped queries."""
    for name in ("multi_gate", "norm_head", "norm_softmax", "embedding_dropout", "output_dropout"):
        if keys.value(name):
            raise keys.wrong(name, "for this model_type it must be absent or false")
    width, shared = keys.whole("moe_intermediate_size"), count(keys, "num_shared_experts")
    is_second = keys.value("model_type") == "bailing_moe_v2"
    bias, depths = keys.flag("use_bias", False), count(keys, "num_nextn_predict_layers")
    router = (
        _sigmoid_router(keys, bias="moe_router_enable_expert_bias", score="score_function")
        if is_second
        else {"moe_router_pre_softmax": not keys.flag("norm_topk_prob", False)}
    )
    return (
        llama_like(keys)
        | experts(keys)
        | router
        | {
            "add_bias_linear": bias,
            "add_qkv_bias": keys.flag("use_qkv_bias", False),
            "qk_layernorm": keys.flag("use_qk_norm", is_second),
            "moe_shared_expert_intermediate_size": shared * keys.whole("moe_shared_expert_intermediate_size", width),
            "num_dense_layers": count(keys, "first_k_dense_replace"),
            "mtp_num_layers": depths,
        }
    )


@family(
    "ernie4_5_moe",
    has_experts=True,
    num_key_value_heads=4,
    moe_num_experts=64,
    moe_k=6,
    rope_theta=500000.0,
    rms_norm_eps=1e-05,
    tie_word_embeddings=True,
)
def ernie_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of ERNIE 4.5 MoE: experts from ``moe_layer_start_index`` on, with a balancing bias each."""
    layers, width = keys.whole("num_hidden_layers"), keys.whole("moe_intermediate_size")
    first, step = count(keys, "moe_layer_start_index"), keys.whole("moe_layer_interval", 1)
    last = keys.value("moe_layer_end_index")
    last = layers - 1 if last in (None, -1) else last
    if not isinstance(last, int) or isinstance(last, bool):
        raise keys.wrong("moe_layer_end_index", "it must be a layer, or -1")
    keys.ignore("num_nextn_predict_layers")  # transformers ignores it
    bias = keys.flag("use_bias", False)
    with_experts = tuple(int((n + 1) % step == 0 and first <= n <= last) for n in range(layers))
    return llama_like(keys) | {
        "add_bias_linear": bias,
        "add_qkv_bias": bias,
        "rotary_interleaved": True,
        "num_experts": keys.whole("moe_num_experts"),
        "moe_router_topk": keys.whole("moe_k"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * count(keys, "moe_num_shared_experts"),
        "moe_layer_freq": with_experts,
        "moe_router_pre_softmax": True,
        "other_arguments": (("--moe-router-enable-expert-bias",),),
    }


def _sigmoid_router(keys: Keys, *, bias: str, score: str) -> dict[str, Any]:
    """
    Return the fields of DeepSeek-V3's router: normalised sigmoid scores, optionally in groups of experts.

    Parameters
    ----------
    bias, score
        Keys of the family for the bias of each expert, and for the score function.
    """
    if keys.text(score, "sigmoid") != "sigmoid" or not keys.flag("norm_topk_prob", True):
        raise keys.wrong(score, "it must be sigmoid, with norm_topk_prob")
    scale, groups, chosen = keys.positive("routed_scaling_factor", 1.0), keys.value("n_group"), keys.value("topk_group")
    grouped = bool(groups) and keys.whole("n_group") > 1
    extra: list[tuple[str, ...]] = [("--moe-router-enable-expert-bias",)] if keys.flag(bias, True) else []
    extra += [("--moe-router-score-function", "sigmoid")]
    extra += [("--moe-router-topk-scaling-factor", f"{scale:g}")] if scale != 1.0 else []
    return {
        "moe_router_num_groups": groups if grouped else None,
        "moe_router_group_topk": chosen if grouped else None,
        "moe_router_pre_softmax": True,
        "other_arguments": tuple(extra),
    }


@family("deepseek", has_experts=True)
def deepseek(keys: Keys) -> dict[str, Any]:
    """Return the fields of DeepSeek-MoE (version 1): ordinary attention, shared experts, dense layers first."""
    if keys.has("kv_lora_rank"):
        raise InputError(
            keys.where,
            "kv_lora_rank does not exist for model_type deepseek; for DeepSeek-V2 write model_type deepseek_v2.",
        )
    if keys.whole("moe_layer_freq", 1) != 1:
        raise InputError(keys.where, "moe_layer_freq must be 1: dense layers between others are not supported.")
    no_attention_bias(keys)
    return (
        llama_like(keys) | _shared_and_dense(keys) | {"moe_router_pre_softmax": not keys.flag("norm_topk_prob", False)}
    )


@family("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", has_experts=True)
def deepseek_v3(keys: Keys) -> dict[str, Any]:
    """
    Return the fields of DeepSeek-V2, -V3 and Kimi-K2: latent attention, groups of experts, softmax or sigmoid router.

    ``quantization_config`` is ignored, as it describes the stored weights.
    """
    if keys.whole("moe_layer_freq", 1) != 1:
        raise InputError(keys.where, "moe_layer_freq must be 1: dense layers between others are not supported.")
    no_attention_bias(keys)
    # Stored weights; a sum; channels that form a pair.
    keys.ignore("quantization_config", "qk_head_dim", "rope_interleave")
    sizes = {name: keys.whole(key) for name, key in _LATENT_KEYS.items() if name != "q_lora_rank" or keys.has(key)}
    found, heads = llama_like(keys) | _shared_and_dense(keys), keys.whole("num_attention_heads")
    if keys.whole("num_key_value_heads", heads) != heads:
        raise keys.wrong("num_key_value_heads", f"latent attention needs the number of num_attention_heads, {heads}")
    scaling = found.pop("yarn", None)
    return (
        found
        | _router(keys)
        | {
            "mtp_num_layers": count(keys, "num_nextn_predict_layers"),
            "kv_channels": sizes["v_head_dim"],
            "num_query_groups": heads,
            "qk_layernorm": True,
            "position_embedding_type": "rope",
            "multi_latent_attention": LatentAttention(**sizes, yarn=scaling),
        }
    )


@family("deepseek_v32", "glm_moe_dsa", has_experts=True, v_head_dim=128)
def deepseek_v32(keys: Keys) -> dict[str, Any]:
    """Return the fields of DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with sparse attention."""
    keys.ignore("indexer_rope_interleave")  # channels that form a pair
    sizes = SparseAttention(
        n_heads=keys.whole("index_n_heads"), head_dim=keys.whole("index_head_dim"), topk=keys.whole("index_topk")
    )
    return deepseek_v3(keys) | {"sparse_attention": sizes}


@family(
    "glm4_moe",
    text_parts=("glm4v_moe_text",),
    has_experts=True,
    num_key_value_heads=8,
    rms_norm_eps=1e-05,
    partial_rotary_factor=0.5,
)
def glm4_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of GLM-4.5: DeepSeek-V3's experts, grouped queries, half of each head rotated."""
    return (
        llama_like(keys)
        | _shared_and_dense(keys)
        | _router(keys)
        | {
            "mtp_num_layers": count(keys, "num_nextn_predict_layers"),
            "qk_layernorm": keys.flag("use_qk_norm", False),
            "add_qkv_bias": keys.flag("attention_bias", False),
        }
    )


_LATENT_KEYS = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
"""Keys of the sizes of latent attention, by Megatron-Core's names."""


def _shared_and_dense(keys: Keys) -> dict[str, Any]:
    """Return the expert fields under DeepSeek's keys: routed and shared experts of equal width, dense layers first."""
    width = keys.whole("moe_intermediate_size")
    return experts(keys, "n_routed_experts") | {
        "moe_shared_expert_intermediate_size": width * count(keys, "n_shared_experts"),
        "num_dense_layers": count(keys, "first_k_dense_replace"),
    }


def _router(keys: Keys) -> dict[str, Any]:
    """
    Return the router fields of DeepSeek-V2 (softmax) or V3 (sigmoid, with a load-balancing bias of each expert).

    V3 normalises the scores of the chosen experts, as Megatron-Core always does with sigmoid scores.
    """
    method = keys.text("topk_method", "noaux_tc")
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise keys.wrong("topk_method", "it must be greedy, group_limited_greedy or noaux_tc")
    sigmoid = keys.text("scoring_func", "sigmoid" if method == "noaux_tc" else "softmax") == "sigmoid"
    if not sigmoid and keys.text("scoring_func", "softmax") != "softmax":
        raise keys.wrong("scoring_func", "it must be softmax or sigmoid")
    normed = keys.flag("norm_topk_prob", sigmoid)
    if sigmoid and not normed:
        raise keys.wrong("norm_topk_prob", "Megatron-Core divides sigmoid scores by their sum")
    scale, groups = keys.positive("routed_scaling_factor", 1.0), keys.whole("n_group", 1)
    if groups > 1 and method == "greedy":
        raise keys.wrong("n_group", "with topk_method greedy it must be 1")
    extra: list[tuple[str, ...]] = [("--moe-router-enable-expert-bias",)] if method == "noaux_tc" else []
    extra += [("--moe-router-score-function", "sigmoid")] if sigmoid else []
    extra += [("--moe-router-topk-scaling-factor", f"{scale:g}")] if scale != 1.0 else []
    chosen = keys.whole("topk_group", 1)
    if chosen > groups:
        raise keys.wrong("topk_group", f"it must be <= n_group, {groups}")
    return {
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": chosen if groups > 1 else None,
        "moe_router_pre_softmax": sigmoid or not normed,
        "other_arguments": tuple(extra) or None,
    }
