"""
Rates of the ``flex`` dispatcher's kernels, which replace all-to-alls, and the multiprocessors that they use.

Rates are per multiprocessor, since multiprocessors bound them where a link does not. They are published by the authors
of the kernels, for 4,096 tokens of 7,168 elements and 8 experts each (github.com/deepseek-ai/DeepEP,
``Hybrid-EP_Implementation.md``), as bytes that arrive, including the rank's own. The constants are without the own
bytes, and the mean of dispatch and combine. Between hosts, both libraries attain 43 to 45 GB/s of a NIC of 50 (H100, 32
and 64 ranks; ``Hybrid-EP_Implementation.md`` and ``docs/legacy.md``), which a NIC is taken to attain anyway.

Compute during these kernels is slowed down as during NCCL's. A model in which compute has only the remaining
multiprocessors was tried and left out: predictions of the 16 published runs in which it counts were 9 % too long in the
mean, and 7 % without it (``benchmarks/latent_models.py``, back-test of vendors' tables).

Megatron-Core sends bf16 in both directions: it refuses fp8 for HybridEP, and passes DeepEP its activations as they are
(``moe/fused_a2a.py``).
"""

from typing import NamedTuple

from pipette_opt.specs import TrainingSpec


class TokenKernels(NamedTuple):
    """
    Library of token-exchange kernels.

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
Libraries by Megatron-Core's ``moe_flex_dispatcher_backend``.

DeepEP: 494 and 420 GB/s with 24 multiprocessors on 8 B200, proportional from 16 to 32 and measured alike on H100 and
B200 from 4 on (``benchmarks/results/silicon.md``). Across domains, one half of them sends through the NIC and the other
half forwards (``num_channels = num_sms / 2``). HybridEP: 613 to 638 and 543 to 566 GB/s with 16 on 24 to 36 GB200; with
32 it attains what NVLink does. Between hosts, it was bound by NICs from 8 on. Default numbers of multiprocessors are
Megatron-Core's.
"""


def most_sent_bytes_per_s(training: TrainingSpec) -> tuple[float, float]:
    """
    Return the largest rates of a rank's kernels over NVLink, bytes/s: in a group inside an NVLink domain, and across.

    Infinite unless the dispatcher is ``flex``.
    """
    if training.moe_token_dispatcher_type != "flex":
        return float("inf"), float("inf")
    kernels = TOKEN_KERNELS[training.moe_flex_dispatcher_backend]
    used = training.moe_flex_dispatcher_num_sms or kernels.multiprocessors
    return kernels.inside_bytes_per_s * used, kernels.across_bytes_per_s * used
