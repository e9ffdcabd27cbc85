"""
What a trace cannot see: the few constants between counted tensors and the memory of a device.

They are allowances, not fits; every plan shows them.
"""

from dataclasses import dataclass

from pipette_opt.specs import GpuSpec
from pipette_opt.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverhead:
    """
    Allowances for what is not a tensor of the model.

    Parameters
    ----------
    context_bytes
        CUDA context and loaded kernels of PyTorch, cuBLAS and the attention library in one process.
    communicator_bytes
        NCCL's channel buffers: three or four communicators (tensor, data, pipeline, embedding groups) with a few
        hundred MiB each at NCCL's default 4 MiB buffer per channel, protocol and peer.
    library_bytes
        Workspaces of cuBLAS (32 MiB per handle and stream on Hopper by PyTorch's default) and fused kernels.
    fragmentation
        Reserved by the caching allocator over allocated, at the peak.
    """

    context_bytes: int = 512 * MIB
    communicator_bytes: int = 1 * GIB
    library_bytes: int = 128 * MIB
    fragmentation: float = 1.04

    @property
    def reserve_bytes(self) -> int:
        """What the job cannot use of a device's memory, whatever the configuration."""
        return self.context_bytes + self.communicator_bytes + self.library_bytes

    def usable_bytes(self, gpu: GpuSpec) -> int:
        """What the tensors of a stage, fragmentation included, may take."""
        return max(gpu.memory_bytes - self.reserve_bytes, 0)


DEFAULT_OVERHEAD = MemoryOverhead()
