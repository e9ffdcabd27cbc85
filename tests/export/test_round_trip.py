"""What is read of a model is written: model, Megatron's arguments, the same model."""

from dataclasses import fields, replace
from typing import Any

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, plan_of
from hugging_face_configs import CONFIGS
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_opt.base.errors import InputError
from pipette_opt.export.megatron import (
    MISSING_MODEL_FIELDS,
    YARN_WITHOUT_OPTIONS,
    argument_arrays,
    builder_notes,
    megatron_arguments,
)
from pipette_opt.export.recorded import refuse_unwritten
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import list_models, read_model
from pipette_opt.read.model_words import model_options
from pipette_opt.specs import GatedDeltaNet, LatentAttention, Mamba, ModelSpec, TrainingSpec, YarnScaling

TRAINING = TrainingSpec(global_batch_size=8, seq_length=64)


def written_and_read(model: ModelSpec) -> ModelSpec | None:
    """The model that our reader finds in the arguments of a model."""
    words = [word for option in model_options(model, TRAINING) for word in option]
    return parse_megatron_args(" ".join(words), "arguments", model.name).model


def as_said(model: ModelSpec) -> ModelSpec:
    """The model with the defaults of what Megatron-LM has no argument for, which a comment says instead."""
    model = replace(model, attention_chunk_size=None)  # a chunk is as long as the sequence, or refused
    latent = model.multi_latent_attention
    if latent is None or latent.yarn is None:
        return model
    notes = " ".join(builder_notes(model))
    for name, default in YARN_DEFAULTS.items():
        value = getattr(latent.yarn, name)
        assert (value == default) is (f"{name}={value}" not in notes)
    return replace(model, multi_latent_attention=replace(latent, yarn=replace(latent.yarn, **YARN_DEFAULTS)))


YARN_DEFAULTS: dict[str, Any] = {name: getattr(YarnScaling(), name) for name in YARN_WITHOUT_OPTIONS}


@pytest.mark.parametrize("name", list_models())
def test_presets_come_back(name: str) -> None:
    """To the last field; what Megatron-LM has no argument for is refused by name: parallel layers, norms, factors."""
    model = read_model(name)
    written = {field.name for field in fields(ModelSpec)} - {*MISSING_MODEL_FIELDS}
    usual = {field.name: field.default for field in fields(ModelSpec) if field.name in MISSING_MODEL_FIELDS}
    if any(getattr(model, name) != value for name, value in usual.items()):
        with pytest.raises(InputError, match=rf"({'|'.join(usual)}): is .*, but Megatron-LM has no"):
            refuse_unwritten("Megatron-LM", model, written)
        model = replace(model, **usual)
    if model.activation_func == "gelu":
        with pytest.raises(InputError, match="activation_func: is gelu with a gate"):
            written_and_read(model)
        model = replace(model, activation_func=None)
    refuse_unwritten("Megatron-LM", model, written)
    assert written_and_read(model) == as_said(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_configs_come_back(name: str) -> None:
    """What the file says arrives in Megatron."""
    model = replace(model_from_hugging_face(CONFIGS[name], "config.json", name), parallel_residual=False)
    assert written_and_read(model) == as_said(model)


positive = st.floats(1e-9, 1e3, allow_nan=False)
"""Any number > 0."""


def layer_marks(layers: int) -> st.SearchStrategy[int | tuple[int, ...] | None]:
    """A divisor of the layers, a mark for each, or nothing."""
    divisors = [number for number in range(1, layers + 1) if layers % number == 0]
    each = st.lists(st.integers(0, 1), min_size=layers, max_size=layers).map(tuple)
    return st.none() | st.sampled_from(divisors) | each


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Models with every field drawn; those that need another one only where it is."""
    layers, groups = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    gated, bias = draw(st.booleans()), draw(st.booleans())
    values: dict[str, Any] = {
        "name": "random",
        "num_layers": layers,
        "hidden_size": draw(st.integers(1, 10_000)),
        "ffn_hidden_size": draw(st.integers(1, 10_000)),
        "num_attention_heads": groups * draw(st.integers(1, 8)),
        "num_query_groups": groups,
        "kv_channels": draw(st.integers(1, 512)),
        "vocab_size": draw(st.integers(1, 300_000)),
        "max_position_embeddings": draw(st.integers(TRAINING.seq_length, 200_000)),
        "gated_linear_unit": gated,
        "untie_embeddings_and_output_weights": draw(st.booleans()),
        "add_bias_linear": bias,
        "add_qkv_bias": bias or draw(st.booleans()),
        "qk_layernorm": draw(st.booleans()),
        "normalization": draw(st.sampled_from(["LayerNorm", "RMSNorm"])),
        "position_embedding_type": draw(st.sampled_from(["learned_absolute", "rope", "yarn", "none"])),
        "hidden_dropout": draw(st.floats(0.0, 0.9)),
        "attention_dropout": draw(st.floats(0.0, 0.9)),
        "make_vocab_size_divisible_by": draw(st.integers(1, 1024)),
        "activation_func": draw(st.sampled_from([None, "quick_gelu" if gated else "squared_relu"])),
        "glu_linear_offset": draw(st.floats(-2.0, 2.0)) if gated else 0.0,
        "activation_func_clamp_value": draw(st.none() | positive) if gated else None,
        "norm_epsilon": draw(positive),
        "layernorm_zero_centered_gamma": draw(st.booleans()),
        "softmax_type": draw(st.sampled_from(["vanilla", "off-by-one", "learnable"])),
        "parallel_residual": False,
        "attention_chunk_size": None,
        "pre_norms": True,
        "post_norms": False,
        "qk_layernorm_across_heads": False,
        "multipliers": None,
        "sparse_attention": None,
        "local_rotary_base": None,
        "num_layers_at_start_in_bf16": 0,  # with products in fewer bits only: a test of their own
        "num_layers_at_end_in_bf16": 0,
        "init_method_std": draw(positive),
        **draw(depth_fields()),
        "other_arguments": draw(st.sampled_from([None, (("--apply-residual-connection-post-layernorm",),)])),
        **draw(expert_fields(layers)),
    }
    if values["mtp_num_layers"] and values["position_embedding_type"] != "none":
        values["position_embedding_type"] = "rope"
    values |= draw(latent_fields(values))
    values |= draw(rotary_fields(values["position_embedding_type"], layers))
    window = draw(st.none() | st.tuples(st.integers(-1, 9999), st.integers(-1, 9999)))
    values |= {"window_size": window, "window_attn_skip_freq": draw(layer_marks(layers)) if window else None}
    values |= draw(list_fields(values))
    assert set(values) == {field.name for field in fields(ModelSpec)} - {"adapters"}  # refused: no argument
    return ModelSpec(**values)


@st.composite
def list_fields(draw: st.DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """Layers with a state: none, gated delta nets in place of attention, or a hybrid with a letter for each layer."""
    sizes = st.integers(1, 512)
    delta = st.builds(
        lambda a, b, c, d, e: GatedDeltaNet(
            conv_kernel_dim=a, key_head_dim=b, value_head_dim=c, num_key_heads=d, num_value_heads=d * e
        ),
        sizes, sizes, sizes, sizes, sizes,
    )  # fmt: skip
    found: dict[str, Any] = {
        "attention_output_gate": draw(st.booleans()) and values["multi_latent_attention"] is None,
        "mamba": None,
        "hybrid_layer_pattern": None,
        "mtp_layer_pattern": None,
        "gated_delta_net": None,
        "linear_attention_freq": None,
    }
    layers = values["num_layers"]
    if draw(st.booleans()):
        freq = draw(layer_marks(layers))
        return found | {"linear_attention_freq": freq, "gated_delta_net": None if freq is None else draw(delta)}
    if draw(st.booleans()) or values["multi_latent_attention"] is not None:
        return found
    depths = values["mtp_num_layers"]
    letters = "MG*-" if values["num_experts"] is None else "MG*-E"
    pattern = draw(st.text(letters, min_size=layers, max_size=layers))
    if values["num_experts"] is not None and "E" not in pattern:
        pattern = f"E{pattern[1:]}"
    single = {"num_dense_layers": 0, "moe_layer_freq": None, "window_size": None, "window_attn_skip_freq": None}
    mamba = st.builds(lambda a, b, c, d: Mamba(state_dim=a, head_dim=b, num_groups=c, num_heads=c * d), *4 * (sizes,))
    return found | single | {
        "no_rope_freq": None,
        "hybrid_layer_pattern": pattern,
        "mtp_layer_pattern": draw(st.text(pattern, min_size=1, max_size=3)) if depths else None,
        "mamba": draw(mamba) if "M" in pattern else None,
        "gated_delta_net": draw(delta) if "G" in pattern else None,
    }  # fmt: skip


@st.composite
def latent_fields(draw: st.DrawFn, values: dict[str, Any]) -> dict[str, Any]:
    """Latent attention, with a key for each head and no biases of its own."""
    if not draw(st.booleans()):
        return {"multi_latent_attention": None}
    even = st.integers(1, 200).map(lambda half: 2 * half)
    scaling = st.builds(
        YarnScaling, rotary_scaling_factor=positive, mscale=positive, mscale_all_dim=st.floats(0.0, 9.0)
    )
    latent = LatentAttention(
        q_lora_rank=draw(st.none() | st.integers(1, 4096)),
        kv_lora_rank=draw(st.integers(1, 4096)),
        qk_head_dim=draw(even),
        qk_pos_emb_head_dim=draw(even),
        v_head_dim=draw(even),
        yarn=draw(st.none() | scaling),
    )
    kind = values["position_embedding_type"]
    return {
        "multi_latent_attention": latent,
        "num_query_groups": values["num_attention_heads"],
        "add_qkv_bias": values["add_bias_linear"],
        "position_embedding_type": "rope" if kind == "yarn" else kind,
    }


@st.composite
def rotary_fields(draw: st.DrawFn, kind: str, layers: int) -> dict[str, Any]:
    """Fields of positions, at their defaults where they are not rotary."""
    rotary = kind in ("rope", "yarn")
    yarn = st.builds(
        YarnScaling,
        rotary_scaling_factor=positive,
        original_max_position_embeddings=st.integers(1, 10**6),
        beta_fast=positive,
        beta_slow=positive,
        mscale=positive,
        mscale_all_dim=st.floats(0.0, 9.0),
        correction_range_round_to_int=st.booleans(),
    )
    return {
        "rotary_base": draw(st.integers(2, 10**8)) if rotary else 10000,
        "rotary_percent": draw(st.floats(0.01, 1.0)) if rotary else 1.0,
        "rotary_interleaved": rotary and draw(st.booleans()),
        "rotary_seq_len_interpolation_factor": draw(st.none() | st.integers(2, 64)) if rotary else None,
        "rope_scaling_factor": draw(st.none() | positive) if kind == "rope" else None,
        "yarn": draw(yarn) if kind == "yarn" else None,
        "no_rope_freq": draw(layer_marks(layers)) if rotary else None,
    }


@st.composite
def depth_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Multi-token prediction, at its defaults without."""
    depths = draw(st.integers(0, 3))
    return {
        "mtp_num_layers": depths,
        "mtp_use_repeated_layer": depths > 0 and draw(st.booleans()),
        "mtp_loss_scaling_factor": draw(positive) if depths else 0.1,
    }


@st.composite
def expert_fields(draw: st.DrawFn, layers: int) -> dict[str, Any]:
    """Fields of experts, at their defaults without."""
    experts = draw(st.none() | st.integers(1, 512))
    some, groups, chosen, topk = experts is not None, None, None, 2
    if experts is not None:
        groups = draw(st.none() | st.sampled_from([one for one in range(1, experts + 1) if experts % one == 0]))
        chosen = None if groups is None else draw(st.none() | st.integers(1, groups))
        size = experts // (groups or 1)
        topk = draw(st.integers(1, experts)) if chosen is None else chosen * draw(st.integers(1, size))
    dense = draw(st.integers(0, layers - 1)) if some else 0
    marks = layer_marks(layers).filter(
        lambda one: (
            one is None or any(one[dense:] if isinstance(one, tuple) else (n % one == 0 for n in range(dense, layers)))
        )
    )
    return {
        "num_experts": experts,
        "moe_router_topk": topk,
        "moe_latent_size": draw(st.none() | st.integers(1, 9999)) if some else None,
        "moe_router_num_groups": groups,
        "moe_router_group_topk": chosen,
        "moe_ffn_hidden_size": draw(st.none() | st.integers(1, 9999)) if some else None,
        "moe_shared_expert_intermediate_size": draw(st.integers(0, 9999)) if some else 0,
        "num_dense_layers": dense,
        "moe_layer_freq": draw(marks) if some else None,
        "moe_router_pre_softmax": some and draw(st.booleans()),
    }


@pytest.mark.search
@given(models())
@settings(max_examples=200, deadline=None)
def test_random_models_come_back(model: ModelSpec) -> None:
    """Every field there is, at any value that it may have."""
    assert written_and_read(model) == model


def test_the_routers_formula_is_passed_on() -> None:
    """What no estimate looks at is written as it was read; of a dense model it says nothing."""
    router = (
        "--moe-aux-loss-coeff 0.001 0.01 --moe-router-enable-expert-bias --moe-router-load-balancing-type seq_aux_loss "
        "--moe-router-score-function sigmoid --moe-router-topk-scaling-factor 2.5"
    )
    words = " ".join(word for option in model_options(read_model("mixtral-8x7b"), TRAINING) for word in option)
    model = parse_megatron_args(f"{words} {router}").model
    assert model is not None
    assert " ".join(word for option in model.other_arguments or () for word in option) == router
    assert written_and_read(model) == replace(model, name=model.name)
    dense = parse_megatron_args(f"{words} {router}".replace("--num-experts 8", "")).model
    assert dense is not None
    assert dense.other_arguments is None


def test_a_plan_starts_the_model_that_was_planned() -> None:
    """Megatron trained Llama 3 with base 10,000 where the export dropped its 500,000."""
    plan = plan_of(
        make_job(make_cluster(4, gpus=4), LLAMA_8B), make_config(tp=4, pp=1, dp=4, num_layers=32), (0, 1, 2, 3)
    )
    words = " ".join(megatron_arguments(plan))
    for option in ("--rotary-base 500000", "--use-rope-scaling", "--rope-scaling-factor 8.0", "--norm-epsilon 1e-05"):
        assert option in words
    assert parse_megatron_args(words, name="llama").model == LLAMA_8B
    text = argument_arrays(plan)
    assert "hand it to GPTModel" not in text
    assert "TRIAL_ARGS=(" in text
    assert parse_megatron_args(text, name="llama").model == LLAMA_8B, "not the trial's vocabulary"


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"rope_scaling_factor": 32.0}, "--rope-scaling-factor 32.0 but uses 8.0"),
        ({"rotary_seq_len_interpolation_factor": 4}, "--rotary-seq-len-interpolation-factor"),
        (
            {"position_embedding_type": "yarn", "yarn": YarnScaling(), "rope_scaling_factor": None},
            "yarn needs Megatron-LM 0.19",
        ),
    ],
)
def test_what_megatron_reads_and_drops_is_said(change: dict[str, Any], note: str) -> None:
    """A comment where the stock builder of some releases does not hand an argument on."""
    model = replace(LLAMA_8B, **change)
    plan = plan_of(make_job(make_cluster(4, gpus=4), model), make_config(tp=4, pp=1, dp=4, num_layers=32), (0, 1, 2, 3))
    assert note in argument_arrays(plan)


@pytest.mark.parametrize("backend", ["deepep", "hybridep"])
@pytest.mark.parametrize("used", [None, 12])
def test_kernels_that_send_tokens_come_back(backend: str, used: int | None) -> None:
    """Whose, and on how many multiprocessors, whether or not the launch had words for them."""
    given = make_job(make_cluster(4, gpus=4), read_model("mixtral-8x7b"))
    fields_of_kernels = {"moe_flex_dispatcher_backend": backend, "moe_flex_dispatcher_num_sms": used}
    training = replace(given.training, moe_token_dispatcher_type="flex", **fields_of_kernels)  # type: ignore[arg-type]
    chosen = make_config(tp=4, pp=1, dp=4, num_layers=32, expert_model_parallel_size=4, expert_tensor_parallel_size=1)
    plan = plan_of(replace(given, training=training), chosen, (0, 1, 2, 3))
    found = parse_megatron_args(" ".join(megatron_arguments(plan))).training(TRAINING)
    assert (found.moe_flex_dispatcher_backend, found.moe_flex_dispatcher_num_sms) == (backend, used)


def test_layers_in_16_bits_come_back() -> None:
    """With products in fewer bits; without they mean nothing."""
    ends = {"num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 4}
    given = make_job(make_cluster(4, gpus=4), replace(LLAMA_8B, **ends))  # type: ignore[arg-type]
    chosen = make_config(tp=4, pp=1, dp=4, num_layers=32)
    plan = plan_of(given, chosen, (0, 1, 2, 3))
    assert not any("bf16" in word and "layers" in word for word in megatron_arguments(plan))
    in_fp4 = {**plan.inputs, "training": {**plan.inputs["training"], "fp4": True}}
    model = parse_megatron_args(" ".join(megatron_arguments(replace(plan, inputs=in_fp4)))).model
    assert model is not None
    assert (model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16) == (0, 4)
