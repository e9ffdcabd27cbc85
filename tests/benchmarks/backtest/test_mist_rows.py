"""Rows of Mist's repository: stages of operators from notes, and their times by hand."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmark_modules import loaded
from factories import make_run

from pipette_opt.costs.compute import head_times_s
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.run_models import run_model
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import DEFAULT_STACK


@pytest.fixture(scope="module")
def plans() -> ModuleType:
    """Parsing."""
    return loaded("mist_plans")


@pytest.fixture(scope="module")
def times() -> ModuleType:
    """Times."""
    return loaded("mist_times")


def aceso(**changes: object) -> MeasuredRun:
    """Four layers in two stages: 23 operators on one GPU, 32 on two; 10 of 55 recomputed."""
    fields: dict[str, Any] = {
        "source": "Mist-ref-aceso",
        "gpu": read_gpu_entry("l4"),
        "gpu_name": "L4-24GB",
        "num_layers": 4,
        "num_gpus": 3,
        "tp": None,
        "pp": 2,
        "dp": 1,
        "mbs": 1,
        "gbs": 8,
        "zero_stage": 0,
        "recompute_text": "op-level 0.18 of ops",
        "attention_kernel": "unfused",
        "precision": "fp16",
        "notes": "logs; name_1; gpus per stage [1,2]; ops per stage [23,32] (13 ops per layer)",
    }
    return make_run(**(fields | changes))


def recorded(count: str, replicas: str = "1x23") -> Mapping[str, str]:
    """What a rank of the first stage says."""
    return {"stage": "0", "stage_recompute_ops": count, "stage_dp_ops": replicas}


def links(times: ModuleType) -> Any:
    """Gigabytes per second: 10 inside a host, 1 across, 2 with many, 4 around two ranks."""
    return times.Links(inside=10e9, across=1e9, node=2e9, ring={2: 4e9})


def test_operators_of_a_stage(plans: ModuleType) -> None:
    """The look-up, a whole layer, and nine operators of the next, up to its second norm."""
    assert plans.kinds_between(0, 23, 4).tolist() == [2] * 9 + [1] * 4
    # The rest of that layer, two layers, the last norm and the head, which are of no kind.
    assert plans.kinds_between(23, 55, 4).tolist() == [2] * 9 + [3] * 4
    first, second = plans.make_plan(aceso(), {}).stages
    assert (first.has_lookup, first.has_head, second.has_lookup, second.has_head) == (True, False, False, True)
    # Behind the second norm two hidden states cross: its result, and the residual.
    assert first.crossing == (2, 0)
    assert (first.tp, second.tp) == (1, 2)


def test_what_is_not_recorded_is_shared_evenly(plans: ModuleType) -> None:
    """Ten of 55 in all; the first stage has six, so the other has four, or ten are shared by operators."""
    text, operators = "op-level 0.18 of ops", [23, 32]
    assert plans.recomputed_counts(text, operators, {0: recorded("6.0")}) == [6, 4]
    assert plans.recomputed_counts(text, operators, {}) == [4, 6]
    assert plans.recomputed_counts(text, operators, {0: recorded("23")}) == [23, 0]


def test_the_largest_activations_are_recomputed_first(plans: ModuleType) -> None:
    """Dropout of attention with the product behind it, then scores with the softmax, then the MLP's width."""
    run = make_run(hidden=4096, heads=32, seq_len=2048)
    sizes = plans.activation_sizes(run, 1)
    present = np.full(13, 8)

    def kinds(count: int) -> list[int]:
        return [int(value) for value in plans.recomputed_kinds(present, count, sizes)]

    assert kinds(0) == [0] * 13
    assert kinds(16) == [0, 0, 0, 0, 8, 8] + [0] * 7
    assert kinds(20) == [0, 0, 2, 2, 8, 8] + [0] * 7
    assert kinds(48) == [0, 0, 8, 8, 8, 8, 0, 0, 0, 8, 8, 0, 0]
    assert kinds(104) == [8] * 13
    assert kinds(1000) == [8] * 13
    assert all(sum(kinds(count)) == count for count in range(105))


def test_tensor_ranks_split_some_activations(plans: ModuleType) -> None:
    """With eight of them a dropout's input, which all hold, outweighs queries, keys and values."""
    run = make_run(hidden=4096, heads=32, seq_len=2048)
    present = np.full(13, 1)
    of_one, of_eight = (plans.recomputed_kinds(present, 7, plans.activation_sizes(run, tp)) for tp in (1, 8))
    assert of_one[1] == 1
    assert of_eight[1] == 0
    assert of_eight[7] == 1


def test_replicas_of_a_stage_and_samples_of_all(plans: ModuleType) -> None:
    """Where stages differ in replicas the notes tell the micro-batch, of which each replica has its part."""
    note = aceso().notes + "; Aceso micro_batch_size 2 is counted across the dp group"
    plan = plans.make_plan(aceso(mbs=None, dp=None, notes=note, num_gpus=3), {1: recorded("0", "2x32")})
    assert [(stage.tp, stage.dp) for stage in plan.stages] == [(1, 1), (1, 2)]
    assert (plan.samples, plan.num_microbatches) == (2, 4)
    with pytest.raises(ValueError, match="do not tell the micro-batch"):
        plans.make_plan(aceso(mbs=None), {})


def test_rows_of_ranks_belong_to_their_log(plans: ModuleType) -> None:
    """By folder and name, the first parts of the notes."""
    rows = [
        replace(aceso(), notes=f"logs; {name}", extra=recorded(count)) for name, count in (("name_1", "6"), ("x", "9"))
    ]
    (plan,) = plans.make_plans([aceso()], rows)
    assert int(plan.stages[0].twice.sum()) == 6


def test_whole_layers(plans: ModuleType) -> None:
    """Mist recomputes whole layers, Megatron all of them; cuts are behind layers."""
    mist = aceso(
        source="Mist-tuned-L4",
        recompute_text="full on [1,0] of layers-per-stage [3,1]",
        tp=1,
        dp=2,
        num_gpus=4,
        zero_stage=1,
        notes="any",
    )
    plan = plans.make_plan(mist, {})
    assert [stage.kinds[0] for stage in plan.stages] == [3, 1]
    assert [stage.twice[0] for stage in plan.stages] == [1, 0]
    assert plan.stages[0].crossing == (1, 0)
    assert plan.shards_states
    assert plan.samples == 2
    megatron = replace(mist, source="Mist-ref-megatron", recompute="full", recompute_text="full", zero_stage=0)
    assert [stage.twice[0] for stage in plans.make_plan(megatron, {}).stages] == [2, 2]
    with pytest.raises(ValueError, match="'selective' is not known"):
        plans.make_plan(replace(megatron, recompute="selective", recompute_text="selective"), {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"notes": "logs; name"}, "no 'ops per stage"),
        ({"notes": aceso().notes.replace("23", "24")}, "56 operators"),
        ({"num_gpus": 4}, "do not make the model"),
        ({"recompute_text": "some"}, "'some' is not 'op-level"),
    ],
)
def test_notes_that_do_not_fit_say_so(plans: ModuleType, changes: dict[str, object], reason: str) -> None:
    """No stage is made up."""
    with pytest.raises(ValueError, match=reason):
        plans.make_plan(aceso(**changes), {})


def test_operators_make_the_layer(plans: ModuleType, times: ModuleType) -> None:
    """Their times sum to the clock's layer; a recomputed operator costs its forward once more."""
    plan = plans.make_plan(aceso(recompute_text="op-level 0 of ops"), {})
    stage = plan.stages[0]
    clock = times._Clock.of(plan, stage, DEFAULT_STACK, links(times))
    each = clock.operators_s()
    layer = times.layer_times_s(clock.instance, clock.config, clock.gpu, DEFAULT_STACK)
    assert each.sum(axis=1) == pytest.approx(layer)
    assert (each > 0).all()
    twice = np.zeros(13, dtype=np.int64)
    twice[3] = 2
    more = clock.passes_s(replace(stage, twice=twice)) - clock.passes_s(stage)
    assert more == pytest.approx([0.0, 2 * each[0, 3]])


def test_the_last_stage_has_the_head(plans: ModuleType, times: ModuleType) -> None:
    """A whole model on one GPU: four layers, the look-up, the last norm and the head."""
    run = aceso(pp=1, num_gpus=1, notes="logs; name; gpus per stage [1]; ops per stage [55] (13 ops per layer)")
    plan = plans.make_plan(replace(run, recompute_text="op-level 0 of ops"), {})
    clock = times._Clock.of(plan, plan.stages[0], DEFAULT_STACK, links(times))
    each = clock.operators_s()
    head = head_times_s(clock.instance.model, clock.instance.training, clock.config, clock.gpu, DEFAULT_STACK)
    expected = [4 * each[i].sum() + each[i, -1] + each[i, 0] + head[i] for i in (0, 1)]
    assert clock.passes_s(plan.stages[0]) == pytest.approx(expected)
    (total,) = times.predict_s([plan], DEFAULT_STACK, {"l4": links(times)})
    step = times.plan_times(plan, DEFAULT_STACK, links(times)).optimizer_s
    assert total == pytest.approx(8 * sum(expected) + step)


def test_all_reduces_of_tensor_ranks(plans: ModuleType, times: ModuleType) -> None:
    """The second stage: a cut layer's MLP and two layers, so five forward; five and the head's backward."""
    plan = plans.make_plan(aceso(recompute_text="op-level 0 of ops"), {})
    stage = plan.stages[1]
    clock = times._Clock.of(plan, stage, DEFAULT_STACK, links(times))
    # Two rounds of a ring of two, each with half of a hidden state.
    each = 2 * (2048 * 2048 * 2 / 2) / 4e9
    assert stage.kinds[[1, 6, 9, 11]].tolist() == [2, 2, 3, 3]
    assert clock.tensor_s(stage) == pytest.approx([5 * each, 6 * each])
    assert clock.tensor_s(replace(stage, twice=np.eye(13, dtype=np.int64)[6])) == pytest.approx([5 * each, 7 * each])


def test_messages(plans: ModuleType, times: ModuleType) -> None:
    """
    Two hidden states behind the second norm, to two tensor ranks.

    Inside a host two messages of half as much and a gather of the other half; between hosts both share the link.
    """
    plan = plans.make_plan(aceso(), {})
    state = 2048 * 2048 * 2
    latency = DEFAULT_STACK.assumed_latency_s
    inside = times._sends_s(plan, DEFAULT_STACK, links(times))
    assert inside[0] == pytest.approx([state / 10e9 + state / 4e9 + latency, state / 10e9 + latency])
    assert (inside[1] == 0).all()
    apart = times._sends_s(replace(plan, run=replace(plan.run, gpus_per_node=1)), DEFAULT_STACK, links(times))
    assert apart[0, 1] == pytest.approx(2 * state / 2e9 + latency)


def test_states(plans: ModuleType, times: ModuleType) -> None:
    """Two replicas: half of what is sent twice; sharded, Adam has half of the parameters."""
    run = aceso(
        source="Mist-tuned-L4",
        recompute_text="full on [0,0] of layers-per-stage [3,1]",
        tp=1,
        dp=2,
        num_gpus=4,
        notes="any",
    )
    plan = plans.make_plan(run, {})
    clock = times._Clock.of(plan, plan.stages[0], DEFAULT_STACK, links(times))
    h, vocabulary = 2048, run_model(run).padded_vocab_size(1)
    parameters = 3 * 12 * h * h + vocabulary * h
    assert clock.parameters(plan.stages[0]) == parameters
    reduction, step = clock.states_s(plan.stages[0], False)
    assert reduction == pytest.approx(0.5 * parameters * 4 / 4e9)
    sharded, owned = clock.states_s(plan.stages[0], True)
    assert sharded == pytest.approx(reduction)
    assert owned == pytest.approx(step / 2)


def test_links_are_medians_of_one_cluster(times: ModuleType, tmp_path: Path) -> None:
    """Small messages, other clusters and impossible sizes do not count; two groups at once show what a host sends."""
    messages, collectives, groups = (tmp_path / name for name in ("p2p.csv", "ring.csv", "groups.csv"))
    messages.write_text(
        "source,gpu,link,repeat,message_MB,p2p_GBps\n"
        "Mist-Aceso-profiler,l4,intra_node,0,1,1\n"
        "Mist-Aceso-profiler,l4,intra_node,0,64,9\n"
        "Mist-Aceso-profiler,l4,inter_node,0,64,2\n"
        "Mist-Aceso-profiler,a10g,intra_node,0,64,5\n"
        "Sailor-Aceso-profiler,l4,intra_node,0,64,5\n"
    )
    collectives.write_text(
        "source,gpu,op,gpus_in_node,data_MB,time_ms_median,n\n"
        "x,l4,all_reduce,2,20,5,1\nx,l4,all_gather,2,20,1,1\nx,l4,all_reduce,2,10000000,1000000000,1\n"
    )
    groups.write_text(
        "gpu,nodes,gpus_per_node,intra_group,inter_group,MB,latency_ms,g2g_GBps,file\n"
        "l4,2,8,4,2,64,1,1.5,f\nl4,2,8,8,2,64,1,2,f\nl4,4,8,4,4,64,1,9,f\n"
    )
    found = times.read_links(messages, collectives, groups, "l4")
    assert (found.inside, found.across, found.node) == (9e9, 2e9, 3e9)
    assert found.ring == pytest.approx({2: 20 * 2**20 / 5e-3})
