"""Number of micro-batches that a replica runs in one iteration of a job."""

from typing import Protocol

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.config import ParallelConfig


class Batch(Protocol):
    """Fields of a job that describe its global batch; :class:`~pipette_opt.specs.TrainingSpec` has them."""

    @property
    def global_batch_size(self) -> int:
        """Sequences per iteration over all replicas."""

    @property
    def unequal_microbatches(self) -> bool:
        """Return whether replicas may run different numbers of micro-batches."""


def microbatches_of(batch: Batch, config: ParallelConfig) -> int:
    """
    Return the micro-batches of one replica in one iteration; of the largest replica if the job lets them differ.

    Raises ``InputError`` if the global batch does not divide into whole micro-batches, or if a replica gets none.
    """
    try:
        return config.num_microbatches(batch.global_batch_size, unequal=batch.unequal_microbatches)
    except ValueError as error:
        raise InputError("global_batch_size", str(error)) from error
