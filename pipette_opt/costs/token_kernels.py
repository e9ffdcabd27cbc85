"""
Kernels of the ``flex`` dispatcher, which replace all-to-alls: their rates, and the multiprocessors that they use.

Rates are of multiprocessors, since that is what bounds them where a link does not. They are published by the authors of
the kernels, for 4,096 tokens of 7,168 elements and 8 experts each (github.com/deepseek-ai/DeepEP,
``Hybrid-EP_Implementation.md``), as bytes that arrive, those of the rank itself included; here without those, the mean
of dispatch and combine. Between hosts either attains 43 to 45 GB/s of a NIC of 50 (H100, 32 and 64 ranks; the same
page, and ``docs/legacy.md``), which is what a NIC is taken to attain anyway.

Compute beside them is slowed down as beside NCCL. That it has the multiprocessors that are left, and takes so much
longer, was tried and left out: predictions of the 16 published runs in which it counts, 7 % too long in the mean
without it, were 9 % too long (``benchmarks/latent_models.py``, back-test of vendors' tables).

Megatron-Core sends bf16 both ways: it refuses fp8 for HybridEP, and hands DeepEP its activations as they are
(``moe/fused_a2a.py``).
"""

from typing import NamedTuple

from pipette_opt.specs import TrainingSpec


class TokenKernels(NamedTuple):
    """
    One library of kernels.

    Parameters
    ----------
    inside_bytes_per_s
        Bytes per second of a multiprocessor over NVLink, in a group inside one NVLink domain.
    across_bytes_per_s
        Bytes per second of a multiprocessor over NVLink, in a group over several domains.
    multiprocessors
        Default number of multiprocessors.
    """

    inside_bytes_per_s: float
    across_bytes_per_s: float
    multiprocessors: int


TOKEN_KERNELS = {
    "deepep": TokenKernels(16.5e9, 8.25e9, 20),
    "hybridep": TokenKernels(36e9, 36e9, 24),
}
"""
By Megatron-Core's ``moe_flex_dispatcher_backend``.

DeepEP: 494 and 420 GB/s with 24 multiprocessors on 8 B200, proportional from 16 to 32 and measured alike on H100 and
B200 from 4 on (``benchmarks/results/silicon.md``). Across domains one half of them sends through the NIC and the other
hands on (``num_channels = num_sms / 2``). HybridEP: 613 to 638 and 543 to 566 GB/s with 16 on 24 to 36 GB200; with 32
it attains what NVLink does. Between hosts it was bound by NICs from 8 on. Usual numbers: Megatron-Core's.
"""


def most_sent_bytes_per_s(training: TrainingSpec) -> tuple[float, float]:
    """
    Largest rate of a rank's kernels over NVLink, in a group inside an NVLink domain and across, bytes/s; often
    infinite.
    """
    if training.moe_token_dispatcher_type != "flex":
        return float("inf"), float("inf")
    kernels = TOKEN_KERNELS[training.moe_flex_dispatcher_backend]
    used = training.moe_flex_dispatcher_num_sms or kernels.multiprocessors
    return kernels.inside_bytes_per_s * used, kernels.across_bytes_per_s * used
