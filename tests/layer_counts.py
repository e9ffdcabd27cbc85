"""
Hand counts of layers, and the questions that every consumer of a layer kind is asked.

A test of a kind states a small model whose layers are all alike, and counts each branch of such a layer by hand
(:class:`Counts`). :func:`check` asks parameters, FLOPs, seconds, memory, traffic, launches, legality and Megatron's
options for what these counts imply.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from factories import make_cluster, make_config, make_job

from pipette_opt.base.units import GIB
from pipette_opt.candidates.legality import check_legal
from pipette_opt.costs.collectives import column_products, tensor_traffic
from pipette_opt.costs.compute import layer_times_s, optimizer_time_s
from pipette_opt.costs.context import context_traffic, exchanged_traffic
from pipette_opt.costs.experts import expert_traffic
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.memory.formula import FormulaBytes, formula_bytes, parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model_words import model_options
from pipette_opt.specs import GpuSpec, Instance, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import moved_bytes
from pipette_opt.specs.efficiency import AttentionLaw, GpuEfficiency, ProductLaw

SEQUENCE = 1024
"""Tokens of a sequence. A micro-batch is a sequence."""

ELEMENT = 2
"""Bytes of a number in bf16."""

SUMMED_RATE = 0.93
"""Rate of weight gradients, which are added to fp32 sums, relative to other products."""

ATTENTION_BACKWARD = 2.5 / 0.87
"""Backward over forward time of fused attention: five products for two, at 0.87 of the rate (arXiv 2407.08608)."""

NEWTON_SCHULZ = 5
"""Iterations of Muon."""

TP_SIZES = (1, 2, 4, 8, 16)
CONTEXT_TYPES = ("p2p", "a2a", "all_gather")

PEAK = 1e6
_EXACT = ProductLaw(share=1.0, half_inner=0.0, half_result=0.0, start_s=0.0)
COMPUTE_ONLY = GpuSpec(
    name="round",
    memory_bytes=80 * GIB,
    peak_flops={"bf16": PEAK},
    memory_bytes_per_s=1e30,
    host_bytes_per_s=1e30,
    efficiency=GpuEfficiency(
        wide=_EXACT, narrow=_EXACT, attention=AttentionLaw(head_sizes=(1,), shares=(1.0,), half_seq=0.0, start_s=0.0)
    ),
)
"""GPU that computes at exactly ``PEAK`` FLOP/s, and whose memory traffic takes no time."""

_INSTANT = replace(COMPUTE_ONLY, peak_flops={"bf16": 1e30})
"""GPU on which nothing takes time, so that launches decide."""

NO_OVERHEAD = StackSpec(kernel_s=0.0, streaming=1.0)

Matrix = tuple[int, int]
"""Outputs and inputs of a matrix product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """
    Counts of one branch of a layer; counts of branches add up.

    Parameters
    ----------
    split, whole
        Matrices that tensor ranks split, and those that every tensor rank holds whole.
    one_expert
        Matrices of one routed expert.
    orthogonal
        Matrices that Muon updates, as its products see them.
    split_vectors, whole_vectors
        Parameters outside matrices that tensor ranks split, or hold whole.
    core_flops
        FLOPs of a token outside matrix products, forward.
    core_s
        Forward and backward time of these FLOPs, over their time at the full rate.
    model_flops
        FLOPs of a token outside matrix products, forward and backward, in the model's FLOPs (MFU).
    kept_split, kept_whole
        Bytes of a token kept for the backward pass that tensor ranks split, and those that they split only with
        sequence parallelism.
    kept_core
        Part of ``kept_split`` that recomputation of the attention core frees.
    offloaded
        Bytes of a token that offloading moves, by module.
    offloaded_rest
        Further bytes of a token that offloading of whole layers moves.
    gathered, scattered
        Channels of a token in all-gathers and in reduce-scatters of tensor ranks with sequence parallelism, forward.
    collectives
        Number of these all-gathers and reduce-scatters.
    gathered_again
        Channels of a token that each column-parallel product gathers again backward, beside itself.
    launches
        Kernels of a forward pass.
    exchanged_queries, exchanged_keys
        Channels of a token that context ranks may exchange: queries and outputs, and keys and values.
    routed_bytes
        Bytes of a token's copies in the all-to-all to its experts.
    legal_tp, legal_cp
        Tensor-parallel sizes of ``TP_SIZES``, and types of ``CONTEXT_TYPES`` for two context ranks, that Megatron-Core
        accepts.
    flags
        Options of Megatron-LM.
    """

    split: tuple[Matrix, ...] = ()
    whole: tuple[Matrix, ...] = ()
    one_expert: tuple[Matrix, ...] = ()
    orthogonal: tuple[Matrix, ...] = ()
    split_vectors: int = 0
    whole_vectors: int = 0
    core_flops: float = 0.0
    core_s: tuple[float, float] = (1.0, 1.0)
    model_flops: float = 0.0
    kept_split: float = 0.0
    kept_whole: float = 0.0
    kept_core: float = 0.0
    offloaded: tuple[tuple[str, float], ...] = ()
    offloaded_rest: float = 0.0
    gathered: int = 0
    scattered: int = 0
    collectives: int = 0
    gathered_again: tuple[int, ...] = ()
    launches: int = 0
    exchanged_queries: int = 0
    exchanged_keys: int = 0
    routed_bytes: float = 0.0
    legal_tp: tuple[int, ...] = TP_SIZES
    legal_cp: tuple[str, ...] = CONTEXT_TYPES
    flags: tuple[str, ...] = ()

    def __add__(self, other: "Counts") -> "Counts":
        """Return the counts of two branches together; both must accept what the layer accepts."""
        summed: dict[str, Any] = {
            field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(Counts)
        }
        summed["core_s"] = self.core_s if self.core_flops else other.core_s
        for name in ("legal_tp", "legal_cp"):
            summed[name] = tuple(each for each in getattr(self, name) if each in getattr(other, name))
        return Counts(**summed)


Question = Callable[[ModelSpec, Counts], None]
"""Comparison of one consumer with the counts of a layer of the model."""


def gated_mlp(hidden: int, width: int) -> Counts:
    """Return the counts of a gated MLP without biases, behind an RMS norm, for layers that have a mixer besides."""
    return Counts(
        split=((2 * width, hidden), (hidden, width)),
        orthogonal=((2 * width, hidden), (hidden, width)),
        whole_vectors=hidden,  # the norm
        # Gate and value of the activation; its output.
        kept_split=2 * 2 * width + 2 * width,
        # Inputs of the norm and of the product, and the norm's statistic in fp32.
        kept_whole=2 * hidden + 2 * hidden + 4,
        offloaded_rest=2 * hidden + 2 * hidden + 2 * 2 * width + 2 * width,
        gathered=hidden,
        scattered=hidden,
        collectives=2,
        gathered_again=(hidden,),
        launches=6,  # norm, two products, three of the gated activation
        flags=("--swiglu", f"--ffn-hidden-size {width}"),
    )


def check(model: ModelSpec, *branches: Counts, unasked: tuple[Question, ...] = ()) -> None:
    """
    Ask every consumer about the layers of a model, which are all of one kind, by the counts of its branches.

    ``unasked``: questions that the test gives a reason not to ask.
    """
    assert len(set(model.layers)) == 1
    counts = sum(branches[1:], start=branches[0])
    for ask in QUESTIONS:
        if ask not in unasked:
            ask(model, counts)


def elements(matrices: tuple[Matrix, ...]) -> int:
    """Return the number of elements of all matrices."""
    return sum(outputs * inputs for outputs, inputs in matrices)


def training(**options: Any) -> TrainingSpec:
    """Return a training in bf16 with fused attention and sequences of ``SEQUENCE`` tokens."""
    return TrainingSpec(global_batch_size=64, seq_length=SEQUENCE, **options)


def job(model: ModelSpec, **options: Any) -> Instance:
    """Return a job on one host."""
    return replace(make_job(make_cluster(1), model), training=training(**options))


def ranks(model: ModelSpec, tp: int = 1, **options: Any) -> ParallelConfig:
    """Return one stage of ``tp`` ranks with sequence parallelism, which share experts out whole."""
    sizes: dict[str, Any] = {"num_layers": model.num_layers, "sequence_parallel": tp > 1}
    if model.num_experts is not None:
        sizes |= {"expert_model_parallel_size": tp, "expert_tensor_parallel_size": 1}
    return make_config(tp=tp, **{**sizes, **options})


def memory(model: ModelSpec, config: ParallelConfig, **options: Any) -> FormulaBytes:
    """Return the memory formula's bytes of the only stage."""
    return formula_bytes(stage_table(model, training(**options), [config]))


def check_parameters(model: ModelSpec, counts: Counts) -> None:
    """Parameters of a layer, of the model, and of a rank, by all three that count them."""
    split = elements(counts.split) + counts.split_vectors
    whole = elements(counts.whole) + counts.whole_vectors
    experts = (model.num_experts or 0) * elements(counts.one_expert)
    found = layer_parameters(model, model.layers[0])
    assert (found.sharded, found.replicated, found.experts) == (split, whole, experts)
    norm_vectors = 2 if model.normalization == "LayerNorm" else 1  # weight and bias, or weight
    table, final_norm = model.vocab_size * model.hidden_size, norm_vectors * model.hidden_size
    positions = (
        model.max_position_embeddings * model.hidden_size * (model.position_embedding_type == "learned_absolute")
    )
    assert model.num_parameters == model.num_layers * (split + whole + experts) + 2 * table + positions + final_norm
    for tp in (1, 2):
        config = ranks(model, tp)
        expected = model.num_layers * ((split + experts) / tp + whole) + 2 * table / tp + positions + final_norm
        assert stage_parameters(model, config).total == pytest.approx([expected])
        assert parameters(stage_table(model, training(), [config])) == pytest.approx([expected])
        assert memory(model, config).weights == pytest.approx([ELEMENT * expected])


def check_flops(model: ModelSpec, counts: Counts) -> None:
    """FLOPs of a token in the model: six for each element of a matrix that it meets, and those of the core."""
    met = elements(counts.split + counts.whole) + model.moe_router_topk * elements(counts.one_expert)
    layer = 6 * met + counts.model_flops
    head = 6 * model.vocab_size * model.hidden_size
    assert model.flops_per_token(SEQUENCE) == pytest.approx(model.num_layers * layer + head)


def check_seconds(model: ModelSpec, counts: Counts) -> None:
    """
    Seconds where only FLOPs take time: two for each element of a matrix and token, and four in the backward pass.

    Without sequence parallelism, each tensor rank multiplies all tokens with the matrices that it holds whole.
    """
    routed = model.moe_router_topk * elements(counts.one_expert)
    split, whole = elements(counts.split) + routed, elements(counts.whole)
    cases = [(1, False, whole), (2, True, whole / 2)]
    if not counts.one_expert:
        cases.append((2, False, whole))
    for tp, sequence_parallel, whole_of_rank in cases:
        products, core = 2 * (split / tp + whole_of_rank), counts.core_flops / tp
        forward = products + counts.core_s[0] * core
        backward = products * (1 + 1 / SUMMED_RATE) + counts.core_s[1] * core
        plain = ranks(model, tp, sequence_parallel=sequence_parallel)
        again = replace(plain, recompute_granularity="full")
        for config, expected in ((plain, (forward, backward)), (again, (forward, forward + backward))):
            seconds = layer_times_s(job(model), config, COMPUTE_ONLY, NO_OVERHEAD)
            assert seconds == pytest.approx([SEQUENCE * flops / PEAK for flops in expected], rel=1e-5)


def check_launches(model: ModelSpec, counts: Counts) -> None:
    """Seconds where each launch takes a second, and nothing else takes time; and of collectives likewise."""
    kernels, calls = (replace(NO_OVERHEAD, **{f"host_{what}_s": 1.0}) for what in ("kernel", "collective"))
    exchanges = 2 if counts.one_expert else 0  # tokens to the experts of two ranks, and back
    for tp, collectives in ((1, 0), (2, counts.collectives + exchanges)):
        config = ranks(model, tp)
        assert layer_times_s(job(model), config, _INSTANT, kernels) == pytest.approx([counts.launches] * 2, rel=1e-5)
        assert layer_times_s(job(model), config, _INSTANT, calls) == pytest.approx(
            [collectives] * 2, rel=1e-5, abs=1e-3
        )


def check_kept_bytes(model: ModelSpec, counts: Counts) -> None:
    """Bytes kept for the backward pass: of all, without the attention core, and of the input alone."""
    kept, again = counts.kept_split + counts.kept_whole, counts.kept_split - counts.kept_core + counts.kept_whole
    cases = [
        (ranks(model), kept),
        (ranks(model, 2), kept / 2),
        (ranks(model, recompute_granularity="selective"), again),
        (ranks(model, 2, recompute_granularity="full"), ELEMENT * model.hidden_size / 2),
    ]
    if not counts.one_expert:
        cases.append((ranks(model, 2, sequence_parallel=False), counts.kept_split / 2 + counts.kept_whole))
    for config, of_token in cases:
        assert memory(model, config).saved / model.num_layers / SEQUENCE == pytest.approx([of_token])


def check_offloaded_bytes(model: ModelSpec, counts: Counts) -> None:
    """Bytes that offloading moves to the host, module by module and all together."""
    bytes_of = dict(counts.offloaded)
    for module in ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"):
        modules = ("core_attn", module) if module == "attn_proj" else (module,)
        moved = moved_bytes(model, training(offload_modules=modules), ranks(model), model.layers[0])
        assert moved / SEQUENCE == pytest.approx(sum(bytes_of.get(name, 0.0) for name in modules)), module
    given = training(cpu_offloading_num_layers=1)
    moved = model.num_layers * moved_bytes(model, given, ranks(model), model.layers[0])
    assert moved / SEQUENCE == pytest.approx(sum(bytes_of.values()) + counts.offloaded_rest)


def check_tensor_traffic(model: ModelSpec, counts: Counts) -> None:
    """
    Traffic of two tensor ranks: a gather sends half of its tensor, a scatter too, and an all-reduce does both.

    The backward pass mirrors the forward, but what products gather again and scatter is beside them. Full recomputation
    repeats the forward in the backward pass.
    """
    forward = np.array([counts.gathered + counts.scattered, counts.collectives])
    beside = np.array([sum(counts.gathered_again), len(counts.gathered_again)])
    both = np.array([SEQUENCE * ELEMENT / 2, 1])
    for again, granularity in ((0, None), (1, "full")):
        config = ranks(model, 2, recompute_granularity=granularity)
        found = tensor_traffic(model, training(), config, model.layers[0])
        expected = [forward * both, ((1 + again) * forward - beside) * both]
        assert [[ring.hop_bytes, ring.num_calls] for ring in found] == pytest.approx(np.array(expected))
    products = [product.inputs for product in column_products(model, model.layers[0])]
    assert sorted(products) == sorted(counts.gathered_again)
    alone = tensor_traffic(model, training(), ranks(model), model.layers[0])
    assert [found.hop_bytes for found in alone] == [0, 0]


def check_context_traffic(model: ModelSpec, counts: Counts) -> None:
    """Traffic of two context ranks, each with half of the tokens: keys and values, or half of all four tensors."""
    if not counts.exchanged_keys:
        return
    own = SEQUENCE / 2 * ELEMENT
    everything = counts.exchanged_queries + counts.exchanged_keys
    expected = {
        "p2p": (own * counts.exchanged_keys, 2 * own * counts.exchanged_keys),
        "a2a": (own * everything / 2, own * everything / 2),
        "all_gather": (own * counts.exchanged_keys, 2 * own * counts.exchanged_keys),
    }
    for name in counts.legal_cp:
        given = model, training(cp_comm_type=name), ranks(model, context_parallel_size=2)
        found = (*context_traffic(*given), *exchanged_traffic(*given))
        sent = [found[way].hop_bytes + found[way + 2].hop_bytes for way in (0, 1)]
        assert sent == pytest.approx(list(expected[name])), name


def check_expert_traffic(model: ModelSpec, counts: Counts) -> None:
    """Copies of each token for its experts, which two ranks share."""
    if model.num_experts is not None:
        sent = expert_traffic(model, training(), ranks(model, 2)).sent_bytes
        assert sent == pytest.approx(SEQUENCE / 2 * counts.routed_bytes)


def check_muon(model: ModelSpec, counts: Counts) -> None:
    """
    Muon's products, and its memory: matrices have no second moment.

    An iteration on a matrix of ``m`` by ``n``, ``m <= n``, takes ``4 m^2 n + 2 m^3`` FLOPs.
    """
    flops = sum(
        4 * min(matrix) ** 2 * max(matrix) + 2 * min(matrix) ** 3
        for matrix in counts.orthogonal + (model.num_experts or 0) * counts.one_expert
    )
    seconds = optimizer_time_s(job(model, optimizer="muon"), ranks(model), COMPUTE_ONLY, NO_OVERHEAD)
    assert seconds == pytest.approx(model.num_layers * NEWTON_SCHULZ * flops / PEAK, rel=1e-5)
    adam, muon = (memory(model, ranks(model), optimizer=name).optimizer for name in ("adam", "muon"))
    matrices = elements(counts.orthogonal) + (model.num_experts or 0) * elements(counts.one_expert)
    assert adam - muon == pytest.approx([4 * model.num_layers * matrices])


def check_legality(model: ModelSpec, counts: Counts) -> None:
    """Tensor-parallel sizes, and types of context parallelism, that are refused and those that are not."""
    each_tp = {tp: ranks(model, tp, expert_model_parallel_size=1) for tp in TP_SIZES}
    legal_tp = tuple(tp for tp, config in each_tp.items() if not check_legal(model, training(), config))
    assert legal_tp == counts.legal_tp
    config = ranks(model, context_parallel_size=2)
    legal_cp = tuple(name for name in CONTEXT_TYPES if not check_legal(model, training(cp_comm_type=name), config))
    assert legal_cp == counts.legal_cp


def check_flags(model: ModelSpec, counts: Counts) -> None:
    """Options of Megatron-LM that the layers need, and the model that is read from all of the options."""
    options = [" ".join(words) for words in model_options(model, training())]
    assert not [flag for flag in counts.flags if flag not in options]
    read = parse_megatron_args(shlex.join(word for option in model_options(model, training()) for word in option)).model
    assert read == replace(model, name="megatron")


QUESTIONS: tuple[Question, ...] = (
    check_parameters,
    check_flops,
    check_seconds,
    check_launches,
    check_kept_bytes,
    check_offloaded_bytes,
    check_tensor_traffic,
    check_context_traffic,
    check_expert_traffic,
    check_muon,
    check_legality,
    check_flags,
)
"""All questions."""
