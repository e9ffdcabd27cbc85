"""Measured runs as instances."""

from pathlib import Path

import pytest
from factories import make_run

from pipette_opt.calibrate.cases import (
    Case,
    Skipped,
    balanced_layers,
    make_case,
    make_cases,
    run_training,
    stage_layers,
    why_untimed,
    with_stack,
)
from pipette_opt.parallel import microbatches_of
from pipette_opt.parallel.recompute import RECOMPUTE_MODULES
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.model import read_model
from pipette_opt.read.run_models import run_model
from pipette_opt.read.runs import MeasuredRun, find_run_gpu, read_runs
from pipette_opt.specs import DEFAULT_STACK

HEADER = "gpu,gpus_per_node,num_gpus,num_layers,hidden,ffn_hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,iter_time_s"
ROW = "a100-80gb,8,8,24,2048,8192,16,51200,2048,32,1,4,2,1,2.5"


def case(run: MeasuredRun) -> Case:
    """A run that can be predicted."""
    made = make_case(run, DEFAULT_STACK)
    assert isinstance(made, Case)
    return made


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
    gpu = {"gpu": read_gpu_entry("rtx-4090"), "gpu_name": "RTX 4090"}
    assert case(make_run(**gpu, num_gpus=8, dp=2)).instance.cluster.num_nodes == 1
    skipped = make_case(make_run(**gpu), DEFAULT_STACK)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "no usual network is known for RTX 4090; give node_bandwidth_gb_per_s"
    told = case(make_run(**gpu, extra={"node_bandwidth_gb_per_s": "3"}))
    assert told.instance.cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(3e9)


def test_another_stack_brings_its_links() -> None:
    """As if the runs had been read with it."""
    other = DEFAULT_STACK.with_constants({"assumed_links": 0.1, "assumed_latency_s": 1e-4})
    (changed,) = with_stack([case(make_run())], other)
    assert changed.instance.stack == other
    assert changed.instance.cluster.pair_bytes_per_s(8)[0, 1] == pytest.approx(20e9)
    assert changed.instance.cluster.inter_node_latency_s == 1e-4
    assert microbatches_of(changed.instance.training, changed.config) == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden": None}, "hidden not given"),
        ({"mbs": None}, "mbs not given as a whole number"),
        ({"gpu": None, "gpu_name": "TPU"}, "no GPU 'TPU'"),
        ({"recompute": "op-level", "recompute_text": "op-level 0.7"}, "op-level 0.7"),
        ({"precision": "fp8"}, "'fp8' is not supported by GPU a100-80gb"),
        ({"precision": "int4"}, "'int4' is not one of bf16"),
        ({"gbs": 63}, "global_batch_size=63"),
        ({"layers_per_stage": (12, 11)}, "sum 24"),
    ],
)
def test_what_cannot_be_predicted_says_why(changes: dict[str, object], reason: str) -> None:
    """No row is left out silently."""
    made = make_case(make_run(**changes), DEFAULT_STACK)
    assert isinstance(made, Skipped)
    assert reason in made.reason


@pytest.mark.parametrize("word", ["none", "selective", "full", "full block3", "full uniform2", "mlp", "mlp+core_attn"])
def test_recomputation_is_read_as_labels_print_it(word: str, tmp_path: Path) -> None:
    """The word in a table of runs gives a configuration whose label has it."""
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEADER},recompute\n{ROW},{word}\n")
    (run,) = read_runs(table)
    label = case(run).config.label()
    told = "+".join(sorted(word.split("+"), key=RECOMPUTE_MODULES.index)) if "+" in word else word
    assert (f" {told} " in f" {label} ") is (word != "none")


@pytest.mark.parametrize("word", ["block", "full block0", "moe_act+speed", "uniform"])
def test_other_words_of_recomputation(word: str, tmp_path: Path) -> None:
    """``uniform`` alone is all layers, one at a time; ``block`` says no number."""
    table = tmp_path / "runs.csv"
    table.write_text(f"{HEADER},recompute\n{ROW},{word}\n")
    made = make_case(read_runs(table)[0], DEFAULT_STACK)
    if word == "uniform":
        assert isinstance(made, Case)
        assert made.config.recompute_granularity == "full"
        return
    assert isinstance(made, Skipped)
    assert "is not one of none, selective, full, full block3, full uniform2 or modules such as" in made.reason


def test_a_schedule_that_nobody_times_still_has_a_memory() -> None:
    """Seven micro-batches interleaved over two stages: the reason is said, the case is there."""
    odd = case(make_run(vpp=2, gbs=56))
    assert "got 2 stages and 7 micro-batches" in why_untimed(odd)
    assert why_untimed(case(make_run(vpp=2))) == ""


@pytest.mark.parametrize(
    ("word", "recipe"),
    [("fp8", "delayed"), ("fp8-hybrid", "delayed"), ("fp8-cs", "tensorwise"), ("fp8-mx", "mxfp8"), ("mxfp8", "mxfp8")],
)
def test_words_of_fp8(word: str, recipe: str) -> None:
    """Products in fp8, the rest in bf16 with gradients in fp32."""
    training = case(make_run(precision=word, gpu=find_run_gpu("B200"))).instance.training
    assert (training.fp8, training.fp8_recipe) == (True, recipe)
    assert (training.precision, training.gradient_bytes) == ("bf16", 4)


def test_nvfp4_is_a_precision() -> None:
    """On GPUs that have it."""
    training = case(make_run(precision="nvfp4", gpu=find_run_gpu("B200"))).instance.training
    assert (training.fp4, training.fp8, training.precision) == (True, False, "bf16")
    refused = make_case(make_run(precision="nvfp4", gpu=find_run_gpu("H100")), DEFAULT_STACK)
    assert isinstance(refused, Skipped)
    assert refused.reason == "precision 'nvfp4' is not supported by GPU h100-80gb"


def test_families_are_known_by_name() -> None:
    """A Llama is gated and unties its head, unless the file says otherwise."""
    assert not run_model(make_run()).gated_linear_unit
    llama = run_model(make_run(model="LLAMA-13B"))
    assert llama.gated_linear_unit
    assert llama.untie_embeddings_and_output_weights
    assert not llama.add_bias_linear
    assert not llama.add_qkv_bias
    biased = run_model(make_run(model="LLAMA-13B", extra={"add_bias_linear": "true"}))
    assert biased.add_bias_linear
    assert biased.add_qkv_bias
    qwen = run_model(make_run(model="Qwen-7B", extra={"add_qkv_bias": "true"}))
    assert qwen.add_qkv_bias
    assert not qwen.add_bias_linear
    tied = run_model(make_run(model="LLAMA-13B", extra={"tied_embeddings": "True", "gated_linear_unit": "False"}))
    assert not tied.gated_linear_unit
    assert not tied.untie_embeddings_and_output_weights


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("flash_attention2", ("flash", 2, True)),
        ("flash_attentionv1.0.8", ("flash", 1, True)),
        ("fused", ("unfused", 2, True)),
        ("torch", ("unfused", 2, False)),
        ("", ("unfused", 2, True)),
    ],
)
def test_kernels_by_name(kernel: str, expected: tuple[str, int, bool]) -> None:
    """Attention, its version, and whether the softmax is one kernel."""
    training = run_training(make_run(attention_kernel=kernel))
    found = (training.attention_kernel, training.flash_version if "flash" in kernel else 2, training.fused_softmax)
    assert found == expected


MIXTURE = {"num_experts": "8", "moe_router_topk": "2", "moe_ffn_hidden_size": "1024.0", "ep": "4"}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, ("alltoall", False, False)),
        ({"dispatcher": "DeepEP"}, ("flex", False, False)),
        ({"dispatcher": "hybridep", "cuda_graph": "full_iteration"}, ("flex", False, True)),
        ({"dispatcher": "allgather", "overlap_moe_expert_parallel_comm": "True"}, ("allgather", True, False)),
    ],
)
def test_how_tokens_travel(columns: dict[str, str], expected: tuple[str, bool, bool]) -> None:
    """Dispatchers by Megatron-Core's names, or those of their kernels; graphs by the words of tables."""
    training = case(make_run(extra=MIXTURE | columns)).instance.training
    beside = training.overlap_moe_expert_parallel_comm
    assert (training.moe_token_dispatcher_type, beside, training.cuda_graph) == expected


def test_mixtures_of_experts() -> None:
    """Experts, and their degrees, as further columns say; ``etp`` is the tensor size without them."""
    made = case(make_run(extra=MIXTURE))
    assert (made.instance.model.num_experts, made.instance.model.expert_ffn_size) == (8, 1024)
    assert made.config.expert_model_parallel_size == 4
    assert made.config.expert_tensor_size == made.config.tensor_model_parallel_size
    split = case(make_run(extra=MIXTURE | {"ep": "8", "etp": "1"}))
    assert (split.config.expert_model_parallel_size, split.config.expert_tensor_size) == (8, 1)
    dense = {"ep": "1", "etp": "2", "moe_router_topk": "2", "num_experts": ""}
    assert case(make_run(extra=dense)).instance.model.num_experts is None


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"num_experts": "many"}, "num_experts must be a whole number, got 'many'"),
        ({"dispatcher": "own"}, "dispatcher must be one of alltoall, allgather, flex, deepep, hybridep, got 'own'"),
        ({"hybrid": "M-M*"}, "hybrid: layers other than transformer layers are not supported"),
        ({"ep": "1.5"}, "ep must be a whole number, got '1.5'"),
        ({"ep": "3"}, "num_experts=8 is no multiple of expert_model_parallel_size=3"),
        ({"moe_router_topk": "9"}, "moe_router_topk must be <= num_experts=8, got 9"),
        ({"moe_router_topk": ""}, "num_experts=8 needs moe_router_topk"),
        ({"num_experts": ""}, "ep=4 needs num_experts"),
        ({"num_experts": "0"}, "num_experts must be"),
        ({"num_experts": "-8"}, "num_experts must be a whole number, got '-8'"),
        ({"ep": "0"}, "expert_model_parallel_size must be"),
    ],
)
def test_damaged_experts_say_why(extra: dict[str, str], reason: str) -> None:
    """Each with the column."""
    made = make_case(make_run(extra=MIXTURE | extra), DEFAULT_STACK)
    assert isinstance(made, Skipped)
    assert reason in made.reason


def test_a_named_norm_kernel_makes_the_others_unfused() -> None:
    """Only in the source that names it."""
    runs = [
        make_run(attention_kernel="flash_attention2 + RMS kernel"),
        make_run(attention_kernel="flash_attention2"),
        make_run(attention_kernel="flash_attention2", source="another"),
    ]
    fused = [made.instance.training.fused_norm for made in make_cases(runs, DEFAULT_STACK) if isinstance(made, Case)]
    assert fused == [True, False, True]


def test_amp_s_boundaries() -> None:
    """Pseudo-layers 2 to 25 are the transformer's: [0,9,15,21,30] holds 7, 6, 6 and 5 of them."""
    notes = "homogeneous.txt; stage boundaries [0,9,15,21,30]; cost 1.28"
    made = case(make_run(tp=1, pp=4, dp=4, notes=notes))
    assert made.config.layers_per_stage == (7, 6, 6, 5)


def test_chunks_make_room_for_embedding_and_head() -> None:
    """126 layers in eight chunks of eight stages are 128 with embedding and head; 128 are even, 125 are neither."""
    run = make_run(num_gpus=64, tp=8, pp=8, dp=1, vpp=8)
    assert stage_layers(run, 126, 8) == (15, *(16,) * 6, 15)
    assert stage_layers(run, 128, 8) == (16,) * 8
    assert stage_layers(run, 125, 8) == (*(16,) * 5, *(15,) * 3)
    assert stage_layers(make_run(num_gpus=64, tp=8, pp=8, dp=1), 126, 8) == (*(16,) * 6, 15, 15)


def test_balanced_layers_make_room_for_the_head() -> None:
    """The head of a large vocabulary costs as much as several layers; every layer is somewhere."""
    run = make_run(hidden=2048, ffn_hidden=8192, vocab=131072)
    layers = balanced_layers(run, 16, 4)
    assert sum(layers) == 16
    assert layers[-1] < layers[0]
    assert balanced_layers(make_run(vocab=None), 16, 4) == (4, 4, 4, 4)


@pytest.mark.parametrize(("reported", "first"), [("", 5), ("604000000.0", 5), ("671000000.0", 6)])
def test_a_share_that_is_met_exactly_is_settled_by_parameters(reported: str, first: int) -> None:
    """16 layers of 2^26 and a head of 2^28 are 20 * 2^26: 5 layers are a quarter of it; the table is 2^28 more."""
    run = make_run(
        hidden=2048, ffn_hidden=8192, heads=32, kv_heads=32, vocab=131072, tp=1, extra={"local_params_rank0": reported}
    )
    layers = balanced_layers(run, 16, 4)
    assert (layers[0], sum(layers)) == (first, 16)


def test_parameters_of_tensor_ranks_are_theirs() -> None:
    """Half of 6 layers and of the table."""
    run = make_run(
        hidden=2048, ffn_hidden=8192, heads=32, kv_heads=32, vocab=131072, tp=2, extra={"local_params_rank0": "336e6"}
    )
    assert balanced_layers(run, 16, 4)[0] == 6


def test_the_size_of_a_head() -> None:
    """As the row says, also as other programs write whole numbers."""
    assert case(make_run(extra={"kv_channels": "256.0"})).instance.model.kv_channels == 256
    assert case(make_run(extra={"kv_channels": ""})).instance.model.kv_channels == 128


def test_a_named_model_is_predicted_as_it_is() -> None:
    """Its architecture is the instance's, and truths that were numbers count."""
    model = read_model("llama-3-8b")
    shape = {"num_layers": 32, "hidden": 4096, "heads": 32, "spec": model, "extra": {"overlap_grad_reduce": "1.0"}}
    made = case(make_run(model="llama-3-8b", **shape))
    assert made.instance.model == model
    assert made.config.overlap_grad_reduce


def test_a_name_without_a_shape_is_said() -> None:
    """The reason says that the model is neither a preset nor a config."""
    skipped = make_case(make_run(model="mine", num_layers=None, hidden=None, heads=None), DEFAULT_STACK)
    assert isinstance(skipped, Skipped)
    assert skipped.reason == "num_layers, hidden, heads not given, and model 'mine' is neither a preset nor a config"


def test_internlm_is_gated() -> None:
    """By hand, 32 layers of (4 h^2 + 3 h f + two norms), two tables and a norm: 7,321,423,872 parameters."""
    shape = {"num_layers": 32, "hidden": 4096, "ffn_hidden": 11008, "heads": 32, "kv_heads": 32, "vocab": 103168}
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert case(make_run(model="internlm-7b", **shape)).instance.model.num_parameters == (
        32 * layer + 2 * 103168 * 4096 + 4096
    )


@pytest.mark.parametrize(
    ("said", "experts", "expected"), [(None, True, True), (None, False, False), (False, True, False)]
)
def test_experts_on_tensor_ranks_have_sequence_parallelism(said: bool | None, experts: bool, expected: bool) -> None:
    """Megatron trains them in no other way; where a row says otherwise it is believed."""
    columns = {"num_experts": "8", "moe_router_topk": "2"} if experts else {}
    assert case(make_run(seq_parallel=said, extra=columns)).config.sequence_parallel is expected
