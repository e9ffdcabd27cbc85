"""
What a trace cannot see: the few constants between counted tensors and the memory of a device.

They are allowances, not fits. The capacities of a plan are what they leave.
"""

from dataclasses import dataclass

from pipette_opt.base.units import GIB, MIB
from pipette_opt.specs import GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverhead:
    """
    Allowances for what is not a tensor of the model.

    Parameters
    ----------
    context_bytes
        CUDA context and loaded kernels of PyTorch, cuBLAS and the attention library in one process. An assumption.
    communicator_bytes
        NCCL's buffers: three groups (tensor, data, pipeline) of 0.54 to 0.69 GB each, as reported for 4 A100 with
        NVLink in github.com/NVIDIA/nccl issue 964.
    library_bytes
        cuBLAS and cuBLASLt workspaces, 32 MiB for each handle and stream on Hopper
        (github.com/pytorch/pytorch pull request 120925), and those of fused kernels.
    fragmentation
        Reserved by the caching allocator over allocated, at the peak.
    stack_spread
        Standard deviation of ``log(real / predicted)`` over software stacks and versions: kernels that keep more or
        less, unfused operations, buffers of overlapped communication. An assumption until runs are measured.
    """

    context_bytes: int = 512 * MIB
    communicator_bytes: int = 2 * GIB
    library_bytes: int = 128 * MIB
    fragmentation: float = 1.04
    stack_spread: float = 0.03

    @property
    def reserve_bytes(self) -> int:
        """What the job cannot use of a device's memory, whatever the configuration."""
        return self.context_bytes + self.communicator_bytes + self.library_bytes

    def usable_bytes(self, gpu: GpuSpec) -> int:
        """What the tensors of a stage, fragmentation included, may take."""
        return max(gpu.memory_bytes - self.reserve_bytes, 0)


DEFAULT_OVERHEAD = MemoryOverhead()
