"""Parts of a model that change its time or memory, but that the estimates do not count."""

from collections.abc import Iterator

from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.not_modelled import Direction, Effect, NotModelled
from pipette_opt.specs.training import TrainingSpec

ACTIVATIONS = {"squared_relu": "--squared-relu", "quick_gelu": "--quick-geglu", "gelu": "activation_func"}
"""Option of each activation other than SwiGLU and GELU; the field where Megatron-LM has no option."""


def not_modelled_of(model: ModelSpec, training: TrainingSpec | None) -> tuple[NotModelled, ...]:
    """
    Return the parts of a model that the estimates leave out, named by Megatron-LM's arguments.

    Parameters
    ----------
    training
        Training job; ``None`` assumes that sequences are longer than any window.
    """
    return (*_window(model, training), *_of_layers(model), *_of_mixers(model))


def _note(
    option: str, effect: Effect, direction: Direction, why: str, value: str = "", *, is_large: bool = False
) -> NotModelled:
    return NotModelled(option=option, value=value, effect=effect, direction=direction, why=why, is_large=is_large)


def _window(model: ModelSpec, training: TrainingSpec | None) -> Iterator[NotModelled]:
    """Yield a note if unfused attention is counted over the whole sequence although layers have a shorter window."""
    if model.window_size is None or not model.num_windowed_layers:
        return
    if training is None or training.attention_kernel == "flash" or model.window_size[0] + 1 >= training.seq_length:
        return
    why = (
        f"Attention of {model.num_windowed_layers} of {model.num_layers} layers sees {model.window_size[0] + 1:,} "
        "tokens; without a fused kernel it is counted over the whole sequence."
    )
    yield _note("--window-size", "time", "less", why, ",".join(map(str, model.window_size)))


def _of_layers(model: ModelSpec) -> Iterator[NotModelled]:
    """Yield notes on activation, softmax, positions, residuals and norms."""
    if model.activation_func is not None:
        counted = "GELU" if model.activation_func == "squared_relu" else "SwiGLU"
        why = f"Counted as {counted}, one kernel that keeps its input only; this activation may need several kernels."
        yield _note(ACTIVATIONS[model.activation_func], "both", "more", why)
    if model.softmax_type != "vanilla":
        why = "The kernels for this softmax are slower than those whose speed is assumed."
        yield _note("--softmax-type", "time", "more", why, model.softmax_type)
    if (frequency := model.no_rope_freq) is not None:
        why = "Kernels for rotary positions are counted also in layers that have none."
        value = str(frequency) if isinstance(frequency, int) else str(list(frequency))
        yield _note("--no-rope-freq", "both", "less", why, value)
    if model.parallel_residual:
        why = "Attention and MLP can share one reduction over tensor ranks; two are counted."
        yield _note("parallel_residual", "time", "less", why)
    if model.qk_layernorm_across_heads:
        why = "Tensor ranks sum the squares of their heads before queries and keys are normalised; not counted."
        yield _note("qk_layernorm_across_heads", "time", "more", why)


def _of_mixers(model: ModelSpec) -> Iterator[NotModelled]:
    """Yield notes on layers with a state, whose published times are longer (``docs/layer-lists.md``), and on DSA."""
    variant, count = "--experimental-attention-variant", model.num_recurrent_layers
    if count:
        option = variant if model.mamba is None else "--hybrid-layer-pattern"
        why = f"Scans of {count} layers are counted; NVIDIA's jobs of Nemotron 3 take 1.2 to 1.8 times as long."
        yield _note(option, "time", "more", why, is_large=True)
        why = f"Activations of {count} layers with a state are counted; no measured peak of such layers is known."
        yield _note(option, "memory", "either", why)
    if model.sparse_attention is not None:
        why = (
            "Sparse attention has the rates of TileLang's kernels on one H200; other GPUs and cuDNN's kernels were "
            "not measured, and without --dsa-kernel-backend it takes 2 to 10 times as long."
        )
        yield _note(variant, "time", "either", why, is_large=True)
        why = (
            "What sparse attention keeps is counted as measured for fused kernels; temporary scores and gradients "
            "are not, nor the 15 to 32 times that it keeps without --dsa-kernel-backend."
        )
        yield _note(variant, "memory", "more", why)
