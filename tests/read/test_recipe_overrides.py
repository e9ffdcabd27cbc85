"""Overrides of a recipe of Megatron-Bridge are read in Megatron-LM's options, if they leave nothing open."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import LLAMA_8B, llama_plan, make_cluster, make_config, make_job, make_plan, plan_of, small_instance

from pipette_opt.base.errors import InputError
from pipette_opt.export.folder import write_folder
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.export.targets import export
from pipette_opt.frameworks.nemo import hydra_words, overrides
from pipette_opt.job.launch import legal_config
from pipette_opt.job.models import check_one_model
from pipette_opt.job.read import Job
from pipette_opt.library.current import current_of
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args, read_megatron_args
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import ModelSpec

PROGRAM = "torchrun --nproc_per_node 8 run_recipe.py"
SIZES = (
    "model.tensor_model_parallel_size=8",
    "model.pipeline_model_parallel_size=2",
    "model.context_parallel_size=1",
    "model.seq_length=4096",
    "train.micro_batch_size=1",
    "train.global_batch_size=128",
)


def read(*words: str, of: tuple[str, ...] = SIZES) -> MegatronArgs:
    """The launch with overrides beside those that size it."""
    return read_megatron_args(shlex.join([*shlex.split(PROGRAM), *of, *words]), "--launch")


def refusal(*words: str, of: tuple[str, ...] = SIZES) -> str:
    """Error for such a launch."""
    with pytest.raises(InputError) as caught:
        read(*words, of=of)
    return str(caught.value)


def read_back(plan: Plan) -> MegatronArgs:
    """The launch with a plan's overrides."""
    return parse_megatron_args(shlex.join(["torchrun", "pretrain_gpt.py", *hydra_words(overrides(plan))]), "--launch")


def test_a_launch_that_says_all() -> None:
    """It was refused by name; fields that the recipe keeps are named."""
    given = read()
    config = given.parallel_config(32, 64)
    assert config.label() == "tp8 pp2 dp4 mbs1"
    assert (given.global_batch_size, given.seq_length) == (128, 4096)
    assert "model.recompute_granularity" in given.notes[0]
    assert "Megatron-LM's defaults are counted, the recipe's are unknown" in given.notes[0]


@pytest.mark.parametrize("missing", SIZES)
def test_a_size_that_the_recipe_sets(missing: str) -> None:
    """The launch stays refused, and the error names the field; ``null`` unsets it, too."""
    name = missing.partition("=")[0]
    for words in ((), (f"{name}=null",)):
        problem = refusal(*words, of=tuple(word for word in SIZES if word != missing))
        assert "is a launch of Megatron-Bridge (by run_recipe.py), which is not read here." in problem
        assert f"It is read if they also set {name}. " in problem


def test_the_expert_degree_is_needed_with_experts() -> None:
    """Whether the overrides or the job's model have them."""
    assert "also set model.expert_model_parallel_size." in refusal("model.num_moe_experts=8")
    assert read("model.num_moe_experts=8", "model.expert_model_parallel_size=2").expert_model_parallel_size == 2
    with_experts = make_job(make_cluster(8), read_model("mixtral-8x7b"))
    with pytest.raises(InputError, match=r"does not override model\.expert_model_parallel_size"):
        legal_config(with_experts, read(), 64)
    assert legal_config(with_experts, read("model.expert_model_parallel_size=1", "model.sequence_parallel=true"), 64)
    assert legal_config(make_job(make_cluster(8), LLAMA_8B), read(), 64).tensor_model_parallel_size == 8


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("peft.dim=16", "sets peft.dim=16, which changes the size of the job and is not read"),
        (
            "peft={_target_:megatron.bridge.peft.lora.LoRA,dim:all}",
            "sets peft.dim=all and peft.dropout=0; give numbers",
        ),
        ("model.other_parallel_size=2", "sets model.other_parallel_size=2, which changes"),
        ("model.sequence_parallel=maybe", "sets model.sequence_parallel=maybe, which changes"),
        ("mixed_precision=fp16_with_mxfp8_mixed", "sets mixed_precision='fp16_with_mxfp8_mixed', which is not read"),
        ("dataset.sequence_length=8192", "sets model.seq_length=4096, but dataset.sequence_length=8192"),
        ("train.micro_batch_size=$(date)", "--micro-batch-size"),
        ("model.tensor_model_parallel_size=many", "--tensor-model-parallel-size must be a whole number"),
    ],
)
def test_what_is_not_read(word: str, problem: str) -> None:
    """Words that size the job are errors by name."""
    assert problem in refusal(word)


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [
        (("peft={_target_:megatron.bridge.peft.lora.LoRA,dim:16,target_modules:[linear_qkv]}",), 16, 3),
        (("peft._target_=megatron.bridge.peft.lora.LoRA",), 32, 7),
        (("peft._target_=megatron.bridge.peft.canonical_lora.CanonicalLoRA", "peft.target_modules=[linear_q]"), 32, 1),
    ],
)
def test_adapters_that_are_set_as_a_whole(words: tuple[str, ...], rank: int, targets: int) -> None:
    """With the class, rank and matrices have its defaults; without it they are the recipe's."""
    found = read(*words).finetune
    assert found is not None
    adapters = found.applied(LLAMA_8B).adapters
    assert adapters is not None
    assert (adapters.rank, len(adapters.targets)) == (rank, targets)


def test_other_overrides_are_named() -> None:
    """Fields without an option of Megatron-LM, at any depth; fields on which no number depends are accepted."""
    given = read(
        "comm_overlap.defer=3", "~model.init=1", "a.b.c=2", "model.batch_p2p_comm=true", "logger.log_interval=1"
    )
    assert given.notes[-1] == "overrides that are not read: comm_overlap.defer, ~model.init, a.b.c"


def test_the_last_override_counts() -> None:
    """As in Hydra."""
    assert read("train.micro_batch_size=4").micro_batch_size == 4
    assert not read("model.sequence_parallel=true", "model.sequence_parallel=false").sequence_parallel


def test_values_that_are_known_only_later(tmp_path: Path) -> None:
    """The option is named, wherever other overrides went; a harmless value is accepted."""
    script = tmp_path / "run.sh"
    for word in ("train.global_batch_size=$N", "logger.log_interval=$N"):
        script.write_text(f'N=$(our_tool)\n{PROGRAM} model.init=null {" ".join(SIZES)} "{word}"\n')
        if "log" in word:
            assert read_megatron_args(str(script), "--launch").global_batch_size == 128
        else:
            with pytest.raises(InputError, match=r"in the value of --global-batch-size, is known only when"):
                read_megatron_args(str(script), "--launch")


CONFIGS: list[dict[str, Any]] = [
    {},
    {"layers_per_stage": (14, 18), "virtual_pipeline_model_parallel_size": 2, "recompute_granularity": "full"},
    {"layers_per_stage": (16, 16), "virtual_pipeline_model_parallel_size": 17},
    {"layers_per_stage": (15, 17)},
    {"virtual_pipeline_model_parallel_size": 4},
    {"virtual_pipeline_model_parallel_size": 4, "overlap_p2p_communication": False},
    {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3},
    {"recompute_granularity": "selective", "recompute_modules": ("layernorm",)},
    {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_bucket_size": 10**7},
    {"use_distributed_optimizer": False, "sequence_parallel": False},
]


@pytest.mark.parametrize("options", CONFIGS)
def test_an_exported_configuration_comes_back(options: dict[str, Any]) -> None:
    """Field by field, and as from the arguments of Megatron-LM."""
    plan = llama_plan()
    plan = replace(plan, config=replace(plan.config, **options))
    given, usual = read_back(plan), parse_megatron_args(shlex.join(megatron_arguments(plan)))
    assert given.parallel_config(32, 16) == plan.config
    assert {"attention_kernel": "flash"} | given.training_fields == usual.training_fields
    assert given.rank_order == usual.rank_order == plan.placement.order
    assert (given.precision, given.global_batch_size, given.seq_length) == ("bf16", 64, usual.seq_length)


def nemo_plan(model: ModelSpec) -> Plan | None:
    """A plan of a model that Megatron-Bridge can express, or nothing."""
    experts = {"expert_model_parallel_size": 2} if model.num_experts else {}
    config = make_config(tp=1, pp=1, dp=16, num_layers=model.num_layers, use_distributed_optimizer=True, **experts)
    plan = plan_of(make_job(make_cluster(2), model), config, (0, 1))
    try:
        overrides(plan)
    except InputError:
        return None
    return plan


def test_exported_presets_come_back() -> None:
    """The overrides contradict no model that they were written for."""
    found = 0
    for name in list_models():
        model = read_model(name)
        plan = nemo_plan(model)
        if plan is None:
            continue
        job = make_job(make_cluster(2), model)
        given = read_back(plan)
        check_one_model(model, job.training, given)
        assert legal_config(job, given, 16) == plan.config, name
        assert given.not_modelled == (), name
        found += 1
    assert found > 60


def test_another_model_contradicts_the_overrides() -> None:
    """As Megatron-LM's options do."""
    job = make_job(make_cluster(2), read_model("llama-3.1-8b"))
    with pytest.raises(InputError, match="--num-layers 32 differs from the job's 40"):
        check_one_model(replace(job.model, num_layers=40), job.training, read_back(llama_plan()))


def test_an_exported_folder_is_the_plan(tmp_path: Path) -> None:
    """Its time and memory are those of Megatron-LM's arguments for the plan, which name no hosts either."""
    plan, found = make_plan(), []
    for target in ("megatron", "nemo"):
        write_folder(tmp_path / target, export(plan, target))
        given = read_megatron_args(str(tmp_path / target), "--launch")
        found.append(current_of(Job(instance=small_instance(), num_gpus=16, inputs={}, launch=given), None))
    assert found[1].config == plan.config
    assert found[1].estimate.iteration_time_s == found[0].estimate.iteration_time_s
    assert found[1].memory == found[0].memory
    assert found[1].not_modelled == found[0].not_modelled
