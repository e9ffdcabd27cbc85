"""Random points of the candidate space: a model, a training job, a configuration, and one of its stages."""

from dataclasses import dataclass, replace

import numpy as np

from models.memory.shapes import LocalShapes
from pipette_opt.base.types import RecomputeGranularity
from pipette_opt.base.units import GIB
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

SMALLEST_BYTES, LARGEST_BYTES = GIB, 256 * GIB
"""Range of a stage's bytes, by the memory formula, that most sampled points have: from 1 GiB to a large GPU. Chosen."""

_SHARE_OUTSIDE = 0.1
_HEAD_SIZES = (64, 80, 96, 128, 128, 128, 160, 192)
_RECOMPUTE: tuple[RecomputeGranularity | None, ...] = (None, None, "selective", "full")
_NARROW = ("bf16", "fp16", "fp8")
_VOCABULARIES = (32000, 49152, 50257, 51200, 100352, 128256, 151936, 256000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Stage of a configuration of a training job; the unit that is traced."""

    model: ModelSpec
    training: TrainingSpec
    config: ParallelConfig
    stage: int


def sample_point(seed: int, index: int) -> Point:
    """
    Return the random point with this seed and index; it depends on no other state.

    Models have 100 million to a trillion parameters: 40 % GPT, 40 % Llama, 20 % Llama with experts.
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
    """Draw one point; return ``None`` if its model, training and configuration do not fit together."""
    seq_length = int(rng.choice([1024, 2048, 2048, 4096, 4096, 4096, 8192, 8192, 16384, 32768, 65536, 131072]))
    model = _draw_model(rng, seq_length)
    if not 1e8 <= model.num_parameters <= 1.1e12:
        return None
    config = _draw_config(rng, model, seq_length)
    if config is None:
        return None
    flash = seq_length > 8192 or config.context_parallel_size > 1 or rng.random() < 0.75
    training = _draw_training(rng, config, seq_length, flash)
    try:
        LocalShapes.of(model, training, config)
    except ValueError:
        return None
    return Point(model=model, training=training, config=config, stage=_draw_stage(rng, config))


def _draw_training(rng: np.random.Generator, config: ParallelConfig, seq_length: int, flash: bool) -> TrainingSpec:
    microbatches = _draw_microbatches(rng, config)
    precision = str(rng.choice(["bf16"] * 7 + ["fp16"] * 2 + ["fp32"]))
    narrow = rng.random() < 0.1
    return TrainingSpec(
        global_batch_size=microbatches * config.data_parallel_size * config.micro_batch_size,
        seq_length=seq_length,
        precision=precision,  # type: ignore[arg-type]
        accumulate_allreduce_grads_in_fp32=bool(rng.random() < 0.75),
        attention_kernel="flash" if flash else "unfused",
        fp8=bool(precision != "fp32" and rng.random() < 0.12),
        main_params_dtype="fp16" if narrow and rng.random() < 0.3 else "fp32",
        exp_avg_dtype=str(rng.choice(_NARROW)) if narrow else "fp32",  # type: ignore[arg-type]
        exp_avg_sq_dtype=str(rng.choice(_NARROW)) if narrow else "fp32",  # type: ignore[arg-type]
    )


def _draw_model(rng: np.random.Generator, seq_length: int) -> ModelSpec:
    kind = rng.random()
    gpt = bool(kind < 0.4)
    kv_channels = int(rng.choice(_HEAD_SIZES if gpt else (64, 128, 128, 128)))
    hidden = 2.0 ** rng.uniform(np.log2(512), np.log2(25600 if kind < 0.8 else 8192))
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
    llama = ModelSpec(
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
    return llama if kind < 0.8 else _with_experts(rng, llama)


def _with_experts(rng: np.random.Generator, model: ModelSpec) -> ModelSpec:
    """
    Return the model with a few large experts like Mixtral, or with many small ones.

    Many small experts may come with shared experts and with dense layers first.
    """
    experts = int(rng.choice([8, 8, 16, 32, 64, 64, 128, 256]))
    few = experts <= 16
    width = model.ffn_hidden_size if few else 128 * max(round(model.hidden_size * rng.uniform(0.25, 1.0) / 128), 1)
    shared = int(rng.choice([0, 1, 2])) if not few else 0
    return replace(
        model,
        name="moe",
        num_experts=experts,
        moe_router_topk=int(rng.choice([1, 2, 2])) if few else int(rng.choice([4, 6, 8])),
        moe_ffn_hidden_size=width,
        moe_shared_expert_intermediate_size=shared * width,
        num_dense_layers=int(rng.choice([0, 0, 1, 3])) if not few else 0,
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
    cp = int(rng.choice([2, 4, 8, 16])) if seq_length >= 8192 and rng.random() < 0.5 else 1
    if seq_length % (2 * cp * tp):
        return None
    recompute = _RECOMPUTE[rng.integers(len(_RECOMPUTE))]
    several = recompute == "full" and rng.random() < 0.4
    distributed = bool(rng.random() < 0.6)
    dp = int(2 ** rng.integers(0, 9))
    ep, etp = 1, None
    if model.num_experts is not None:
        etp = int(rng.choice([1, tp]))
        ep = min(int(2 ** rng.integers(0, 7)), model.num_experts, max(dp * cp * tp // etp, 1))
    return ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        micro_batch_size=int(rng.choice([1, 1, 1, 2, 2, 4, 4, 8, 16])),
        layers_per_stage=layers,
        context_parallel_size=cp,
        virtual_pipeline_model_parallel_size=vpp,
        sequence_parallel=bool(tp > 1 and (model.num_experts is not None or rng.random() < 0.75)),
        recompute_granularity=recompute,
        recompute_method="block" if several and rng.random() < 0.5 else "uniform",
        recompute_num_layers=int(rng.integers(1, 9)) if several else 1,
        use_distributed_optimizer=distributed,
        zero_stage=int(rng.choice([2, 3])) if distributed and pp == 1 and rng.random() < 0.4 else None,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
    )


def _draw_layers(rng: np.random.Generator, num_layers: int, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each stage: equal, or with other numbers on the first and last stage, as Megatron allows."""
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
    """Return the micro-batches per replica; with interleaving a multiple of the stages, as Megatron demands."""
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
