"""Models with experts: Hugging Face files, Megatron arguments, presets; and who refuses them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.costs.compute import stage_compute
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_architecture, read_model
from pipette_opt.specs import ComputeProfile, Instance, ModelSpec, TrainingSpec


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("deepseek-moe-16b", 16.4e9, 2.8e9),
        ("qwen3-30b-a3b", 30.5e9, 3.3e9),
        # Model card of GPT-OSS (arXiv 2508.10925, table 1); ai.meta.com/blog/llama-4-multimodal-intelligence.
        ("gpt-oss-120b", 116.83e9, 5.13e9 + 201088 * 2880),
        ("gpt-oss-20b", 20.91e9, 3.61e9 + 201088 * 2880),
        ("llama-4-scout", 107.8e9, 17e9),  # 109 with its encoder of images
        ("llama-4-maverick", 400e9, 17e9),
        # Nemotron-H: arXiv 2504.03624; Nemotron 3 Nano: 31.6 billion, 3.6 active (arXiv 2512.20848); Qwen3-Next's card.
        ("nemotron-h-8b", 8.1e9, 8.1e9),
        # Gemma 3 without its encoder of images: 10,759 and 25,600 million, 1,012 and 1,416 of embeddings (table 1).
        ("gemma-3-12b", 11.77e9, 11.77e9),
        ("gemma-3-27b", 27.02e9, 27.02e9),
        ("nemotron-h-56b", 56e9, 56e9),
        ("nemotron-3-nano-30b-a3b", 31.6e9, 3.6e9),
        ("qwen3-next-80b-a3b", 80e9, 3.87e9),
    ],
)
def test_parameters_as_published(preset: str, total: float, active: float) -> None:
    """All parameters, and those that one token passes, the embedding look-up among them."""
    model = read_model(preset)
    assert model.num_parameters == pytest.approx(total, rel=0.01)
    idle = 1 - model.moe_router_topk / (model.num_experts or 1) if model.num_experts else 0
    passed = model.num_parameters - sum(idle * layer_parameters(model, kind).experts for kind in model.layers)
    assert passed == pytest.approx(active, rel=0.02)


def test_megatron_arguments_of_a_mixture() -> None:
    """Experts, their width, dense layers first, shared experts, and who shares an expert."""
    text = (
        "--num-layers 28 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16 --vocab-size 102400 "
        "--max-position-embeddings 4096 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
        "--normalization RMSNorm --position-embedding-type rope --make-vocab-size-divisible-by 128 "
        "--hidden-dropout 0 --attention-dropout 0 --norm-epsilon 1e-6 --moe-router-pre-softmax "
        "--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 "
        "--moe-shared-expert-intermediate-size 2816 --moe-layer-freq '([0]*1+[1]*27)' --tensor-model-parallel-size 2 "
        "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --sequence-parallel "
        "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
    )
    args = parse_megatron_args(text, name="deepseek-moe-16b")
    assert args.model == read_model("deepseek-moe-16b")
    plan = args.parallel_config(28, 16)
    assert (plan.expert_model_parallel_size, plan.expert_tensor_size) == (8, 1)
    assert (plan.recompute_method, plan.recompute_num_layers) == ("block", 3)


@pytest.mark.parametrize(
    ("freq", "dense", "found"),
    [
        ("2", 0, 2),
        ("([1,0])*14", 0, 2),
        ("([0]*1+[1]*27)", 1, None),
        ("([1]*27+[0]*1)", 0, (1,) * 27 + (0,)),
        ("([0,1])*14", 1, (0, 1) * 14),
    ],
)
def test_layers_with_experts_in_any_order(freq: str, dense: int, found: object) -> None:
    """Read as Megatron reads them, said as briefly as can be."""
    text = "--num-layers 28 --hidden-size 8 --num-attention-heads 2 --vocab-size 9 --seq-length 8 --num-experts 4"
    model = parse_megatron_args(f"{text} --moe-layer-freq {freq}").model
    assert model is not None
    assert (model.num_dense_layers, model.moe_layer_freq) == (dense, found)


def test_architecture_file_with_experts(tmp_path: Path) -> None:
    """Fields of experts may stand in our YAML, and are checked."""
    text = (
        "num_layers: 4\nhidden_size: 64\nffn_hidden_size: 128\nnum_attention_heads: 4\nnum_query_groups: 4\n"
        "kv_channels: 16\nvocab_size: 100\nmax_position_embeddings: 32\n"
    )
    path = tmp_path / "few.yaml"
    path.write_text(text + "num_experts: 4\nmoe_router_topk: 1\nnum_dense_layers: 1\n")
    model = read_architecture(path)
    assert (model.num_experts, model.moe_router_topk, model.num_moe_layers) == (4, 1, 3)
    path.write_text(text + "num_dense_layers: 1\n")
    with pytest.raises(InputError, match="num_dense_layers=1 needs num_experts"):
        read_architecture(path)


def test_whoever_tells_times_refuses_profiles_of_something_else() -> None:
    """One clear message where an instance is made, before anything is timed."""
    mixture = replace(LLAMA_8B, num_experts=8)
    with pytest.raises(InputError, match="has times of dense layers; model llama has 8 experts"):
        replace(make_job(make_cluster(2), mixture), profile=ComputeProfile(layers={}))
    in_fp8 = TrainingSpec(global_batch_size=8, seq_length=1024, fp8=True)
    with pytest.raises(InputError, match="has times of layers in 16 or 32 bits, not in fewer"):
        Instance(model=LLAMA_8B, cluster=make_cluster(2), training=in_fp8, profile=ComputeProfile(layers={}))


def test_whoever_tells_times_refuses_other_savers() -> None:
    """A configuration whose memory is known and whose times are not."""
    sharded = make_config(dp=8, pp=2, zero_stage=2, use_distributed_optimizer=True)
    interleaved = replace(sharded, virtual_pipeline_model_parallel_size=2)
    with pytest.raises(InputError, match="ZeRO stage 2"):
        stage_compute(make_job(make_cluster(2)), interleaved)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_experts": 0},
        {"num_experts": 4, "moe_router_topk": 5},
        {"num_experts": 4, "moe_ffn_hidden_size": 0},
        {"num_experts": 4, "num_dense_layers": 32},
        {"num_experts": 4, "num_dense_layers": -1},
        {"moe_ffn_hidden_size": 64},
        {"moe_shared_expert_intermediate_size": 64},
    ],
)
def test_absurd_experts(changes: dict[str, Any]) -> None:
    """Refused with the field's name."""
    with pytest.raises(ValueError, match=r"num_experts|moe_|num_dense"):
        replace(LLAMA_8B, **changes)


def test_a_dense_model_is_unchanged() -> None:
    """Without experts the counts are the old ones: attention, MLP, norms."""
    model: ModelSpec = LLAMA_8B
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert model.num_parameters == 32 * layer + 2 * 128256 * 4096 + 4096
