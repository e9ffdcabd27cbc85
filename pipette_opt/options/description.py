"""
The single declaration of every option that describes a job.

The fields of :class:`JobOptions` and :class:`SpaceOptions` define the options of commands (``cli/options.py``), the
keywords of functions (``library/arguments.py``), job files and their schema (``job/file.py``), columns of ``runs.csv``
(``read/runs.py``) and the page ``docs/job.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_type_hints

Section = Literal["", "cluster", "training", "software", "parallel"]
"""Section of a job file that holds a field; ``""`` is the top level."""

Panel = Literal["The job", "The search space", "The run"]
"""Heading above an option in the help of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """
    Help text, section and allowed values of a field of a job.

    Parameters
    ----------
    help
        One line for the help of commands and the reference page.
    section, panel
        Section of a job file; heading in the help of a command.
    words
        Allowed words; empty if any value is allowed.
    minimum
        Smallest allowed number.
    metavar
        Format of the value in the help, such as ``NAME=VALUE``; ``None`` where the type is enough.
    """

    help: str
    section: Section = ""
    panel: Panel = "The job"
    words: tuple[str, ...] = ()
    minimum: int | None = None
    metavar: str | None = None


def _cluster(help_text: str, **more: Any) -> Option:
    return Option(help=help_text, section="cluster", **more)


def _training(help_text: str, **more: Any) -> Option:
    return Option(help=help_text, section="training", **more)


def _software(help_text: str, **more: Any) -> Option:
    return Option(help=help_text, section="software", **more)


def _parallel(help_text: str, **more: Any) -> Option:
    return Option(help=help_text, section="parallel", panel="The search space", **more)


Sizes = tuple[int, ...]
"""Allowed sizes of a dimension; ``4,8`` on the command line."""

Words = tuple[str | None, ...]
"""Allowed words of a dimension; ``none,full`` on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """
    Model, machines, training and software of a job, as a user writes them.

    Errors name a field by its command-line option, such as ``--global-batch-size``. :func:`field_of` returns a field
    with its help.
    """

    cluster: Annotated[Path | None, _cluster("cluster.yaml, written by `import links`, `init` or by hand.")] = None
    nodes: Annotated[
        str | None,
        _cluster("Instead of --cluster, where no link was measured: number of hosts, or names, e.g. gpu[01-16]."),
    ] = None
    gpu: Annotated[str | None, _cluster("Kind of GPU of these hosts, e.g. h100; `gpus` lists them.")] = None
    nics: Annotated[str | None, _cluster("NICs of these hosts x Gbit/s of each, e.g. 8x400; the GPU's usual ones.")] = (
        None
    )
    gpus_per_node: Annotated[int | None, _cluster("GPUs of these hosts; as usual for the GPU by default.")] = None
    model: Annotated[
        str | None, Option(help="Preset name, Hugging Face config.json, or a file of Megatron arguments.")
    ] = None
    vocab_size: Annotated[
        int | None, Option(help="Vocabulary size, if the Megatron arguments leave it to a tokenizer.", minimum=1)
    ] = None
    env: Annotated[
        list[str] | None,
        Option(help="A variable of the launch script, NAME=VALUE; may be repeated.", metavar="NAME=VALUE"),
    ] = None
    global_batch_size: Annotated[int | None, _training("Sequences per iteration.")] = None
    seq_length: Annotated[int | None, _training("Tokens per sequence.")] = None
    micro_batches: Annotated[
        str | None,
        _training(
            "equal: every replica runs the same number, as launchers need; unequal: any number of replicas shares "
            "the batch (planned only). [default: equal]",
            words=("equal", "unequal"),
        ),
    ] = None
    example: Annotated[
        str | None, Option(help="A shipped example in place of the job's files, e.g. lab-16x8 or lab-2x8.")
    ] = None
    precision: Annotated[
        str | None, _training("bf16, fp16 or fp32; the example's, or bf16.", words=("bf16", "fp16", "fp32"))
    ] = None
    fp8: Annotated[
        bool, _training("Matrix products of the layers in fp8 (Transformer Engine); the rest as --precision says.")
    ] = False
    fp8_recipe: Annotated[
        str | None,
        _training(
            "Scales of fp8: delayed, tensorwise, blockwise or mxfp8; that of the model's script, else delayed.",
            words=("delayed", "tensorwise", "blockwise", "mxfp8"),
        ),
    ] = None
    attention_kernel: Annotated[str, _training("flash or unfused.", words=("flash", "unfused"))] = "flash"
    profile: Annotated[Path | None, _software("CSV of measured layer times, which override the roofline.")] = None
    calibration: Annotated[
        str | None, _software("Stack: a file of `calibrate`, or a shipped name; megatron-core otherwise.")
    ] = None
    num_gpus: Annotated[
        int | None, _cluster("How many GPUs to use; all, or fewer hosts if faster.", panel="The search space")
    ] = None
    gpu_price: Annotated[
        list[str] | None,
        _cluster(
            "Price of a GPU-hour: 2.5, or of hosts, e.g. gpu[03-04]=1.2; may be repeated. Cluster files may say it."
        ),
    ] = None
    exclude_hosts: Annotated[
        str | None, _cluster("Hosts not to use, e.g. gpu03,gpu[07-09].", panel="The search space")
    ] = None
    speed: Annotated[
        list[str] | None,
        _cluster(
            "Hosts that run at a share of their peak, e.g. gpu[03-04]=0.8; may be repeated.", panel="The search space"
        ),
    ] = None
    launcher: Annotated[
        str,
        _software(
            "torchrun (contiguous ranks per host), slurm or mpi (any map).",
            panel="The search space",
            words=("torchrun", "slurm", "mpi"),
        ),
    ] = "slurm"
    p2p: Annotated[
        str,
        _software(
            "blocking (Megatron-Core's 1F1B) or async sends.", panel="The search space", words=("blocking", "async")
        ),
    ] = "blocking"
    allreduce: Annotated[
        str,
        _software(
            "All-reduce of gradients between hosts: ring, hierarchical, or (estimate only) tree.",
            panel="The search space",
            words=("ring", "hierarchical", "tree"),
        ),
    ] = "ring"
    expert_imbalance: Annotated[float, _training("Tokens of the busiest rank of experts over the mean.")] = 1.0
    expert_loads: Annotated[
        str | None,
        _training("Loads of single experts: a file with a number for each, a line or one for each layer; or zipf:1.2."),
    ] = None
    expert_placement: Annotated[
        str,
        _training(
            "Experts of a rank: listed, as launched; balanced by --expert-loads (planned only).",
            words=("listed", "balanced"),
        ),
    ] = "listed"
    moe_token_dispatcher: Annotated[
        str | None,
        _training(
            "How tokens get to experts: alltoall, allgather, flex, deepep, hybridep; else as the model's script.",
            words=("alltoall", "allgather", "flex", "deepep", "hybridep"),
        ),
    ] = None
    overlap_moe_expert_parallel_comm: Annotated[
        bool, _training("Token exchanges overlap the compute of another micro-batch.")
    ] = False
    cuda_graph: Annotated[
        bool, _training("Layers are launched as CUDA graphs, so that the host does not hold them up.")
    ] = False
    tp_comm_overlap: Annotated[
        bool | None,
        _training(
            "Tensor ranks send while they multiply (Transformer Engine's user buffers, inside an NVLink domain); "
            "searched by default, off where nothing is searched."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Configurations to search; ``None`` leaves a dimension free. See :class:`~pipette_opt.candidates.SearchSpace`."""

    max_gpus: Annotated[int | None, _parallel("Largest number of GPUs to use; the search chooses the hosts.")] = None
    tensor_parallel: Annotated[Sizes | None, _parallel("Allowed sizes, e.g. 4,8.")] = None
    pipeline_parallel: Annotated[Sizes | None, _parallel("Allowed sizes.")] = None
    data_parallel: Annotated[Sizes | None, _parallel("Allowed sizes.")] = None
    virtual_pipeline: Annotated[Sizes | None, _parallel("Allowed model chunks per stage; 1 is no interleaving.")] = None
    micro_batch_size: Annotated[Sizes | None, _parallel("Allowed sizes.")] = None
    data_parallel_sharding_strategy: Annotated[
        tuple[str, ...] | None,
        _parallel(
            "Sharding by replicas, any of no_shard,optim,optim_grads,optim_grads_params (ZeRO 0 to 3; the last two are "
            "fully sharded data parallelism). [default: optim]"
        ),
    ] = None
    num_distributed_optimizer_instances: Annotated[
        Sizes | None,
        _parallel("Allowed numbers of groups of replicas that share within a group only (hybrid sharding), e.g. 1,4."),
    ] = None
    recompute: Annotated[
        Words | None, _parallel("Allowed: none,selective,block,full, or modules as in moe_act+layernorm.")
    ] = None
    offload: Annotated[
        Words | None,
        _parallel(
            "Allowed in the host's memory, where a GPU's is too small: none,optimizer,optimizer:0.5, layers:8, or "
            "modules as in qkv_linear+core_attn. [default: what the Megatron arguments say]"
        ),
    ] = None
    context_parallel: Annotated[
        Sizes | None,
        _parallel("Allowed sizes; by default all inside a host and, unless all others are given, on whole hosts."),
    ] = None
    expert_parallel: Annotated[Sizes | None, _parallel("Allowed sizes; every divisor of the experts by default.")] = (
        None
    )
    expert_tensor_parallel: Annotated[
        Sizes | None, _parallel("Allowed tensor sizes of experts; 1 and the tensor size by default.")
    ] = None
    overlap_grad_reduce: Annotated[
        bool | None, _parallel("Gradients are reduced during the last backward pass; both are searched by default.")
    ] = None
    overlap_param_gather: Annotated[
        bool | None, _parallel("Parameters are gathered during the next forward pass; both are searched by default.")
    ] = None
    ddp_bucket_size: Annotated[
        int | None, _parallel("Parameters per gradient bucket; Megatron-Core's value by default.")
    ] = None
    overlap_p2p_communication: Annotated[bool, _parallel("Interleaved schedules compute while they send.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Launch that runs today, for commands that compare with it."""

    args: Annotated[
        str | None, Option(help="Megatron arguments of the launch that runs today, or a file with them.")
    ] = None
    hosts: Annotated[str | None, Option(help="Host order of the launch that runs today; the cluster's by default.")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured figures of a run of the job."""

    iter_time_s: Annotated[float | None, Option(help="Measured seconds of an iteration.")] = None
    peak_mem_gib: Annotated[float | None, Option(help="Measured peak of a GPU's memory, GiB.")] = None
    oom: Annotated[bool | None, Option(help="Whether the run ended out of memory.")] = None


@dataclass(frozen=True, slots=True)
class Field:
    """
    Declared field of a job.

    Parameters
    ----------
    name, kind, default
        Name, type and default in the class that declares the field; ``kind`` is the type without its :class:`Option`.
    """

    name: str
    kind: Any
    default: Any
    option: Option

    @property
    def plain_kind(self) -> Any:
        """Type of a given value: ``kind`` without ``None``."""
        kinds = (
            [kind for kind in get_args(self.kind) if kind is not NoneType] if isinstance(self.kind, UnionType) else []
        )
        return kinds[0] if kinds else self.kind

    @property
    def has_none_inside(self) -> bool:
        """Return whether a list of values may include the word ``none``, such as ``none,full`` for recomputation."""
        return any(isinstance(inner, UnionType) for inner in get_args(self.plain_kind))


@cache
def fields_of(described: type) -> Mapping[str, Field]:
    """Return the fields of a class of options, by name, in the order of their declaration."""
    hints = get_type_hints(described, include_extras=True)
    found: dict[str, Field] = {}
    for field in fields(described):
        kind, *notes = get_args(hints[field.name]) if hasattr(hints[field.name], "__metadata__") else (None,)
        for note in notes:
            if isinstance(note, Option):
                found[field.name] = Field(field.name, kind, field.default, note)
    return MappingProxyType(found)


def field_of(name: str) -> Field:
    """Return the field with this name from any of the classes of options. ``KeyError`` if none declares the name."""
    for described in (JobOptions, SpaceOptions, LaunchOptions, Measured):
        if name in (found := fields_of(described)):
            return found[name]
    raise KeyError(name)
