"""Hybrids and delta nets in the words of Megatron-LM and Megatron-Bridge."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, plan_of

from pipette_opt.base.errors import InputError
from pipette_opt.export.megatron import builder_notes, megatron_options
from pipette_opt.frameworks.nemo import hydra_words, overrides
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.read.model_words import barred_pattern
from pipette_opt.specs import ModelSpec


def plan_for(model: ModelSpec, layers: tuple[int, ...], **options: object) -> Plan:
    """Tensor 2, two stages, data 4 on four hosts of four GPUs."""
    given = make_job(make_cluster(4, gpus=4), model, launcher="torchrun")
    chosen = make_config(tp=2, pp=2, dp=4, layers_per_stage=layers, sequence_parallel=True, **options)
    return plan_of(given, chosen, (2, 0, 3, 1))


def test_bars_are_bounds_of_stages() -> None:
    """Chunks in model order: with two chunks of each stage the second follows the first of the last stage."""
    assert barred_pattern("M-M*-M-M", ((3, 1), (2, 2))) == "M-M|*|-M|-M"
    plan = plan_for(read_model("nemotron-h-8b"), (25, 27))
    words = [word for option in megatron_options(plan) for word in option]
    pattern = words[words.index("--hybrid-layer-pattern") + 1]
    assert [len(part) for part in pattern.split("|")] == [25, 27]
    assert "--pipeline-model-parallel-layout" not in words
    read = parse_megatron_args(" ".join(words))
    assert read.model is not None
    assert read.model.hybrid_layer_pattern == pattern.replace("|", "")
    assert read.parallel_config(52, 16).layers_per_stage == (25, 27)
    assert any("pretrain_hybrid.py" in note for note in builder_notes(read.model))
    assert not any("pretrain_hybrid.py" in note for note in builder_notes(LLAMA_8B))


def test_recipes_have_the_fields_of_megatron_core() -> None:
    """Sizes by their names; without such layers none of them."""
    section = overrides(plan_for(replace(read_model("nemotron-h-8b"), activation_func=None), (26, 26)))["model"]
    assert section["hybrid_layer_pattern"].count("|") == 1
    assert (section["mamba_num_heads"], section["mamba_state_dim"], section["mamba_num_groups"]) == (128, 128, 8)
    net = overrides(plan_for(replace(read_model("qwen3-next-80b-a3b"), other_arguments=None), (24, 24)))["model"]
    assert (net["experimental_attention_variant"], net["linear_attention_freq"]) == ("gated_delta_net", 4)
    assert (net["attention_output_gate"], net["linear_num_value_heads"]) == (True, 32)
    plain = overrides(plan_for(LLAMA_8B, (16, 16)))["model"]
    assert not {"hybrid_layer_pattern", "linear_attention_freq", "attention_output_gate"} & set(plain)


@pytest.mark.parametrize(("name", "layers"), [("gemma-3-12b", (24, 24)), ("gemma-3-27b", (31, 31))])
def test_gemma_3_in_the_fields_of_its_provider(name: str, layers: tuple[int, int]) -> None:
    """Megatron-Bridge's own values: windows of 1,024 in five of six layers, two rotary bases, positions over eight."""
    section = overrides(plan_for(read_model(name), layers))["model"]
    assert (section["window_size"], section["interleaved_attn_pattern"]) == (1024, [5, 1])
    assert (section["rotary_base"], section["rope_scaling_factor"]) == ([10000, 1000000], 8.0)
    assert (section["seq_len_interpolation_factor"], section["window_attn_skip_freq"]) == (None, None)
    assert (section["rope_scaling"], section["layernorm_zero_centered_gamma"]) == (False, True)
    assert "model.rotary_base=[10000,1000000]" in hydra_words({"model": section})


def test_what_only_gemma_3_has_is_refused_elsewhere() -> None:
    """Norms after branches with other windows than a provider's pattern, or with one rotary base."""
    model = read_model("gemma-3-12b")
    for other in (
        replace(model, window_attn_skip_freq=(0, 1) + (1,) * 46),
        replace(model, local_rotary_base=None),
    ):
        with pytest.raises(InputError, match="Megatron-Bridge has no option"):
            overrides(plan_for(other, (24, 24)))
