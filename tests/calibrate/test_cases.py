"""Measured runs as instances."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_run
from tables import table

from pipette_opt.calibrate.cases import (
    Case,
    Skipped,
    make_case,
    make_cases,
    why_untimed,
    with_stack,
)
from pipette_opt.parallel import microbatches_of
from pipette_opt.parallel.recompute import RECOMPUTE_MODULES
from pipette_opt.read.model import read_model
from pipette_opt.read.run_models import SHAPE
from pipette_opt.read.run_stages import balanced_layers
from pipette_opt.read.runs import MeasuredRun, read_runs
from pipette_opt.specs import DEFAULT_STACK, ModelSpec

HEADER = "gpu,gpus_per_node,num_gpus,num_layers,hidden,ffn_hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,iter_time_s"
ROW = "a100-80gb,8,8,24,2048,8192,16,51200,2048,32,1,4,2,1,2.5"


def case(run: MeasuredRun) -> Case:
    """A run that can be predicted."""
    made = make_case(run, DEFAULT_STACK)
    assert isinstance(made, Case)
    return made


@pytest.mark.parametrize(("title", "cells", "expected"), table(__file__, "COLUMNS"))
def test_columns_become_a_job(title: str, cells: dict[str, str], expected: dict[str, object]) -> None:
    """Fields of model, training and configuration that follow from cells, and from defaults of the framework."""
    made = case(make_run(**cells))
    parts = (made.config, made.instance.training, made.instance.model)
    found = {name: next(getattr(part, name) for part in parts if hasattr(part, name)) for name in expected}
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    assert lists == expected, title


@pytest.mark.parametrize(("cells", "reason"), table(__file__, "SKIPPED"))
def test_what_cannot_be_predicted_says_why(cells: dict[str, str], reason: str) -> None:
    """No row is left out silently."""
    made = make_case(make_run(**cells), DEFAULT_STACK)
    assert isinstance(made, Skipped)
    assert made.reason == reason


def test_degrees_and_hosts() -> None:
    """Two hosts of eight, ranks in order, sequence parallelism only with tensor parallelism."""
    made = case(make_run(seq_parallel=True, zero_stage=1))
    assert made.instance.cluster.num_nodes == 2
    assert made.placement.node.tolist() == [0] * 8 + [1] * 8
    assert made.config.sequence_parallel
    assert made.config.use_distributed_optimizer
    assert made.config.layers_per_stage == (12, 12)
    alone = case(make_run(num_gpus=4, tp=1, pp=1, dp=4, seq_parallel=True))
    assert alone.instance.cluster.num_nodes == 1
    assert not alone.config.sequence_parallel


def test_the_assumed_links_are_the_usual_host_s() -> None:
    """A host with eight A100 has eight cards of 200 Gbit/s; the stack says what share of them runs attain."""
    for gpus_per_node in (8, 4):
        made = case(make_run(gpus_per_node=gpus_per_node))
        rate = made.instance.cluster.pair_bytes_per_s(gpus_per_node)[0, 1]
        assert rate == pytest.approx(DEFAULT_STACK.assumed_links * gpus_per_node * 25e9)


def test_a_gpu_without_a_usual_network() -> None:
    """On one host it needs none; on two the reason is said, unless the row tells the rate."""
    gpu = {"gpu": "RTX 4090"}
    assert case(make_run(**gpu, num_gpus=8, dp=2)).instance.cluster.num_nodes == 1
    skipped = make_case(make_run(**gpu), DEFAULT_STACK)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "no usual network is known for RTX 4090; give node_bandwidth_gb_per_s"
    told = case(make_run(**gpu, node_bandwidth_gb_per_s="3"))
    assert told.instance.cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(3e9)


def test_another_stack_brings_its_links() -> None:
    """As if the runs had been read with it."""
    other = DEFAULT_STACK.with_constants({"assumed_links": 0.1, "assumed_latency_s": 1e-4})
    (changed,) = with_stack([case(make_run())], other)
    assert changed.instance.stack == other
    assert changed.instance.cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(20e9)
    assert changed.instance.cluster.inter_node_latency_s == 1e-4
    assert microbatches_of(changed.instance.training, changed.config) == 8


@pytest.mark.parametrize("word", ["none", "selective", "full", "full block3", "full uniform2", "mlp", "mlp+core_attn"])
def test_recomputation_is_read_as_labels_print_it(word: str, tmp_path: Path) -> None:
    """The word in a table of runs gives a configuration whose label has it."""
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEADER},recompute\n{ROW},{word}\n")
    (run,) = read_runs(path)
    label = case(run).config.label()
    told = "+".join(sorted(word.split("+"), key=RECOMPUTE_MODULES.index)) if "+" in word else word
    assert (f" {told} " in f" {label} ") is (word != "none")


def test_a_schedule_that_nobody_times_still_has_a_memory() -> None:
    """Seven micro-batches interleaved over two stages: the reason is said, the case is there."""
    odd = case(make_run(vpp=2, gbs=56))
    assert "got 2 stages and 7 micro-batches" in why_untimed(odd)
    assert why_untimed(case(make_run(vpp=2))) == ""


def model_of(**cells: object) -> ModelSpec:
    """The model of a row with these cells."""
    model = make_run(**cells).launch.model
    assert model is not None
    return model


def test_a_named_norm_kernel_makes_the_others_unfused() -> None:
    """Only in the source that names it."""
    runs = [
        make_run(attention_kernel="flash_attention2 + RMS kernel"),
        make_run(attention_kernel="flash_attention2"),
        make_run(attention_kernel="flash_attention2", source="another"),
    ]
    fused = [made.instance.training.fused_norm for made in make_cases(runs, DEFAULT_STACK) if isinstance(made, Case)]
    assert fused == [True, False, True]


def test_balanced_layers_make_room_for_the_head() -> None:
    """The head of a large vocabulary costs as much as several layers; every layer is somewhere."""
    layers = balanced_layers(model_of(num_layers=16, vocab=131072), 1, 4)
    assert sum(layers) == 16
    assert layers[-1] < layers[0]


@pytest.mark.parametrize(("reported", "first"), [(None, 5), (604e6, 5), (671e6, 6)])
def test_a_share_that_is_met_exactly_is_settled_by_parameters(reported: float | None, first: int) -> None:
    """16 layers of 2^26 and a head of 2^28 are 20 * 2^26: 5 layers are a quarter of it; the table is 2^28 more."""
    model = model_of(num_layers=16, heads=32, kv_heads=32, vocab=131072)
    layers = balanced_layers(model, 1, 4, reported)
    assert (layers[0], sum(layers)) == (first, 16)


def test_a_named_model_is_predicted_as_it_is() -> None:
    """Its architecture is the instance's, and truths that were numbers count."""
    model = read_model("llama-3-8b")
    made = case(make_run(model="llama-3-8b", **dict.fromkeys((*SHAPE, "vocab")), overlap_grad_reduce="1.0"))
    assert made.instance.model == model
    assert made.config.overlap_grad_reduce


@pytest.mark.parametrize(
    ("extra", "source", "expected"),
    [
        ({"tuned": "true", "framework": "NeMo"}, "own", "recipes"),
        ({"framework": "NeMo"}, "own", "megatron"),
        ({}, "torchtitan-benchmarks", "fsdp"),
        ({}, "own", "fsdp"),
    ],
)
def test_families_of_runs(extra: dict[str, str], source: str, expected: str) -> None:
    """That of the named software, tuned or not; a run that names none counts with the stack."""
    (case,) = make_cases([make_run(source=source, **extra)], replace(DEFAULT_STACK, family="fsdp"))
    assert isinstance(case, Case)
    assert case.instance.stack.family == expected
    (moved,) = with_stack([case], DEFAULT_STACK)
    assert moved.instance.stack.family == expected
