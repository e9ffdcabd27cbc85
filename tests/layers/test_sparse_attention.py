"""Sparse attention by hand: DeepSeek-V3.2's sizes, 64 heads of 128 in the indexer, the 2,048 best tokens."""

from dataclasses import replace

import pytest
from factories import make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.legality import check_legal
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import tensor_traffic
from pipette_opt.costs.muon import layer_flops, orthogonal_flops
from pipette_opt.costs.sparse import SparseTimes, sparse_times_s
from pipette_opt.layers.branch import OnRank
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.layers.sparse import SparseAttentionBranch
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.read.model import read_model
from pipette_opt.read.model_words import model_options
from pipette_opt.specs import DEFAULT_STACK, SparseAttention, StackSpec, TrainingSpec
from pipette_opt.specs.stack import SparseRates

V3 = read_model("deepseek-v3")
V32 = replace(V3, name="v3.2", sparse_attention=SparseAttention())
SPARSE, DENSE = V32.layers[0], V3.layers[0]
INDEXER = 64 * 128 * 1536 + 128 * 7168 + 64 * 7168
TRAINING = TrainingSpec(global_batch_size=8, seq_length=8192)


def test_parameters() -> None:
    """Every tensor rank holds the indexer whole, with weights and biases of the norm of its key."""
    more = layer_parameters(V32, SPARSE).replicated - layer_parameters(V3, DENSE).replicated
    assert more == INDEXER + 2 * 128
    assert layer_parameters(V32, SPARSE).sharded == layer_parameters(V3, DENSE).sharded
    assert V32.num_parameters - V3.num_parameters == (61 + 1) * more


def test_flops() -> None:
    """Six for each parameter of the indexer; scores only of chosen tokens, fewer for the first ones."""
    seen = 2048 * (1 - 2048 / (2 * 8192))
    assert V32.mixer(SPARSE).tokens_seen(8192) == seen
    assert V32.mixer(SPARSE).tokens_seen(1024) == 512
    less = 62 * 12 * (128 * (192 + 128) / 2) * (4096 - seen)
    assert V32.flops_per_token(8192) - V3.flops_per_token(8192) == pytest.approx(62 * 6 * INDEXER - less)


def test_executed_flops() -> None:
    """
    By hand at 8,192 tokens: 128 heads with latents of 512 + 64 and 512 channels, on 2,048 tokens, two FLOPs each.

    The indexer's 64 heads of 128 channels score 4,096 tokens; its loss has 4 and 6 FLOPs on the chosen tokens.
    """
    branch, training = V32.mixer(SPARSE), TrainingSpec(global_batch_size=8, seq_length=8192)
    core = 2 * 128 * (576 + 512) * 2048
    loss = 2048 * (4 * 128 * 576 + 6 * 64 * 128)
    forward, backward = branch.core_flops(training)
    assert forward == core + 2 * 64 * 128 * 4096
    assert backward == 2 * core + loss * (V32.sparse_attention.loss_coeff > 0)


def sparse_times(indexer: SparseAttention, tp: int = 8, stack: StackSpec = DEFAULT_STACK) -> SparseTimes:
    """Return the seconds of sparse attention's parts on the tests' GPU."""
    model = replace(V32, sparse_attention=indexer)
    job, config = make_job(make_cluster(1), model, seq_length=8192), make_config(tp=tp, num_layers=61)
    branch = model.mixer(SPARSE)
    assert isinstance(branch, SparseAttentionBranch)
    return sparse_times_s(branch, job.training, config, job.cluster.gpu_kinds[0], stack)


def test_seconds() -> None:
    """Every slot of the 2,048 is computed, over latents of 576 and 512 channels; the backward pass begins anew."""
    job = make_job(make_cluster(1), V32, seq_length=8192)
    gpu, rates, (forward, backward) = job.cluster.gpu_kinds[0], job.stack, sparse_times(SparseAttention()).attention
    law, pairs = gpu.efficiency.attention, 8192 * 2048
    product, peak = 2 * 16 * (576 + 512) * pairs, gpu.peak_flops["bf16"]
    stream = gpu.memory_bytes_per_s * rates.streaming
    read, query = 2 * 576 * pairs / stream, 2 * 16 * (576 + 512) * 8192 / stream
    kernel = law.start_s + product / (peak * law.share(128) * rates.attention_speed) + read
    assert forward == pytest.approx(kernel + 2 * query)
    assert backward == pytest.approx(kernel + 2.5 * product / (0.088 * peak) + read + 10 * query)


def test_seconds_of_the_indexer() -> None:
    """Scores and choice are those of all tokens on every tensor rank, and have no backward pass."""
    indexer = SparseAttention()
    assert sparse_times(indexer, tp=1).scores == sparse_times(indexer, tp=8).scores
    whole, half = (sparse_times(SparseAttention(n_heads=heads)).scores[0] for heads in (64, 32))
    assert half < whole < 1.3 * half
    assert sparse_times(indexer).scores[1] == sparse_times(indexer).choice[1] == sparse_times(indexer).inputs[1] == 0.0


def test_rates_are_those_of_the_stack() -> None:
    """Twice the passes and FLOPs over half the shares take twice as long, beside the forward kernel and readings."""
    indexer = SparseAttention(loss_coeff=0.01)
    slow = SparseRates(
        query_passes=(4.0, 20.0),
        backward_share=0.044,
        score_flops=330e3,
        score_share=0.132,
        choice_passes=24.0,
        input_passes=40.0,
        target_share=0.0195,
        gradient_share=0.031,
    )
    usual, twice = (
        sparse_times(indexer, stack=replace(DEFAULT_STACK, sparse_attention=s)) for s in (SparseRates(), slow)
    )
    for part in ("scores", "choice", "inputs", "loss"):
        assert getattr(twice, part) == pytest.approx([2 * seconds for seconds in getattr(usual, part)])
    none = sparse_times(indexer, stack=replace(DEFAULT_STACK, sparse_attention=SparseRates(query_passes=(0.0, 0.0))))
    assert twice.attention[0] - usual.attention[0] == pytest.approx(usual.attention[0] - none.attention[0])
    assert twice.attention[1] > usual.attention[1]


def test_the_loss_takes_time() -> None:
    """The loss needs probabilities of blocks of 32 heads, and gives the indexer a backward pass."""
    none, loss = (sparse_times(SparseAttention(loss_coeff=coefficient)) for coefficient in (0.0, 0.01))
    assert none.loss == (0.0, 0.0)
    assert min(loss.loss) > 0
    assert loss.inputs[1] == loss.inputs[0] == none.inputs[0]
    assert sparse_times(SparseAttention(loss_coeff=0.01), tp=4).loss[0] == loss.loss[0]  # 16 heads fill a block of 32
    job, config = make_job(make_cluster(1), V32, seq_length=8192), make_config(tp=8, num_layers=61)
    both = attention_times_s(V32, job.training, config, job.cluster.gpu_kinds[0], job.stack, SPARSE)
    assert both == none.total


@pytest.mark.parametrize("tp", [1, 8])
def test_bytes(tp: int) -> None:
    """Heads keep a query and an output as wide as the latents, and no keys and values; tokens the numbers chosen."""
    config = make_config(tp=tp, num_layers=61)
    tables = [stage_table(model, TRAINING, [config]) for model in (V3, V32)]
    dense, sparse = (formula_bytes(table).saved[0] for table in tables)
    layers = 61 + 1  # and the depth of multi-token prediction
    of_token = 128 / tp * (2 * (576 + 512 - 192 - 128) + 1) + 2 * 576 + 4 * 2048
    assert sparse - dense == pytest.approx(layers * tables[1].in_flight[0] * 8192 * of_token)
    assert tables[1].own_parameters[0] - tables[0].own_parameters[0] == pytest.approx(62 * (INDEXER + 256))


@pytest.mark.parametrize(("tp", "gathered"), [(1, 0), (8, 7168 + 1536)])
def test_bytes_of_the_loss(tp: int, gathered: int) -> None:
    """The indexer keeps queries, key before and after its norm, weights, scores of chosen tokens, gathered inputs."""
    rank = OnRank(TRAINING, 8192, shards=1, tp=tp, cp=1, expert_ranks=8, expert_tp=1, imbalance=1.0)
    models = (V32, replace(V32, sparse_attention=SparseAttention(loss_coeff=0.01)))
    none, loss = (sum(kept.size for kept in branch.kept_inside(rank)) for branch in (m.mixer(SPARSE) for m in models))
    assert loss - none == 8192 * (2 * (gathered + 66 * 128 + 64) + 9 * 2048)


def test_traffic_and_matrices() -> None:
    """The layer's input and the latent of the queries are gathered for the indexer; Muon has its three matrices."""
    config = make_config(tp=8, num_layers=61, sequence_parallel=True)
    dense, sparse = (tensor_traffic(V, TRAINING, config, kind)[0] for V, kind in ((V3, DENSE), (V32, SPARSE)))
    assert sparse.hop_bytes - dense.hop_bytes == pytest.approx(2 * 8192 * (7168 + 1536) * 7 / 8 / 7 * 7)
    more = layer_flops(V32, config, SPARSE)[0] - layer_flops(V3, config, DENSE)[0]
    shapes = ((64 * 128, 1536), (128, 7168), (64, 7168))
    assert more == pytest.approx(sum(orthogonal_flops(*shape) for shape in shapes))


@pytest.mark.parametrize("coefficient", [0.0, 0.01])
def test_flags_are_read_back(coefficient: float) -> None:
    """The launch says the variant, the indexer's sizes and its loss, and the reader has the same model."""
    indexer = SparseAttention(loss_coeff=coefficient)
    model = replace(V32, sparse_attention=indexer)
    words = [word for option in model_options(model, TRAINING) for word in option]
    at = words.index("--experimental-attention-variant")
    assert words[at + 1] == "dsa"
    assert words[words.index("--dsa-indexer-topk") + 1] == "2048"
    assert read_model(" ".join(words)).sparse_attention == indexer


def test_what_is_refused() -> None:
    """Context parallelism gathers keys; without latents there is nothing to read."""
    config = make_config(context_parallel_size=2, num_layers=61)
    rules = check_legal(V32, TRAINING, config)
    assert rules == ["context_parallel_size=2 with sparse attention needs cp_comm_type=all_gather, got p2p"]
    with pytest.raises(ValueError, match="sparse_attention needs multi_latent_attention"):
        replace(read_model("llama-3-8b"), sparse_attention=SparseAttention())
    with pytest.raises(ValueError, match="topk of sparse_attention must be a whole number >= 1, got 0"):
        SparseAttention(topk=0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("--dsa-indexer-topk 0", "topk of sparse_attention must be a whole number >= 1, got 0"),
        ("--dsa-indexer-topk many", "--dsa-indexer-topk must be a whole number"),
        ("--dsa-indexer-loss-coeff much", "--dsa-indexer-loss-coeff must be a number"),
        ("--dsa-indexer-loss-coeff -1", "loss_coeff of sparse_attention must be >= 0, got -1.0"),
    ],
)
def test_wrong_options_are_input_errors(change: str, problem: str) -> None:
    """The message names the launch and what would be right."""
    words = [word for option in model_options(V32, TRAINING) for word in option]
    with pytest.raises(InputError, match=problem):
        read_model(f"{' '.join(words)} {change}")


def test_a_pattern_has_no_sparse_attention() -> None:
    """The letters of hybrid patterns have none, so the indexer would be passed over."""
    with pytest.raises(ValueError, match="sparse_attention does not go with hybrid_layer_pattern"):
        replace(V32, num_layers=2, hybrid_layer_pattern="*-", num_experts=None, num_dense_layers=0, mtp_num_layers=0)
