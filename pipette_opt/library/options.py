"""A job as people say it, be it as options of a command or as arguments of a function."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pipette_opt.read.megatron_args import MegatronArgs
    from pipette_opt.specs import ClusterSpec, ModelSpec

OF_TRAINING = (
    "global_batch_size",
    "seq_length",
    "micro_batches",
    "precision",
    "fp8",
    "fp8_recipe",
    "attention_kernel",
    "expert_imbalance",
    "expert_loads",
    "expert_placement",
    "moe_token_dispatcher",
    "overlap_moe_expert_parallel_comm",
    "cuda_graph",
    "tp_comm_overlap",
)
"""Options that a :class:`TrainingSpec` says itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """
    A job, as people say it. Errors name a field as the option of the command line, ``--global-batch-size``.

    Parameters
    ----------
    cluster
        A cluster file, or what it would say.
    nodes, gpu, nics, gpus_per_node
        Instead of it, where no link was measured: number of hosts or their names, kind of GPU, ``8x400`` (NICs times
        Gbit/s of each), GPUs of a host.
    model
        A preset's name, a Hugging Face ``config.json``, a file of Megatron arguments, or what they would say.
    vocab_size
        Entries of the vocabulary, of Megatron arguments that leave it to a tokenizer.
    env
        Variables of launch scripts, each ``NAME=VALUE``.
    global_batch_size
        Sequences of an iteration.
    seq_length
        Tokens of a sequence.
    micro_batches
        ``equal``: every replica has as many; ``unequal``: any number of replicas shares the batch.
    example
        A shipped example, which says whatever else is not given.
    precision
        ``bf16``, ``fp16`` or ``fp32``; the example's, or bf16.
    fp8
        Whether products of the layers are in 8 bits.
    fp8_recipe
        Scales of these: ``delayed``, ``tensorwise``, ``blockwise`` or ``mxfp8``; the Megatron arguments', or delayed.
    attention_kernel
        ``flash`` or ``unfused``.
    profile
        Measured times of layers.
    calibration
        Stack: a file that calibrating wrote, or a shipped name.
    num_gpus
        GPUs to use; all of the cluster, or fewer hosts where that is faster.
    gpu_price
        Price of a GPU-hour by hosts, each ``gpu[01-04]=2.5``.
    exclude_hosts
        Hosts not to use, ``gpu03,gpu[07-09]``.
    speed
        Hosts that run at a share of their peak, each ``gpu[03-04]=0.8``.
    launcher
        ``torchrun``, ``slurm`` or ``mpi``: what rank maps can be launched.
    p2p
        ``blocking`` or ``async`` sends between stages.
    allreduce
        How gradients cross hosts: ``ring``, ``hierarchical`` or ``tree``.
    expert_imbalance
        Tokens of the busiest rank of experts over the mean, at least 1.
    expert_loads
        Loads of single experts: a file with a number for each, a line or one for each layer; or ``zipf:1.2``.
    expert_placement
        Experts of a rank: ``listed``, as launched; ``balanced`` by these loads, which no launcher does.
    moe_token_dispatcher
        ``alltoall``, ``allgather`` or ``flex``.
    overlap_moe_expert_parallel_comm
        Whether tokens travel beside the compute of another micro-batch.
    cuda_graph
        Whether layers are launched as CUDA graphs.
    tp_comm_overlap
        Whether tensor ranks send beside the products, inside an NVLink domain; ``None`` where a search chooses, which
        is off elsewhere.
    """

    cluster: "Path | ClusterSpec | None" = None
    nodes: str | None = None
    gpu: str | None = None
    nics: str | None = None
    gpus_per_node: int | None = None
    model: "str | ModelSpec | None" = None
    vocab_size: int | None = None
    env: list[str] | None = None
    global_batch_size: int | None = None
    seq_length: int | None = None
    micro_batches: str | None = None
    example: str | None = None
    precision: str | None = None
    fp8: bool = False
    fp8_recipe: str | None = None
    attention_kernel: str = "flash"
    profile: Path | None = None
    calibration: str | None = None
    num_gpus: int | None = None
    gpu_price: list[str] | None = None
    exclude_hosts: str | None = None
    speed: list[str] | None = None
    launcher: str = "slurm"
    p2p: str = "blocking"
    allreduce: str = "ring"
    expert_imbalance: float = 1.0
    expert_loads: str | None = None
    expert_placement: str = "listed"
    moe_token_dispatcher: str | None = None
    overlap_moe_expert_parallel_comm: bool = False
    cuda_graph: bool = False
    tp_comm_overlap: bool | None = None

    def filled_in(self, arguments: "MegatronArgs") -> Self:
        """The options with what Megatron arguments say where they are silent."""
        said = {
            name: getattr(arguments, name)
            for name in ("global_batch_size", "seq_length", "precision")
            if getattr(self, name) is None
        }
        return replace(self, fp8=self.fp8 or arguments.fp8, **said)
