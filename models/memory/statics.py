"""
Tensors that a rank of a stage always holds: weights, gradients and optimizer state, or its shards of them under ZeRO.

In 16 bits with fp32 gradients, a parameter takes 2 + 4 + 12 bytes. ZeRO (Rajbhandari et al., arXiv 1910.02054, section
5) divides the 12 bytes among the replicas (stage 1), then also the gradients (2), then also the weights (3). Shards are
gathered unit by unit: a layer, the embeddings or the head. The next unit is gathered while one is in use. So two
buffers of the largest units are held, as in Megatron-FSDP and PyTorch's FSDP. Experts have replicas of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import nn

from models.memory.transformer.layers import Chunk
from pipette_opt.base.units import ceil_div
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.training import BYTES


class _Parameter(NamedTuple):
    """Size of one parameter in elements, its shape, and whether it is an expert's and a layer's matrix."""

    size: int
    shape: tuple[int, ...]
    expert: bool
    matrix: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSizes:
    """
    Sizes of the tensors that a rank always holds, each a tuple of bytes by tensor.

    Parameters
    ----------
    num_parameters
        Parameters that the rank works with.
    weights, copies, gradients
        Buffers that exist from the start; copies are fp8 copies and the buffers that ZeRO gathers into.
    placeholders
        Empty gradients of matrices, one for each shape; they exist from the first backward pass on.
    optimizer
        The whole optimizer state: ``master`` and ``moments`` together.
    master, moments
        Master copy of each parameter, held from the start, and its Adam moments, held from the first step on.
    step
        Temporary bytes of the optimizer step for each parameter.
    """

    num_parameters: int
    weights: tuple[int, ...]
    copies: tuple[int, ...]
    gradients: tuple[int, ...]
    placeholders: tuple[int, ...]
    optimizer: tuple[int, ...]
    master: tuple[int, ...]
    moments: tuple[int, ...]
    step: tuple[int, ...]

    def during_passes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the bytes of the buffers by kind, as they are from the second iteration on."""
        return {
            "weights": (*self.weights, *self.copies),
            "gradients": self.gradients,
            "placeholders": self.placeholders,
            "optimizer": self.optimizer,
        }


def static_sizes(chunks: nn.ModuleList, training: TrainingSpec, config: ParallelConfig) -> StaticSizes:
    """Return the sizes for the modules of a stage."""
    units = [unit for unit in _units(chunks) if unit]
    parameters = [tensor for unit in units for tensor in unit]
    zero, replicas = config.sharding_stage, config.data_parallel_size * config.context_parallel_size
    own = config.expert_model_parallel_size * config.expert_tensor_size
    expert_replicas = replicas * config.tensor_model_parallel_size // own

    def share(size: int, expert: bool, from_stage: int) -> int:
        return ceil_div(size, expert_replicas if expert else replicas) if zero >= from_stage else size

    kinds = [(expert, sum(tensor.size for tensor in parameters if tensor.expert == expert)) for expert in (False, True)]
    kinds = [(expert, size) for expert, size in kinds if size]
    quantised = training.fp8_copies * training.fp8
    largest = sorted((sum(tensor.size for tensor in unit) for unit in units), reverse=True)[:2]
    matrices = sorted((sum(tensor.size for tensor in unit if tensor.matrix) for unit in units), reverse=True)[:2]
    e, g = training.parameter_bytes, training.gradient_bytes
    if zero == 0:
        weights = [e * tensor.size for tensor in parameters]
    else:
        weights = [e * share(size, expert, 3) for expert, size in kinds]
    if zero == 3:
        copies = [e * size for size in largest] + [quantised * size for size in matrices if quantised]
    else:
        copies = [quantised * tensor.size for tensor in parameters if tensor.matrix and quantised]
    gradients = [g * share(size, expert, 2) for expert, size in kinds]
    if zero >= 2:
        gradients += [g * size for size in largest]
    shapes = sorted({tensor.shape for tensor in parameters if tensor.matrix and zero < 2})
    owned = [share(tensor.size, tensor.expert, 1) for tensor in parameters]
    master = 0 if training.precision == "fp32" else BYTES[training.main_params_dtype]
    moments = (BYTES[training.exp_avg_dtype], BYTES[training.exp_avg_sq_dtype])
    return StaticSizes(
        num_parameters=sum(tensor.size for tensor in parameters),
        weights=tuple(weights),
        copies=tuple(copies),
        gradients=tuple(gradients),
        placeholders=tuple(e * rows * columns for rows, columns in shapes),
        optimizer=tuple(round(training.optimizer_bytes * share(size, expert, 1)) for expert, size in kinds),
        master=tuple(master * size for size in owned if master),
        moments=tuple(moment * size for size in owned for moment in moments),
        step=tuple(training.step_bytes * size for size in owned if training.step_bytes),
    )


def _units(chunks: nn.ModuleList) -> Iterator[list[_Parameter]]:
    """Yield the parameters of the embeddings, of each layer, and of the head; a shared table counts once."""
    seen: set[int] = set()
    for chunk in chunks:
        part = cast(Chunk, chunk)
        for unit, is_layer in (
            (part.embeddings, False),
            *((layer, True) for layer in part.layers),
            (part.head, False),
        ):
            if unit is None:
                continue
            found = []
            for name, parameter in unit.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    expert = ".up_weights." in name or ".down_weights." in name
                    matrix = is_layer and parameter.dim() == 2 and "router" not in name
                    found.append(_Parameter(parameter.numel(), tuple(parameter.shape), expert, matrix))
            yield found
