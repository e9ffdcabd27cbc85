"""
Time of convolution, scan and gated norm in a layer that mixes tokens by a state (Mamba, gated delta net).

A scan is several kernels, each of which waits for memory or for its products. Megatron-Core's (mamba_ssm,
flash-linear-attention) are written in Triton and attain a fraction of both.
"""

from pipette_opt.costs.products import peak_flops
from pipette_opt.layers.recurrent import SCAN_KERNELS, RecurrentBranch
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, LayerKind, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens

SCAN_SHARE = 0.3
"""
Ideal over measured time of a scan. Ideal: its products at the dense peak plus its traffic at full memory bandwidth.

Medians of kernels with 8,192 tokens and more, by framework: gated delta net in Triton 0.33 and 0.55 on H100, 0.26 and
0.30 on B200, 0.20 and 0.29 on GB200; Mamba-2 0.25 on B200. FlashInfer's gated delta net, which Megatron-Core does not
have, is four to eight times as fast (``linear_attention_*.csv.gz`` of NVIDIA's AIConfigurator,
github.com/ai-dynamo/aiconfigurator at 095f58a, Apache-2.0).
"""

SCAN_BACKWARD = 3.0
"""
Time of the scan's backward over the forward's. Counted; kernels on one H200 took 2.7 (gated delta net, 8,192 tokens,
flash-linear-attention 0.6) and 3.3 to 3.5 (Mamba-2, ``benchmarks/results/sparse-attention.md``).

The states of all chunks are computed once more, and each product has two in the backward.
"""

STREAM_PASSES = (2.0, 4.0)
"""Number of times that the convolution's channels are read or written, forward and backward. Counted."""

NORM_PASSES = (3.0, 6.0)
"""
Number of times that the gated norm reads or writes the heads' channels, forward and backward. Counted.

Values, gate and result; in the backward also their gradients.
"""


def scan_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[float, float]:
    """Return the forward and backward time of a layer's scan, seconds; 0 for layers without a state."""
    branch = model.mixer(kind)
    if not isinstance(branch, RecurrentBranch):
        return 0.0, 0.0
    mixer = branch.sizes
    tokens = micro_batch_tokens(training, config) / config.tensor_model_parallel_size
    scan = mixer.scan_flops / peak_flops(gpu, training) + mixer.scan_bytes / gpu.memory_bytes_per_s
    element = training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    streams = [element * (STREAM_PASSES[way] * mixer.conv_size + NORM_PASSES[way] * mixer.out_size) for way in (0, 1)]
    start = SCAN_KERNELS * rates.kernel_s
    return (
        tokens * (scan / SCAN_SHARE + streams[0]) + start,
        tokens * (SCAN_BACKWARD * scan / SCAN_SHARE + streams[1]) + 2 * start,
    )
