"""Megatron's arguments: parsed back they are the plan; what they cannot say is refused."""

from dataclasses import asdict, replace
from typing import Any

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
from tables import table, tuples

from pipette_opt.base.errors import InputError
from pipette_opt.export.megatron import argument_arrays, megatron_arguments, megatron_options, trial_options
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.specs import TrainingSpec


def values(plan: Plan) -> dict[str, str]:
    """Options and values; flags have an empty one."""
    return {option[0]: " ".join(option[1:]) for option in megatron_options(plan)}


def with_training(plan: Plan, **changes: object) -> Plan:
    """The plan with other recorded training fields."""
    return replace(plan, inputs={**plan.inputs, "training": {**plan.inputs["training"], **changes}})


@pytest.mark.parametrize("row", table(__file__, "LAUNCHES"), ids=lambda row: row["shows"])
def test_arguments_read_back_are_the_plan(row: dict[str, Any]) -> None:
    """Our own reader of Megatron's arguments, written from Megatron's source, finds every decision again."""
    chosen = make_config(**tuples(row["config"]))
    model = replace(LLAMA_8B if row.get("llama") else TINY, num_layers=sum(chosen.layers_per_stage))
    given = make_job(make_cluster(4, gpus=4), model)
    stages_per_host = row.get("stages_per_host", 1)
    plan = plan_of(given, chosen, tuple(range(4)), stages_per_host=stages_per_host)
    words = [*megatron_arguments(plan), *(word for option in trial_options(plan) for word in option)]
    found = parse_megatron_args(" ".join(words))
    assert found.model == replace(given.model, name="megatron", vocab_size=given.model.vocab_size - 1)
    assert found.parallel_config(model.num_layers, chosen.world_size) == chosen
    assert (found.global_batch_size, found.seq_length, found.precision) == (64, 1024, "bf16")
    assert found.rank_order == plan.placement.order
    assert found.training(given.training) == replace(given.training, moe_token_dispatcher_type="alltoall")
    assert found.not_modelled == ()
    assert (stages_per_host == 2) == ("--use-tp-pp-dp-mapping" in words)


@pytest.mark.parametrize("row", table(__file__, "OPTIONS"), ids=lambda row: row["shows"])
def test_options(row: dict[str, Any]) -> None:
    """The small plan with this configuration and training has the options beside it, once, and reads back the same."""
    plan = with_training(make_plan(), **tuples(row.get("training", {})))
    plan = replace(plan, config=replace(plan.config, **tuples(row.get("config", {}))))
    found = values(plan)
    assert len(found) == len(megatron_options(plan))
    assert found | row.get("has", {}) == found
    assert not {name for name in found if name.startswith(tuple(row.get("lacks", ())))}
    again = parse_megatron_args(" ".join([*megatron_arguments(plan), "--vocab-size 50000"]))
    read_back = again.parallel_config(sum(plan.config.layers_per_stage), plan.config.world_size)
    assert read_back == replace(plan.config, **row.get("reads_back", {}))
    if "config" not in row:
        asked = TrainingSpec(**plan.inputs["training"])
        base = {name: getattr(asked, name) for name in ("global_batch_size", "seq_length", "precision", "fp8")}
        assert again.training(TrainingSpec(**base)) == asked
        assert (again.fp8, again.precision or "fp32") == (asked.fp8, asked.precision)


def test_arguments_that_a_layout_cannot_have_are_left_out() -> None:
    """And said; the others are written as they were."""
    others = (("--tp-comm-overlap",), ("--no-rope-fusion",), ("--defer-embedding-wgrad-compute",))
    plan = with_training(make_plan(), other_arguments=others)
    alone = replace(plan, config=make_config(tp=2, pp=1, dp=8, sequence_parallel=False))
    assert [one for one in megatron_options(alone) if one in others] == [("--no-rope-fusion",)]
    (said,) = [line for line in argument_arrays(alone).splitlines() if "refused here" in line]
    assert "--tp-comm-overlap, --defer-embedding-wgrad-compute" in said


def test_trial_vocabulary_is_padded_like_the_plans() -> None:
    """NullTokenizer adds one token to what it is told."""
    plan = make_plan()
    (told,) = [option[1] for option in trial_options(plan) if option[0] == "--vocab-size"]
    assert int(told) + 1 == TINY.vocab_size


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


def test_async_sends_without_a_pipeline_are_nothing() -> None:
    """With one stage there is nothing to send."""
    given = replace(small_instance(), p2p="async")
    plan = plan_of(
        given, replace(small_config(), pipeline_model_parallel_size=1, data_parallel_size=8, layers_per_stage=(8,))
    )
    assert "--bf16" in values(plan)


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
