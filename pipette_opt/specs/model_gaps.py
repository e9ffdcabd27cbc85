"""Parts of a model that change its time or memory, but that the estimates do not count."""

from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.not_modelled import NotModelled
from pipette_opt.specs.training import TrainingSpec


def not_modelled_of(model: ModelSpec, training: TrainingSpec | None) -> tuple[NotModelled, ...]:
    """
    Return the parts of a model that the estimates leave out, named by Megatron-LM's arguments.

    Parameters
    ----------
    training
        Training job; ``None`` assumes that sequences are longer than any window.
    """
    return (
        *_window(model, training),
        *_activation(model),
        *_softmax(model),
        *_no_positions(model),
        *_parallel_residual(model),
        *_norm_across_heads(model),
        *_recurrent(model),
        *_sparse(model),
    )


def _window(model: ModelSpec, training: TrainingSpec | None) -> tuple[NotModelled, ...]:
    """Return a note if unfused attention is counted over the whole sequence although layers have a shorter window."""
    if model.window_size is None or not model.num_windowed_layers:
        return ()
    if training is None or training.attention_kernel == "flash":
        return ()
    before = model.window_size[0]
    if before + 1 >= training.seq_length:
        return ()
    return (
        NotModelled(
            option="--window-size",
            value=",".join(map(str, model.window_size)),
            effect="time",
            direction="less",
            why=f"Attention of {model.num_windowed_layers} of {model.num_layers} layers sees {before + 1:,} tokens; "
            "without a fused kernel it is counted over the whole sequence.",
        ),
    )


def _activation(model: ModelSpec) -> tuple[NotModelled, ...]:
    if model.activation_func is None:
        return ()
    named = {"squared_relu": "--squared-relu", "quick_gelu": "--quick-geglu", "gelu": "activation_func"}
    counted = "GELU" if model.activation_func == "squared_relu" else "SwiGLU"
    return (
        NotModelled(
            option=named[model.activation_func],
            effect="both",
            direction="more",
            why=f"Counted as {counted}, one kernel that keeps its input only; this activation may need several "
            "kernels.",
        ),
    )


def _softmax(model: ModelSpec) -> tuple[NotModelled, ...]:
    if model.softmax_type == "vanilla":
        return ()
    return (
        NotModelled(
            option="--softmax-type",
            value=model.softmax_type,
            effect="time",
            direction="more",
            why="The kernels for this softmax are slower than those whose speed is assumed.",
        ),
    )


def _no_positions(model: ModelSpec) -> tuple[NotModelled, ...]:
    if model.no_rope_freq is None:
        return ()
    value = model.no_rope_freq
    return (
        NotModelled(
            option="--no-rope-freq",
            value=str(value) if isinstance(value, int) else str(list(value)),
            effect="both",
            direction="less",
            why="Kernels for rotary positions are counted also in layers that have none.",
        ),
    )


def _parallel_residual(model: ModelSpec) -> tuple[NotModelled, ...]:
    if not model.parallel_residual:
        return ()
    return (
        NotModelled(
            option="parallel_residual",
            effect="time",
            direction="less",
            why="Attention and MLP can share one reduction over tensor ranks; two are counted.",
        ),
    )


def _norm_across_heads(model: ModelSpec) -> tuple[NotModelled, ...]:
    if not model.qk_layernorm_across_heads:
        return ()
    return (
        NotModelled(
            option="qk_layernorm_across_heads",
            effect="time",
            direction="more",
            why="Tensor ranks sum the squares of their heads before queries and keys are normalised; not counted.",
        ),
    )


def _recurrent(model: ModelSpec) -> tuple[NotModelled, ...]:
    """
    Return notes for Mamba-2 and delta-net layers: published times are longer than counted (``docs/layer-lists.md``),
    and no peak of memory was measured.
    """
    count = model.num_recurrent_layers
    if not count:
        return ()
    option = "--experimental-attention-variant" if model.mamba is None else "--hybrid-layer-pattern"
    return (
        NotModelled(
            option=option,
            effect="time",
            direction="more",
            why=f"Scans of {count} layers are counted; NVIDIA's jobs of Nemotron 3 take 1.2 to 1.8 times as long.",
        ),
        NotModelled(
            option=option,
            effect="memory",
            direction="either",
            why=f"Activations of {count} layers with a state are counted; no measured peak of such layers is known.",
        ),
    )


def _sparse(model: ModelSpec) -> tuple[NotModelled, ...]:
    if model.sparse_attention is None:
        return ()
    option = "--experimental-attention-variant"
    return (
        NotModelled(
            option=option,
            effect="time",
            direction="either",
            why="Sparse attention has the rates of TileLang's kernels on one H200; other GPUs and cuDNN's kernels were "
            "not measured, and without --dsa-kernel-backend it takes 2 to 10 times as long.",
        ),
        NotModelled(
            option=option,
            effect="memory",
            direction="more",
            why="What sparse attention keeps is counted as measured for fused kernels; temporary scores and gradients "
            "are not, nor the 15 to 32 times that it keeps without --dsa-kernel-backend.",
        ),
    )
