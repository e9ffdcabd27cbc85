"""Megatron's arguments: parsed back they are the plan; what they cannot say is refused."""

from dataclasses import asdict, replace

import pytest
from factories import (
    LLAMA_8B,
    TINY,
    make_cluster,
    make_config,
    make_job,
    make_plan,
    plan_of,
    small_config,
    small_instance,
)

from pipette_opt.base.errors import InputError
from pipette_opt.export.megatron import argument_arrays, megatron_arguments, megatron_options, trial_options
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.specs import Instance, TrainingSpec


def values(plan: Plan) -> dict[str, str]:
    """Options and values; flags have an empty one."""
    return {option[0]: " ".join(option[1:]) for option in megatron_options(plan)}


def with_training(plan: Plan, **changes: object) -> Plan:
    """The plan with other recorded training fields."""
    return replace(plan, inputs={**plan.inputs, "training": {**plan.inputs["training"], **changes}})


CASES: dict[str, tuple[Instance, ParallelConfig, int]] = {
    "even": (small_instance(), small_config(), 1),
    "second order": (small_instance(), small_config(), 2),
    "uneven, both ends": (
        make_job(make_cluster(4, gpus=4), TINY),
        make_config(tp=1, pp=4, dp=4, layers_per_stage=(1, 3, 3, 1)),
        1,
    ),
    "uneven, last": (
        make_job(make_cluster(4, gpus=4), TINY),
        make_config(tp=2, pp=2, dp=4, layers_per_stage=(5, 3)),
        1,
    ),
    "interleaved, full": (
        make_job(make_cluster(4, gpus=4), LLAMA_8B),
        make_config(
            tp=2,
            pp=4,
            dp=2,
            num_layers=32,
            virtual_pipeline_model_parallel_size=4,
            recompute_granularity="full",
            sequence_parallel=True,
        ),
        1,
    ),
    "interleaved, block": (
        make_job(make_cluster(4, gpus=4), LLAMA_8B),
        make_config(
            tp=2,
            pp=4,
            dp=2,
            num_layers=32,
            virtual_pipeline_model_parallel_size=2,
            recompute_granularity="full",
            recompute_method="block",
            recompute_num_layers=3,
            sequence_parallel=True,
        ),
        1,
    ),
    "interleaved, uneven": (
        make_job(make_cluster(4, gpus=4), LLAMA_8B),
        make_config(tp=2, pp=4, dp=2, layers_per_stage=(6, 10, 10, 6), virtual_pipeline_model_parallel_size=2),
        1,
    ),
    **{
        f"interleaved, {counted} counted": (
            make_job(make_cluster(4, gpus=4), replace(LLAMA_8B, num_layers=sum(layers))),
            make_config(tp=2, pp=4, dp=2, layers_per_stage=layers, virtual_pipeline_model_parallel_size=2),
            1,
        )
        for counted, layers in {"embedding": (7, 8, 8, 8), "head": (8, 8, 8, 7), "both": (1, 2, 2, 1)}.items()
    },
    "selective": (
        make_job(make_cluster(4, gpus=4), LLAMA_8B),
        make_config(tp=4, pp=1, dp=4, num_layers=32, recompute_granularity="selective", use_distributed_optimizer=True),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_read_back_are_the_plan(name: str) -> None:
    """Our own reader of Megatron's arguments, written from Megatron's source, finds every decision again."""
    given, chosen, stages_per_host = CASES[name]
    plan = plan_of(given, chosen, tuple(range(4)), stages_per_host=stages_per_host)
    words = [*megatron_arguments(plan), *(word for option in trial_options(plan) for word in option)]
    found = parse_megatron_args(" ".join(words))
    model = replace(given.model, name="megatron", vocab_size=given.model.vocab_size - 1)
    assert found.model == model
    assert found.parallel_config(model.num_layers, chosen.world_size) == chosen
    assert (found.global_batch_size, found.seq_length, found.precision) == (64, 1024, "bf16")
    assert found.rank_order == plan.placement.order
    assert found.training(given.training) == replace(given.training, moe_token_dispatcher_type="alltoall")
    assert found.not_modelled == ()
    assert (stages_per_host == 2) == ("--use-tp-pp-dp-mapping" in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate_allreduce_grads_in_fp32": False},
        {"precision": "fp16", "accumulate_allreduce_grads_in_fp32": False},
        {"precision": "fp16"},
        {"attention_kernel": "unfused", "fused_softmax": False},
        {
            "use_precision_aware_optimizer": True,
            "main_params_dtype": "fp16",
            "exp_avg_dtype": "bf16",
            "exp_avg_sq_dtype": "fp8",
        },
        {"use_precision_aware_optimizer": True, "accumulate_allreduce_grads_in_fp32": False},
        {"fp8": True},
        {"fp8": True, "fp8_recipe": "mxfp8", "fp8_param_gather": True},
        {"fp8": True, "fp8_recipe": "tensorwise", "other_arguments": (("--fp8-format", "e4m3"),)},
        {"fp4": True, "fp8_param_gather": True},
        {"optimizer": "muon"},
        {"optimizer": "muon", "other_arguments": (("--optimizer", "dist_muon"),)},
        {"other_arguments": (("--attention-backend", "fused"),)},
        {"other_arguments": (("--no-rope-fusion",), ("--output-logit-dtype", "fp32"))},
    ],
)
def test_formats_read_back_are_the_plans(changes: dict[str, object]) -> None:
    """Gradients, optimizer states, attention."""
    plan = with_training(make_plan(), **changes)
    found = parse_megatron_args(" ".join([*megatron_arguments(plan), "--vocab-size 50000"]))
    asked = TrainingSpec(**plan.inputs["training"])
    others = {name: getattr(asked, name) for name in ("global_batch_size", "seq_length", "precision", "fp8")}
    assert found.training(TrainingSpec(**others)) == asked
    assert (found.fp8, found.precision) == (asked.fp8, asked.precision)


def test_arguments_that_a_layout_cannot_have_are_left_out() -> None:
    """And said; the others are written as they were."""
    others = (("--tp-comm-overlap",), ("--no-rope-fusion",), ("--defer-embedding-wgrad-compute",))
    plan = with_training(make_plan(), other_arguments=others)
    alone = replace(plan, config=make_config(tp=2, pp=1, dp=8, sequence_parallel=False))
    assert [one for one in megatron_options(alone) if one in others] == [("--no-rope-fusion",)]
    (said,) = [line for line in argument_arrays(alone).splitlines() if "refused here" in line]
    assert "--tp-comm-overlap, --defer-embedding-wgrad-compute" in said


@pytest.mark.parametrize("stage", [2, 3])
def test_shared_gradients_and_parameters_read_back(stage: int) -> None:
    """ZeRO 2 and 3 are Megatron-FSDP's strategies, which send beside compute."""
    sharded = make_config(tp=2, dp=8, use_distributed_optimizer=True, zero_stage=stage)
    plan = replace(make_plan(), config=sharded)
    words = megatron_arguments(plan)
    assert "--use-megatron-fsdp" in words
    found = parse_megatron_args(" ".join([*words, "--vocab-size 50000"])).parallel_config(8, 16)
    assert found == sharded


@pytest.mark.parametrize("stage", [2, 3])
def test_shared_by_torch_stays_so(stage: int) -> None:
    """A launch with PyTorch's fully sharded data parallelism keeps it where the plan may have it."""
    others = (("--use-torch-fsdp2",), *([("--torch-fsdp2-no-reshard-after-forward",)] if stage == 2 else []))
    sharded = make_config(tp=2, dp=8, use_distributed_optimizer=True, zero_stage=stage)
    plan = replace(with_training(make_plan(), other_arguments=others), config=sharded)
    words = megatron_arguments(plan)
    assert set(words).isdisjoint({"--use-megatron-fsdp", "--use-distributed-optimizer", "--overlap-grad-reduce"})
    assert parse_megatron_args(" ".join([*words, "--vocab-size 50000"])).parallel_config(8, 16) == sharded
    plain = megatron_arguments(replace(plan, config=make_config(tp=2, dp=8, use_distributed_optimizer=True)))
    assert "--use-torch-fsdp2" not in plain
    assert "--use-distributed-optimizer" in plain


@pytest.mark.parametrize("outer", ["no_shard", "optim"])
def test_groups_of_replicas_read_back(outer: str) -> None:
    """Hybrid sharding of Megatron-FSDP, which has one format of checkpoints."""
    groups = {"num_distributed_optimizer_instances": 4, "outer_dp_sharding_strategy": outer}
    sharded = make_config(tp=2, dp=8, use_distributed_optimizer=True, zero_stage=3, **groups)
    words = megatron_arguments(replace(make_plan(), config=sharded))
    assert words[words.index("--ckpt-format") + 1] == "fsdp_dtensor"
    found = parse_megatron_args(" ".join([*words, "--vocab-size 50000"])).parallel_config(8, 16)
    assert found == sharded


def test_instances_of_the_distributed_optimizer_read_back() -> None:
    """Without Megatron-FSDP they are an option of their own."""
    chosen = make_config(tp=2, dp=8, use_distributed_optimizer=True, num_distributed_optimizer_instances=4)
    words = megatron_arguments(replace(make_plan(), config=chosen))
    assert "--use-megatron-fsdp" not in words
    assert parse_megatron_args(" ".join([*words, "--vocab-size 50000"])).parallel_config(8, 16) == chosen


def test_weights_in_fp8_want_the_distributed_optimizer() -> None:
    """Of one replica, too; and MXFP8's gather has the buffer of gradients, but not with Megatron-FSDP."""
    narrow = {"fp8": True, "fp8_recipe": "mxfp8", "fp8_param_gather": True}
    alone = replace(with_training(make_plan(), **narrow), config=make_config(tp=4, pp=4, dp=1))
    assert megatron_arguments(alone).count("--use-distributed-optimizer") == 1
    assert "--reuse-grad-buf-for-mxfp8-param-ag" in megatron_arguments(alone)
    sharded = replace(alone, config=make_config(tp=2, dp=8, use_distributed_optimizer=True, zero_stage=3))
    assert megatron_arguments(sharded).count("--use-distributed-optimizer") == 1
    assert "--reuse-grad-buf-for-mxfp8-param-ag" not in megatron_arguments(sharded)


def test_modules_read_back_are_the_plans() -> None:
    """Those of selective recomputation, if they are not the attention core alone."""
    for modules in (("core_attn",), ("moe_act", "layernorm")):
        again = {"recompute_granularity": "selective", "recompute_modules": modules}
        plan = replace(make_plan(), config=replace(small_config(), **again))
        found = parse_megatron_args(" ".join([*megatron_arguments(plan), "--vocab-size 50000"]))
        assert found.recompute_modules == modules
        assert ("--recompute-modules" in megatron_arguments(plan)) == (modules != ("core_attn",))


def test_a_layout_read_back_is_the_plans() -> None:
    """Stages that only a layout can say."""
    uneven = make_config(tp=2, pp=4, dp=2, layers_per_stage=(1, 2, 3, 2))
    plan = replace(make_plan(), config=uneven)
    (word,) = [option[1] for option in megatron_options(plan) if option[0] == "--pipeline-model-parallel-layout"]
    degrees = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"
    found = parse_megatron_args(f"{degrees} --pipeline-model-parallel-layout {word}")
    assert found.parallel_config(8, 16).layers_per_stage == (1, 2, 3, 2)


def test_unequal_chunks_read_back_are_the_plans() -> None:
    """The whole list of arguments, as it is exported."""
    layout = {"layers_per_stage": (5, 3), "pipeline_model_parallel_layout": "Et*3|t|t*2|t*2L"}
    plan = plan_of(small_instance(), small_config(virtual_pipeline_model_parallel_size=2, **layout))
    found = parse_megatron_args(" ".join([*megatron_arguments(plan), "--vocab-size 50000"]))
    assert found.parallel_config(8, plan.config.world_size) == plan.config


def test_trial_vocabulary_is_padded_like_the_plans() -> None:
    """NullTokenizer adds one token to what it is told."""
    plan = make_plan()
    (told,) = [option[1] for option in trial_options(plan) if option[0] == "--vocab-size"]
    assert int(told) + 1 == TINY.vocab_size


@pytest.mark.parametrize(
    ("changes", "present", "absent"),
    [
        (
            {"precision": "bf16"},
            {"--bf16", "--accumulate-allreduce-grads-in-fp32"},
            {"--fp16", "--grad-reduce-in-bf16"},
        ),
        (
            {"precision": "bf16", "accumulate_allreduce_grads_in_fp32": False},
            {"--bf16", "--grad-reduce-in-bf16"},
            {"--accumulate-allreduce-grads-in-fp32"},
        ),
        (
            {"precision": "fp16", "accumulate_allreduce_grads_in_fp32": False},
            {"--fp16"},
            {"--bf16", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"},
        ),
        ({"precision": "fp32"}, set(), {"--fp16", "--bf16", "--accumulate-allreduce-grads-in-fp32"}),
    ],
)
def test_number_formats(changes: dict[str, object], present: set[str], absent: set[str]) -> None:
    """Megatron's bf16 keeps gradients in fp32 unless told not to; fp16 keeps them in fp16 unless told."""
    found = set(values(with_training(make_plan(), **changes)))
    assert present <= found
    assert not absent & found


def test_rotary_positions_cover_the_sequence() -> None:
    """Megatron refuses fewer positions than tokens, also where they shape nothing."""
    given = make_job(make_cluster(4, gpus=4), LLAMA_8B, seq_length=16384)
    plan = plan_of(given, make_config(tp=4, pp=1, dp=4, num_layers=32), (0, 1, 2, 3))
    assert values(plan)["--max-position-embeddings"] == "16384"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: replace(plan, p2p="async"), "waits for pipeline sends"),
        (lambda plan: replace(plan, inputs={}), "inputs.model"),
        (lambda plan: replace(plan, inputs={"model": asdict(TINY)}), "inputs.training"),
        (lambda plan: replace(plan, inputs={**plan.inputs, "model": {"name": "x"}}), "inputs.model"),
        (lambda plan: with_training(plan, seq_length=0), "inputs.training"),
        (
            lambda plan: replace(plan, inputs={**plan.inputs, "model": {**asdict(TINY), "add_qkv_bias": False}}),
            "biases",
        ),
        (
            lambda plan: with_training(plan, flash_version=1),
            "flash_version: is 1, but Megatron-LM has no option",
        ),
    ],
)
def test_what_megatron_cannot_say_is_refused(change: object, said: str) -> None:
    """No option is left out in silence."""
    with pytest.raises(InputError, match=said):
        megatron_arguments(change(make_plan()))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("layers", "chunks", "layout"),
    [
        ((2, 1, 3, 2), None, "Et*2|t|t*3|t*2L"),
        ((2, 4, 2, 8), 2, "Et|t*2|t|t*4|t|t*2|t|t*4L"),
        ((1, 0, 2, 1), None, "Et||t*2|tL"),
    ],
)
def test_other_uneven_stages_are_a_layout(layers: tuple[int, ...], chunks: int | None, layout: str) -> None:
    """What the first- and last-stage options cannot say is written chunk by chunk, which also says how many."""
    plan = make_plan()
    chosen = replace(
        plan.config,
        pipeline_model_parallel_size=4,
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=chunks,
    )
    found = values(replace(plan, config=chosen))
    assert found["--pipeline-model-parallel-layout"] == layout
    assert not {name for name in found if "decoder-" in name or "virtual" in name}


@pytest.mark.parametrize(
    ("layers", "flags"),
    [
        ((7, 8, 8, 8), {"--account-for-embedding-in-pipeline-split"}),
        ((8, 8, 8, 7), {"--account-for-loss-in-pipeline-split"}),
        ((7, 8, 8, 7), {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"}),
        ((6, 8, 8, 6), {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"}),
        ((8, 8, 8, 8), set()),
    ],
)
def test_ends_of_interleaved_stages(layers: tuple[int, ...], flags: set[str]) -> None:
    """Embedding and head in the place of a layer are flags, stages of other sizes numbers, and never both."""
    plan = make_plan()
    chosen = replace(
        plan.config,
        pipeline_model_parallel_size=4,
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=2,
    )
    found = values(replace(plan, config=chosen))
    assert {name for name in found if "account-" in name or "decoder-" in name} == flags
    assert all(found[name] == "" for name in flags if "account-" in name)
    assert found["--num-virtual-stages-per-pipeline-rank"] == "2"


def test_fp8_is_said() -> None:
    """Transformer Engine's products in fp8 with its own implementation; read back it is fp8; without it nothing."""
    plan = with_training(make_plan(), fp8=True)
    assert values(plan)["--fp8-format"] == "hybrid"
    assert values(plan)["--transformer-impl"] == "transformer_engine"
    assert parse_megatron_args(" ".join([*megatron_arguments(plan), "--vocab-size 50000"])).fp8
    assert "--fp8-format" not in values(make_plan())
    assert not parse_megatron_args(" ".join([*megatron_arguments(make_plan()), "--vocab-size 50000"])).fp8


def test_async_sends_without_a_pipeline_are_nothing() -> None:
    """With one stage there is nothing to send."""
    given = replace(small_instance(), p2p="async")
    plan = plan_of(
        given, replace(small_config(), pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(8,))
    )
    assert "--bf16" in values(plan)


def test_recorded_training_is_what_counts() -> None:
    """Kernel and length come from the inputs."""
    plan = with_training(
        make_plan(), **asdict(TrainingSpec(global_batch_size=64, seq_length=2048, attention_kernel="unfused"))
    )
    assert values(plan)["--seq-length"] == "2048"
    assert values(plan)["--attention-backend"] == "unfused"


def test_levels_of_context_parallelism_come_back() -> None:
    """A launch with two levels is read, and the export writes the levels that the plan has."""
    levels = "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2"
    args = parse_megatron_args(f"--tensor-model-parallel-size 1 --micro-batch-size 1 --bf16 {levels}", "launch")
    config = args.parallel_config(LLAMA_8B.num_layers, 8)
    assert (config.context_parallel_size, config.context_a2a_size) == (4, 2)
    assert args.not_modelled == ()
    job = make_job(make_cluster(2, gpus=4), LLAMA_8B)
    job = replace(job, training=args.training(job.training))
    written = values(plan_of(job, config, (0, 1)))
    assert written["--cp-comm-type"] == "a2a+p2p"
    assert written["--hierarchical-context-parallel-sizes"] == "2 2"
    ring = replace(config, context_a2a_size=1)
    assert values(plan_of(job, ring, (0, 1)))["--hierarchical-context-parallel-sizes"] == "1 4"
    alone = replace(ring, context_parallel_size=1, data_parallel_size=8)
    assert "--hierarchical-context-parallel-sizes" not in values(plan_of(job, alone, (0, 1)))
