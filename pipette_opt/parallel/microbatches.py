"""How many micro-batches a replica runs in one iteration of a job."""

from typing import Protocol

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.config import ParallelConfig


class Batch(Protocol):
    """What a job says of its global batch, as :class:`~pipette_opt.specs.TrainingSpec` does."""

    @property
    def global_batch_size(self) -> int:
        """Sequences of one iteration."""

    @property
    def unequal_microbatches(self) -> bool:
        """Whether replicas may run different numbers of micro-batches."""


def microbatches_of(batch: Batch, config: ParallelConfig) -> int:
    """
    Micro-batches of one replica in one iteration; of those that have most where the job lets replicas differ.

    Raises ``InputError`` if micro-batches do not come out whole, or if a replica has none.
    """
    try:
        return config.num_microbatches(batch.global_batch_size, unequal=batch.unequal_microbatches)
    except ValueError as error:
        raise InputError("global_batch_size", str(error)) from error
