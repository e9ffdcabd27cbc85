"""Random points of the candidate space: a model, a job, a configuration and one of its stages."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.types import RecomputeGranularity
from pipette_opt.units import GIB

SMALLEST_BYTES, LARGEST_BYTES = GIB, 256 * GIB
"""Most points lie here by the closed formula: what a GPU has or may have."""

_SHARE_OUTSIDE = 0.1
_HEAD_SIZES = (64, 80, 96, 128, 128, 128, 160, 192)
_RECOMPUTE: tuple[RecomputeGranularity | None, ...] = (None, None, "selective", "full")
_VOCABULARIES = (32000, 49152, 50257, 51200, 100352, 128256, 151936, 256000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One stage of one configuration of one job."""

    model: ModelSpec
    training: TrainingSpec
    config: ParallelConfig
    stage: int


def sample_point(seed: int, index: int) -> Point:
    """
    The point of that number; depends on nothing but the two arguments.

    Models of 100 million to a trillion parameters, half of the GPT and half of the Llama family.
    """
    rng = np.random.default_rng((seed, index))
    while True:
        point = _draw(rng)
        if point is None:
            continue
        table = stage_table(point.model, point.training, [point.config], stage=point.stage)
        usual = SMALLEST_BYTES <= formula_bytes(table).total[0] <= LARGEST_BYTES
        if usual or rng.random() < _SHARE_OUTSIDE:
            return point


def _draw(rng: np.random.Generator) -> Point | None:
    """One try; ``None`` if the parts do not go together."""
    seq_length = int(rng.choice([1024, 2048, 2048, 4096, 4096, 4096, 8192, 8192, 16384, 32768]))
    model = _draw_model(rng, seq_length)
    if not 1e8 <= model.num_parameters <= 1.1e12:
        return None
    flash = seq_length > 8192 or rng.random() < 0.75
    config = _draw_config(rng, model, seq_length)
    if config is None:
        return None
    microbatches = _draw_microbatches(rng, config)
    precision = str(rng.choice(["bf16"] * 7 + ["fp16"] * 2 + ["fp32"]))
    training = TrainingSpec(
        global_batch_size=microbatches * config.data_parallel_size * config.micro_batch_size,
        seq_length=seq_length,
        precision=precision,  # type: ignore[arg-type]
        accumulate_allreduce_grads_in_fp32=bool(rng.random() < 0.75),
        attention_kernel="flash" if flash else "unfused",
    )
    return Point(model=model, training=training, config=config, stage=_draw_stage(rng, config))


def _draw_model(rng: np.random.Generator, seq_length: int) -> ModelSpec:
    gpt = bool(rng.random() < 0.5)
    kv_channels = int(rng.choice(_HEAD_SIZES if gpt else (64, 128, 128, 128)))
    hidden = 2.0 ** rng.uniform(np.log2(512), np.log2(25600))
    heads = max(8 * round(hidden / kv_channels / 8), 4)
    hidden_size = heads * kv_channels
    num_layers = int(np.clip(round(hidden_size / rng.uniform(40, 220)), 4, 160))
    if rng.random() < 0.7:
        num_layers = max(8 * round(num_layers / 8), 8)
    if gpt:
        dropout = float(rng.choice([0.0, 0.1]))
        return ModelSpec(
            name="gpt",
            num_layers=num_layers,
            hidden_size=hidden_size,
            ffn_hidden_size=4 * hidden_size,
            num_attention_heads=heads,
            num_query_groups=heads,
            kv_channels=kv_channels,
            vocab_size=int(rng.choice(_VOCABULARIES)),
            max_position_embeddings=seq_length,
            hidden_dropout=dropout,
            attention_dropout=dropout if rng.random() < 0.9 else 0.0,
        )
    groups = heads if rng.random() < 0.35 else int(rng.choice([2, 4, 8, 8, 8]))
    return ModelSpec(
        name="llama",
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_hidden_size=256 * max(round(hidden_size * rng.uniform(2.0, 5.5) / 256), 1),
        num_attention_heads=heads,
        num_query_groups=groups if heads % groups == 0 else heads,
        kv_channels=kv_channels,
        vocab_size=int(rng.choice(_VOCABULARIES)),
        max_position_embeddings=seq_length,
        gated_linear_unit=True,
        untie_embeddings_and_output_weights=bool(rng.random() < 0.7),
        add_bias_linear=False,
        add_qkv_bias=bool(rng.random() < 0.25),
        qk_layernorm=bool(rng.random() < 0.2),
        normalization="RMSNorm",
        position_embedding_type="rope",
    )


def _draw_config(rng: np.random.Generator, model: ModelSpec, seq_length: int) -> ParallelConfig | None:
    tp = int(rng.choice([1, 2, 4, 8, 8, 16]))
    if model.num_attention_heads % tp or model.num_query_groups % tp or model.ffn_hidden_size % tp:
        return None
    pp = int(rng.choice([1, 1, 2, 2, 4, 4, 8, 8, 12, 16, 24, 32, 64]))
    layers = _draw_layers(rng, model.num_layers, pp)
    if layers is None:
        return None
    chunks = [v for v in range(2, 9) if pp > 1 and all(count % v == 0 and count for count in layers)]
    vpp = int(rng.choice(chunks)) if chunks and rng.random() < 0.35 else None
    recompute = _RECOMPUTE[rng.integers(len(_RECOMPUTE))]
    return ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=int(2 ** rng.integers(0, 9)),
        micro_batch_size=int(rng.choice([1, 1, 1, 2, 2, 4, 4, 8, 16])),
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=vpp,
        sequence_parallel=bool(tp > 1 and seq_length % tp == 0 and rng.random() < 0.75),
        recompute_granularity=recompute,
        use_distributed_optimizer=bool(rng.random() < 0.6),
    )


def _draw_layers(rng: np.random.Generator, num_layers: int, pp: int) -> tuple[int, ...] | None:
    """Even stages; or the first and the last with their own count, as Megatron's options allow."""
    if pp > num_layers:
        return None
    if num_layers % pp == 0 and (pp == 1 or rng.random() < 0.7):
        return (num_layers // pp,) * pp
    if pp == 1:
        return (num_layers,)
    if pp == 2:
        first = int(rng.integers(1, num_layers))
        return first, num_layers - first
    middle = num_layers // (pp - 1) if rng.random() < 0.5 else -(-num_layers // pp)
    rest = num_layers - middle * (pp - 2)
    if rest < 2 or rest > 3 * middle + 2:
        return None
    first = rest // 2
    return (first, *(middle,) * (pp - 2), rest - first)


def _draw_microbatches(rng: np.random.Generator, config: ParallelConfig) -> int:
    """Micro-batches per replica; with interleaving a multiple of the stages, as Megatron asks."""
    pp = config.pipeline_model_parallel_size
    if config.num_chunks > 1:
        return pp * int(rng.integers(1, 9))
    return int(np.ceil(2.0 ** rng.uniform(0, 7)))


def _draw_stage(rng: np.random.Generator, config: ParallelConfig) -> int:
    pp = config.pipeline_model_parallel_size
    kind = rng.random()
    if kind < 0.35:
        return 0
    return pp - 1 if kind < 0.65 else int(rng.integers(0, pp))
