"""What a target cannot say is refused, field by field; what it can say is there."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import yaml
from factories import llama_plan, make_plan, sharded_plan
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.export.checks import expert_tensor_size
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.megatron import megatron_options
from pipette_opt.export.recorded import SOLVE_OPTIONS, refuse_unwritten
from pipette_opt.export.targets import export
from pipette_opt.frameworks.nemo import hydra_words, overrides
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.plans.plan import Plan

Change = Callable[[Plan], Plan]


def configured(**changes: Any) -> Change:
    """Another configuration on the same map."""
    return lambda plan: replace(plan, config=replace(plan.config, **changes))


def trained(**changes: Any) -> Change:
    """Another recorded training."""
    return lambda plan: replace(plan, inputs={**plan.inputs, "training": {**plan.inputs["training"], **changes}})


def modelled(**changes: Any) -> Change:
    """Another recorded model."""
    return lambda plan: replace(plan, inputs={**plan.inputs, "model": {**plan.inputs["model"], **changes}})


def second_order(plan: Plan) -> Plan:
    """The same GPUs for the same coordinates, ranks numbered stage before replica."""
    first, second = (RankGrid.of(plan.config, order).ranks() for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"))
    was = np.empty(plan.config.world_size, dtype=np.int64)
    was[second.ravel()] = first.ravel()
    placement = plan.placement
    return replace(
        plan,
        placement=replace(
            placement, order="tp-cp-ep-pp-dp", node=placement.node[was], local_rank=placement.local_rank[was]
        ),
    )


def asynchronous(plan: Plan) -> Plan:
    """Sends that nobody waits for."""
    return replace(plan, p2p="async")


def exchanged(plan: Plan) -> Plan:
    """The first host's ranks count its GPUs backwards."""
    local_rank = plan.placement.local_rank.copy()
    local_rank[:4] = [3, 2, 1, 0]
    return replace(plan, placement=replace(plan.placement, local_rank=local_rank))


REFUSED: list[tuple[str, Change, str]] = [
    ("deepspeed", asynchronous, "p2p"),
    ("deepspeed", exchanged, "sorts the GPUs of a host.*3,2,1,0"),
    ("deepspeed", second_order, "rank_order"),
    ("deepspeed", configured(virtual_pipeline_model_parallel_size=2), "virtual_pipeline_model_parallel_size: is 2"),
    ("deepspeed", configured(layers_per_stage=(15, 17)), "layers_per_stage.*not equal"),
    ("deepspeed", configured(recompute_granularity="selective"), "recompute_granularity: is selective"),
    ("deepspeed", configured(recompute_granularity="full", recompute_method="block"), "recompute_method: is 'block'"),
    ("torchtitan", configured(recompute_granularity="full", recompute_method="block"), "recompute none,full"),
    ("deepspeed", configured(zero_stage=2), "zero_stage: is 2"),
    ("deepspeed", configured(context_parallel_size=2, data_parallel_size=2), "context_parallel_size: is 2"),
    ("deepspeed", configured(expert_model_parallel_size=2), "expert_model_parallel_size: is 2"),
    ("deepspeed", trained(fp8=True), "fp8: is True"),
    ("deepspeed", configured(overlap_grad_reduce=True), "overlap_grad_reduce: is True"),
    ("torchtitan", asynchronous, "p2p"),
    ("torchtitan", configured(ddp_bucket_size=1000), "ddp_bucket_size: is 1000"),
    ("torchtitan", second_order, "rank_order"),
    ("torchtitan", configured(sequence_parallel=False), "sequence_parallel: is off"),
    ("torchtitan", configured(recompute_granularity="selective"), "recompute_granularity: is selective"),
    ("megatron", configured(recompute_granularity="selective", recompute_modules=("ops",)), "is by operation"),
    ("nemo", configured(recompute_granularity="selective", recompute_modules=("ops",)), "is by operation"),
    ("torchtitan", configured(recompute_granularity="full", recompute_num_layers=2), "recompute_num_layers: is 2"),
    ("torchtitan", configured(use_distributed_optimizer=False), "use_distributed_optimizer: is off"),
    ("torchtitan", configured(expert_model_parallel_size=2), "expert_model_parallel_size: is 2"),
    ("torchtitan", trained(precision="fp16", accumulate_allreduce_grads_in_fp32=False), "precision: is fp16"),
    ("torchtitan", trained(accumulate_allreduce_grads_in_fp32=False), "accumulate_allreduce_grads_in_fp32: is off"),
    ("torchtitan", trained(attention_kernel="unfused"), "attention_kernel: is unfused"),
    ("torchtitan", modelled(num_layers=30), "the shape of no torchtitan llama3 flavor"),
    (
        "torchtitan",
        modelled(rope_scaling_factor=None),
        "rope_scaling_factor: is None, .* has 8.0, like Llama 3.1",
    ),
    (
        "torchtitan",
        modelled(rotary_base=10000),
        "rotary_base: is 10000, .* has 500000",
    ),
    (
        "torchtitan",
        modelled(norm_epsilon=1e-6),
        "norm_epsilon: is 1e-06, .* has 1e-05",
    ),
    ("megatron", modelled(parallel_residual=True), "parallel_residual: is True, but Megatron-LM"),
    ("nemo", modelled(parallel_residual=True), "parallel_residual: is True, but Megatron-Bridge"),
    ("nemo", modelled(activation_func="quick_gelu"), "activation_func: is 'quick_gelu', but Megatron-Bridge"),
    ("nemo", modelled(attention_chunk_size=16), "attention_chunk_size: is 16, .*, but sequences have"),
    ("megatron", modelled(attention_chunk_size=16), "attention_chunk_size: is 16, .*, but sequences have"),
    ("torchtitan", modelled(attention_output_gate=True), "attention_output_gate: is True"),
    ("nemo", asynchronous, "p2p"),
    ("nemo", configured(expert_model_parallel_size=2), "has no experts"),
    ("nemo", trained(precision="fp16"), "no recipe precision for fp16 with gradients in fp32"),
    ("nemo", trained(attention_kernel="unfused"), "attention_kernel: is unfused"),
    ("nemo", trained(exp_avg_dtype="bf16"), "exp_avg_dtype: is 'bf16'"),
    ("megatron", configured(expert_model_parallel_size=2), "has no experts"),
    ("nemo", trained(fp8=True), "no recipe precision for bf16 and delayed"),
    ("torchtitan", trained(fp8=True), "fp8: is True"),
    ("accelerate", lambda _: llama_plan(), "tensor_model_parallel_size: is 2, .*solve with --tp 1 --pp 1"),
    ("accelerate", configured(zero_stage=None, use_distributed_optimizer=False), "use_distributed_optimizer: is off"),
    ("accelerate", configured(recompute_granularity="selective"), "recompute_granularity: is selective"),
    ("accelerate", trained(fp8=True), "fp8: is True, but accelerate has no option"),
    ("accelerate", trained(accumulate_allreduce_grads_in_fp32=False), "keeps gradients in fp32"),
    ("accelerate", trained(precision="fp16", accumulate_allreduce_grads_in_fp32=False), "in fp32"),
    ("kubernetes", lambda plan: replace(plan, hosts=("h" * 64, *plan.hosts[1:])), "more than 63 characters"),
]


@pytest.mark.search
@pytest.mark.parametrize(("target", "change", "said"), REFUSED)
def test_refused(target: str, change: Change, said: str) -> None:
    """The plan goes through, the changed one does not, and the message names the field."""
    options = ExportOptions(image="image:1" if target == "kubernetes" else None)
    plan = sharded_plan() if target == "accelerate" else llama_plan()
    assert export(plan, target, options)
    with pytest.raises(InputError, match=said):
        export(change(plan), target, options)


def test_refusals_name_the_options_of_solve() -> None:
    """All fields at once, so that one more solve is enough."""
    plan = configured(
        context_parallel_size=2, data_parallel_size=2, virtual_pipeline_model_parallel_size=2, overlap_grad_reduce=True
    )(llama_plan())
    with pytest.raises(InputError) as caught:
        export(plan, "deepspeed", ExportOptions())
    assert "nor for virtual_pipeline_model_parallel_size=2, overlap_grad_reduce=True" in str(caught.value)
    assert "Solve with --context-parallel 1 --virtual-pipeline 1 --no-overlap-grad-reduce." in str(caught.value)


def test_options_of_refusals_are_options_of_solve() -> None:
    """Each belongs to a field of a configuration, and the command line takes it."""
    assert {field.name for field in fields(ParallelConfig)} >= set(SOLVE_OPTIONS)
    words = [word for option in SOLVE_OPTIONS.values() for word in option.split()]
    found = CliRunner().invoke(app, ["explain", "tp=8", "--example", "lab-2x8", "--tensor-parallel", "8", *words])
    assert found.exit_code == 0


def test_unknown_fields_are_refused() -> None:
    """A field that an export has never heard of may not get lost; with its default value it says nothing."""
    plan = llama_plan()
    refuse_unwritten("anything", replace(plan.config, use_distributed_optimizer=False, sequence_parallel=False), ())
    with pytest.raises(InputError, match="sequence_parallel: is True"):
        refuse_unwritten("anything", plan.config, ("use_distributed_optimizer",))


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed"])
def test_orders_that_come_out_alike_are_no_loss(target: str) -> None:
    """With one stage both orders number the ranks alike."""
    plan = llama_plan()
    flat = configured(pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(32,))(plan)
    files = export(flat, target)
    other = replace(flat, placement=replace(flat.placement, order="tp-cp-ep-pp-dp"))
    assert export(other, target) == files


@pytest.mark.parametrize(
    ("order", "degrees", "num_experts", "said"),
    [
        ("tp-cp-ep-dp-pp", {"context_parallel_size": 2}, None, None),
        ("tp-cp-ep-pp-dp", {}, None, None),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2}, None, 4),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2, "expert_model_parallel_size": 2}, 8, None),
        ("tp-cp-ep-pp-dp", {"context_parallel_size": 2, "expert_model_parallel_size": 4}, 8, "rank_order"),
        (
            "tp-cp-ep-pp-dp",
            {"context_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
            8,
            1,
        ),
        ("tp-cp-ep-dp-pp", {"expert_model_parallel_size": 4}, 8, None),
        ("tp-cp-ep-dp-pp", {"expert_model_parallel_size": 4}, None, "no experts"),
    ],
)
def test_expert_tensor_size(order: Any, degrees: dict[str, int], num_experts: int | None, said: object) -> None:
    """Two tensor and two pipeline ranks; with replicas numbered last, ``etp * ep`` must be ``tp * cp``."""
    plan = configured(**degrees)(llama_plan())
    plan = replace(plan, placement=replace(plan.placement, order=order))
    if isinstance(said, str):
        with pytest.raises(InputError, match=said):
            expert_tensor_size(plan, num_experts)
    else:
        assert expert_tensor_size(plan, num_experts) == said


def test_experts_in_megatrons_words() -> None:
    """Number, width and choice of the experts, and which layers have them."""
    changes = {"num_experts": 8, "moe_ffn_hidden_size": 1024, "num_dense_layers": 2}
    plan = configured(expert_model_parallel_size=4)(modelled(**changes)(llama_plan()))
    found = {option[0]: " ".join(option[1:]) for option in megatron_options(plan)}
    assert found["--expert-model-parallel-size"] == "4"
    assert found["--num-experts"] == "8"
    assert found["--moe-router-topk"] == "2"
    assert found["--moe-ffn-hidden-size"] == "1024"
    assert found["--moe-layer-freq"] == "[0]*2+[1]*30"
    model = overrides(plan)["model"]
    assert (model["num_moe_experts"], model["moe_ffn_hidden_size"]) == (8, 1024)
    assert model["moe_layer_freq"] == [0, 0] + [1] * 30
    assert f"model.moe_layer_freq=[0,0,{','.join('1' * 30)}]" in hydra_words(overrides(plan))


def test_nemo_sets_back_what_a_recipe_may_have_set() -> None:
    """An even plan unsets other layouts; an uneven one that only a layout can say quotes it for Hydra."""
    even = overrides(llama_plan())["model"]
    assert [even[name] for name in even if "layout" in name or "pipeline_stage" in name or "virtual" in name] == [
        None
    ] * 4
    assert even["account_for_loss_in_pipeline_split"] is False
    counted = configured(virtual_pipeline_model_parallel_size=17)(llama_plan())  # 32 layers, 34 with both ends
    found = overrides(counted)["model"]
    assert found["virtual_pipeline_model_parallel_size"] == 17
    assert found["account_for_embedding_in_pipeline_split"] is True
    assert found["account_for_loss_in_pipeline_split"] is True
    assert "model.account_for_loss_in_pipeline_split=true" in hydra_words(overrides(counted))
    uneven = configured(pipeline_model_parallel_size=4, data_parallel_size=2, layers_per_stage=(8, 7, 9, 8))(
        llama_plan()
    )
    assert "model.pipeline_model_parallel_layout='Et*8|t*7|t*9|t*8L'" in hydra_words(overrides(uneven))
    chunks = {"virtual_pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*9|t*8|t*7|t*8L"}
    found = hydra_words(overrides(configured(**chunks)(llama_plan())))
    assert "model.pipeline_model_parallel_layout='Et*9|t*8|t*7|t*8L'" in found


def test_nemo_says_how_context_ranks_exchange() -> None:
    """Two levels are a list; a plain ring is the recipe's own default."""
    levels = configured(context_parallel_size=4, context_a2a_size=2, data_parallel_size=1)(llama_plan())
    words = hydra_words(overrides(trained(cp_comm_type="a2a+p2p")(levels)))
    assert {"model.cp_comm_type='a2a+p2p'", "model.hierarchical_context_parallel_sizes=[2,2]"} <= set(words)
    gathered = configured(context_parallel_size=2, data_parallel_size=2)(llama_plan())
    assert overrides(trained(cp_comm_type="all_gather")(gathered))["model"]["cp_comm_type"] == "all_gather"
    assert not any("cp_comm_type" in word for word in hydra_words(overrides(gathered)))


def test_nemo_says_what_is_sent_beside_compute() -> None:
    """Gradients, parameters, and the sends of an interleaved schedule, which then are not batched."""
    plan = configured(overlap_grad_reduce=True, overlap_param_gather=True, ddp_bucket_size=7)(llama_plan())
    found = overrides(plan)
    assert found["optimizer"]["overlap_param_gather"]
    assert found["ddp"]["overlap_grad_reduce"]
    assert found["ddp"]["overlap_param_gather"]
    assert found["ddp"]["bucket_size"] == 7
    assert (found["model"]["overlap_p2p_comm"], found["model"]["batch_p2p_comm"]) == (False, True)
    model = overrides(configured(virtual_pipeline_model_parallel_size=2)(plan))["model"]
    assert (model["overlap_p2p_comm"], model["batch_p2p_comm"]) == (True, False)


def test_nemo_leaves_a_recipes_overlap_on() -> None:
    """A plan without overlap says what its times assume, and writes nothing over the recipe's own."""
    written = overrides(llama_plan())
    assert written["ddp"] == written["optimizer"] == {"use_distributed_optimizer": True}
    assert "comm_overlap" not in written
    for text in export(llama_plan(), "nemo").values():
        assert "have neither gradients nor parameters sent beside compute" in text
    for text in export(configured(overlap_grad_reduce=True)(llama_plan()), "nemo").values():
        assert "have gradients sent beside compute" in text
    # Without the distributed optimizer there is nothing to gather; a recipe's own setting would stop the run.
    plain = overrides(configured(use_distributed_optimizer=False)(llama_plan()))
    assert plain["ddp"] == {"use_distributed_optimizer": False, "overlap_param_gather": False}


def test_nemo_files_agree() -> None:
    """The YAML file has what the words say."""
    files = export(llama_plan(), "nemo")
    written = yaml.safe_load(files["overrides.yaml"])
    assert written["model"]["tensor_model_parallel_size"] == 2
    assert written["dist"] == {"use_tp_pp_dp_mapping": False}
    for word in hydra_words(written):
        assert f"  {word}\n" in files["nemo_args.sh"]


def test_deepspeed_configuration() -> None:
    """Batch, ZeRO and formats by hand: 64 sequences are 8 micro-batches of 2 on 4 replicas."""
    plan = make_plan()
    found = json.loads(export(plan, "deepspeed")["ds_config.json"])
    assert found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 4 == 64
    assert found["zero_optimization"] == {"stage": 1}
    flat = configured(pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(8,))(plan)
    beside = configured(overlap_grad_reduce=True)(flat)
    found_flat = json.loads(export(beside, "deepspeed")["ds_config.json"])
    assert found_flat["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    with pytest.raises(InputError, match="overlap_grad_reduce: is True"):
        export(configured(overlap_grad_reduce=True)(plan), "deepspeed")
    assert found["bf16"] == {"enabled": True}
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    narrow = trained(precision="fp16", accumulate_allreduce_grads_in_fp32=False)(plan)
    found = json.loads(export(narrow, "deepspeed")["ds_config.json"])
    assert (found["fp16"], found["data_types"]) == ({"enabled": True}, {"grad_accum_dtype": "fp16"})


def test_torchtitan_file_is_toml() -> None:
    """Without a pipeline the replica's batch is accumulated; sharding is said in a comment."""
    plan = configured(pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(32,))(llama_plan())
    text = export(plan, "torchtitan")["torchtitan.toml"]
    assert "for the plan's distributed optimizer" in text
    found = tomllib.loads(text)
    assert found["training"]["local_batch_size"] == 1
    assert "module_fqns_per_model_part" not in found["parallelism"]
    assert found["parallelism"]["data_parallel_shard_degree"] == 8
    assert found["activation_checkpoint"] == {"mode": "none"}
    by_operation = configured(recompute_granularity="selective", recompute_modules=("ops",))(plan)
    found = tomllib.loads(export(by_operation, "torchtitan")["torchtitan.toml"])
    assert found["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_precision_and_sharding_of_accelerate() -> None:
    """fp32 is no mixed precision; parameters that ZeRO 1 keeps are not resharded."""
    plan = trained(precision="fp32")(sharded_plan(zero_stage=None))
    keys = yaml.safe_load(export(plan, "accelerate")["accelerate.yaml"])
    assert (keys["mixed_precision"], keys["fsdp_config"]["fsdp_reshard_after_forward"]) == ("no", False)
    assert "parallelism_config" not in keys
