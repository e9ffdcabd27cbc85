"""
The tracer against hand counts.

Activations per layer: Korthikanti et al., arXiv 2205.05198, section 4, equations 1, 2, 4 and 6; what they leave out
(the fp32 statistics of the norms) is added by hand here.
"""

from dataclasses import replace

import pytest
import torch
from factories import LLAMA_8B, TINY
from torch._subclasses.fake_tensor import FakeTensorMode

from models.memory.live_storages import LiveStorages
from models.memory.shapes import LocalShapes
from models.memory.trace import StageTrace, trace_stage
from models.memory.transformer.ends import Embeddings, Head
from models.memory.transformer.layers import Chunk, Layer
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

GPT = replace(TINY, hidden_dropout=0.1, attention_dropout=0.1)
"""As in the paper: GELU with 4 h, dropout everywhere."""

S, B, H, A = 2048, 4, GPT.hidden_size, GPT.num_attention_heads
SBH = S * B * H
STATISTICS = 2 * 2 * 4 * S * B
"""Mean and reciprocal deviation in fp32 of two norms."""


def config(tp: int = 1, pp: int = 1, layers: int = 8, **changes: object) -> ParallelConfig:
    """An even configuration of GPUs that share nothing but what ``changes`` says."""
    defaults: dict[str, object] = {"data_parallel_size": 1, "micro_batch_size": B}
    return ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        layers_per_stage=(layers // pp,) * pp,
        **(defaults | changes),  # type: ignore[arg-type]
    )


def training(microbatches: int = 8, **changes: object) -> TrainingSpec:
    """fp16, unfused attention, so many micro-batches."""
    return TrainingSpec(
        global_batch_size=microbatches * B,
        seq_length=S,
        precision="fp16",
        **({"attention_kernel": "unfused"} | changes),  # type: ignore[arg-type]
    )


def held_per_layer(model: ModelSpec, job: TrainingSpec, tp: int, **changes: object) -> int:
    """What one more layer of a middle stage keeps of one micro-batch."""
    one, two = (trace_stage(model, job, config(tp, 4, 4 * layers, **changes), 1).held_bytes for layers in (1, 2))
    return two - one


@pytest.mark.parametrize(
    ("tp", "changes", "expected"),
    [
        (1, {}, SBH * 34 + 5 * A * S * S * B + STATISTICS),
        (8, {}, SBH * (10 + 24 / 8) + 5 * A * S * S * B / 8 + STATISTICS),
        (8, {"sequence_parallel": True}, SBH * 34 / 8 + 5 * A * S * S * B / 8 + STATISTICS / 8),
        (8, {"sequence_parallel": True, "recompute_granularity": "selective"}, SBH * 34 / 8 + STATISTICS / 8),
        (1, {"recompute_granularity": "full"}, SBH * 2),
        (8, {"recompute_granularity": "full"}, SBH * 2),
        (8, {"recompute_granularity": "full", "sequence_parallel": True}, SBH * 2 / 8),
    ],
)
def test_activations_of_a_layer_as_published(tp: int, changes: dict[str, object], expected: float) -> None:
    """Bytes of a layer: 34 sbh + 5 a s^2 b, its tensor and sequence parallel parts, and what recomputation leaves."""
    assert held_per_layer(GPT, training(), tp, **changes) == expected


def test_flash_attention_keeps_no_scores() -> None:
    """Without scores 34 sbh remain, with one fp32 number per row and head."""
    found = held_per_layer(GPT, training(attention_kernel="flash"), 1)
    assert found == SBH * 34 + STATISTICS + 4 * A * S * B


def test_a_llama_layer_by_hand() -> None:
    """RMSNorm, grouped queries, SwiGLU, no dropout, flash: every kept tensor summed by hand."""
    tokens, h, ffn, kv = S * B, 4096, 14336, 1024
    kept = 2 * tokens * (
        h + h  # inputs of norm and of query-key-value product
        + h + kv + kv + h  # query, key, value, attention output
        + h + h  # inputs of norm and of the MLP
        + 2 * ffn + ffn  # both halves, and their product
    )  # fmt: skip
    statistics = 2 * 4 * tokens + 4 * 32 * tokens  # of two norms, and of 32 heads
    assert held_per_layer(LLAMA_8B, training(attention_kernel="flash"), 1) == kept + statistics


@pytest.mark.search
def test_static_bytes_by_hand() -> None:
    """bf16 weights, fp32 gradients, 12 bytes of Adam per parameter, the last divided by the distributed optimizer."""
    job = TrainingSpec(global_batch_size=32, seq_length=S)
    h, vocab = H, 50304  # 50257 padded to 128
    layer = 12 * h * h + 13 * h  # weights; biases 3h + h + 4h + h, two LayerNorms 4h
    parameters = 8 * layer + vocab * h + 2048 * h + 2 * h
    plain = trace_stage(TINY, job, config(), 0, rounding_bytes=1)
    assert plain.num_parameters == parameters
    assert plain.weight_bytes == 2 * parameters
    assert plain.gradient_bytes == 4 * parameters
    assert plain.optimizer_bytes == 12 * parameters
    shared = trace_stage(TINY, job, config(data_parallel_size=4, use_distributed_optimizer=True), 0, rounding_bytes=1)
    assert shared.optimizer_bytes == 3 * parameters


def test_embeddings_are_on_the_first_stage_and_head_on_the_last() -> None:
    """Tied embeddings live twice as soon as there are two stages; position embeddings are never split."""
    job = TrainingSpec(global_batch_size=32, seq_length=S)
    first, middle, last = (trace_stage(TINY, job, config(2, 4), stage).num_parameters for stage in (0, 1, 3))
    vocab = 50432 // 2  # 50257 padded to 256
    assert first - middle == (vocab + 2048) * H
    assert last - middle == vocab * H + 2 * H


def test_optimizer_step_can_be_the_peak() -> None:
    """With 16-bit gradients the step needs an fp32 copy of them, which counts only if activations are smaller."""
    small = TrainingSpec(global_batch_size=1, seq_length=128, accumulate_allreduce_grads_in_fp32=False)
    trace = trace_stage(TINY, small, config(micro_batch_size=1), 0)
    assert trace.step_bytes == 4 * trace.num_parameters > trace.activation_bytes
    assert trace.peak_bytes == trace.static_bytes + trace.placeholder_bytes + trace.step_bytes
    assert trace_stage(TINY, replace(small, accumulate_allreduce_grads_in_fp32=True), config(micro_batch_size=1), 0)\
        .step_bytes == 0  # fmt: skip


def test_logits_by_hand() -> None:
    """A last stage without layers: the peak is bf16 logits, their fp32 softmax, and the bf16 gradient of them."""
    model = replace(TINY, num_layers=4)
    job = TrainingSpec(global_batch_size=4 * B, seq_length=S)
    empty = replace(config(1, 2, 4), layers_per_stage=(4, 0))
    trace = trace_stage(model, job, empty, 1, rounding_bytes=1)
    tokens, vocab = S * B, 50304
    softmax, gradient = 4 * tokens * vocab, 2 * tokens * vocab
    others = 2 * 2 * tokens * H + 2 * 4 * tokens  # inputs of norm and product, statistics
    assert softmax + gradient + others <= trace.activation_bytes <= softmax + gradient + others + 32 * tokens


@pytest.mark.search
@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("vpp", [None, 2])
def test_peak_grows_linearly_with_layers(stage: int, vpp: int | None) -> None:
    """Every further layer costs the same, so the trace has no hidden start-up effects."""
    chunks = vpp or 1
    peaks = [
        trace_stage(
            GPT, training(), config(2, 4, 4 * chunks * n, virtual_pipeline_model_parallel_size=vpp), stage
        ).activation_bytes
        for n in (2, 3, 4)
    ]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0] > 0


@pytest.mark.search
@pytest.mark.parametrize(("whole", "microbatches", "expected"), [(2, 8, (7, 0, 0, 1)), (3, 4, (4, 0, 0, 1))])
def test_chunks_with_a_layer_less(whole: int, microbatches: int, expected: tuple[int, ...]) -> None:
    """
    Four stages of two chunks: the first stage holds 4 + 3 micro-batches of its first chunk, the last one of its last.

    Of four micro-batches it holds all. Each is a layer's activations less, where embedding or head took its place.
    """
    layer = held_per_layer(GPT, training(microbatches), 2)
    even = config(2, 4, 8 * whole, virtual_pipeline_model_parallel_size=2)
    counted = replace(even, layers_per_stage=(2 * whole - 1, 2 * whole, 2 * whole, 2 * whole - 1))
    for stage, missing in enumerate(expected):
        before, after = (trace_stage(GPT, training(microbatches), one, stage) for one in (even, counted))
        assert before.activation_bytes - after.activation_bytes == pytest.approx(missing * layer, rel=0.002)
        assert (before.num_parameters - after.num_parameters > 0) == (missing > 0)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_earlier_stages_hold_more(stage: int) -> None:
    """1F1B: stage s of 4 holds 4 - s micro-batches; of equal ones, each costs what a forward pass leaves."""
    trace = trace_stage(GPT, training(), config(1, 4), stage)
    extra = trace.activation_bytes - (4 - stage) * trace.held_bytes
    if stage < 3:
        assert 0 <= extra < trace.held_bytes
    few = trace_stage(GPT, training(1), config(1, 4), stage)
    assert few.activation_bytes <= trace.activation_bytes
    assert (few.activation_bytes < trace.activation_bytes) == (stage < 3)


def savers(**changes: object) -> StageTrace:
    """First of two stages under some memory savers."""
    return trace_stage(GPT, training(), config(4, 2, **changes), 0)


@pytest.mark.search
def test_savers_save() -> None:
    """Sequence parallelism, selective and full recomputation each lower the peak, in this order."""
    plain = savers()
    sequence = savers(sequence_parallel=True)
    selective = savers(sequence_parallel=True, recompute_granularity="selective")
    full = savers(sequence_parallel=True, recompute_granularity="full")
    peaks = [trace.peak_bytes for trace in (plain, sequence, selective, full)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


@pytest.mark.search
def test_nothing_is_left_after_the_backward() -> None:
    """A forward and backward through a whole model frees everything but the weights."""
    job = training(attention_kernel="unfused")
    shapes = LocalShapes.of(GPT, job, config(2, sequence_parallel=True))
    for recompute in (None, "selective", "full"):
        with FakeTensorMode(), LiveStorages() as storages:
            embeddings = Embeddings(GPT, job, shapes)
            layers = [Layer(GPT, job, shapes, recompute == "selective") for _ in range(2)]
            chunk = Chunk(layers, embeddings, Head(GPT, job, shapes, None, None), 2 * (recompute == "full"), 1)
            before = storages.live_bytes
            loss = chunk(torch.empty(shapes.tokens, dtype=torch.int64))
            assert storages.live_bytes > before
            loss.backward()
            del loss
            assert storages.live_bytes == before


def test_wrong_stage_or_degrees_are_refused() -> None:
    """The message shows the numbers."""
    with pytest.raises(ValueError, match=r"stage must be in 0\.\.1, got 2"):
        trace_stage(GPT, training(), config(1, 2), 2)
    with pytest.raises(ValueError, match="num_attention_heads=16"):
        trace_stage(GPT, training(), config(3), 0)
    with pytest.raises(ValueError, match="seq_length"):
        trace_stage(GPT, replace(training(), seq_length=2047), config(2, sequence_parallel=True), 0)
