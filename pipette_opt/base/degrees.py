"""Parallel degrees and the micro-batch, with every name that users, tables and Megatron-LM give them."""

from typing import NamedTuple


class Degree(NamedTuple):
    """
    Number that divides the work of a job, and its names.

    Parameters
    ----------
    short
        Name in labels and columns of tables: ``tp``.
    option
        Field of the search space, which is also the option of the command line: ``tensor_parallel``.
    field
        Field of a configuration, as in Megatron-Core.
    aliases
        Further names of the option, with dashes.
    plain
        Words that only name it in the text of a configuration.
    megatron
        Option of Megatron-LM with underscores, if not ``field``.
    value
        Property of a configuration with the number that counts, if not ``field``.
    """

    short: str
    option: str
    field: str
    aliases: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    megatron: str = ""
    value: str = ""

    @property
    def megatron_option(self) -> str:
        """Option of Megatron-LM, with underscores."""
        return self.megatron or self.field

    @property
    def number(self) -> str:
        """Property of a configuration with the number that counts."""
        return self.value or self.field

    @property
    def word(self) -> str:
        """Word for texts: ``expert``."""
        return self.plain[0] if self.plain else self.short

    @property
    def names(self) -> tuple[str, ...]:
        """Other names of the option, with dashes, the shortest first."""
        long = (name.replace("_", "-") for name in (self.field, self.megatron_option) if name != self.option)
        return tuple(dict.fromkeys((self.short, *self.aliases, *long)))


TENSOR = Degree("tp", "tensor_parallel", "tensor_model_parallel_size", ("tensor-parallel-size",), ("tensor",))

PIPELINE = Degree("pp", "pipeline_parallel", "pipeline_model_parallel_size", ("pipeline-parallel-size",), ("pipeline",))

DATA = Degree("dp", "data_parallel", "data_parallel_size", plain=("data",))

CONTEXT = Degree("cp", "context_parallel", "context_parallel_size", plain=("context",))

CONTEXT_A2A = Degree("ulysses", "context_a2a", "context_a2a_size")
"""Ranks of a context group that exchange heads: the first of Megatron's ``hierarchical_context_parallel_sizes``."""

EXPERT = Degree("ep", "expert_parallel", "expert_model_parallel_size", ("expert-parallel-size",), ("expert", "experts"))

EXPERT_TENSOR = Degree("etp", "expert_tensor_parallel", "expert_tensor_parallel_size", value="expert_tensor_size")

CHUNKS = Degree(
    "vpp",
    "virtual_pipeline",
    "virtual_pipeline_model_parallel_size",
    ("virtual-pipeline-parallel-size",),
    ("chunks",),
    megatron="num_virtual_stages_per_pipeline_rank",
    value="num_chunks",
)

MICRO_BATCH = Degree("mbs", "micro_batch_size", "micro_batch_size", plain=("micro-batch",))

DEGREES = (TENSOR, PIPELINE, DATA, CONTEXT, CONTEXT_A2A, EXPERT, EXPERT_TENSOR, CHUNKS, MICRO_BATCH)
"""Degrees in the order in which options and labels name them."""
