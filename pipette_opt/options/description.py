"""
The single declaration of every option that describes a job.

The fields of the classes here define the options of commands (``cli/spread.py``), the keywords of functions
(``library/arguments.py``), job files and their schema (``job/file.py``), columns of ``runs.csv`` (``read/runs.py``) and
the page ``docs/job.md``. Options of single commands are declared alike in :mod:`~pipette_opt.options.questions`,
:mod:`~pipette_opt.options.links` and :mod:`~pipette_opt.options.trials`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pipette_opt.base.risk import USUAL_RISK

Section = Literal["", "cluster", "training", "software", "parallel", "search", "measured"]
"""Section of a job file that holds a field; ``""`` is the top level."""


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
    panel: str = "The job"
    words: tuple[str, ...] = ()
    minimum: float | None = None
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

    cluster: Annotated[Path | None, _cluster("Cluster file (YAML), written by `import links`, `init` or by hand.")] = (
        None
    )
    nodes: Annotated[
        str | None,
        _cluster("Number of hosts, or host names, e.g. gpu[01-16]; instead of --cluster, if no link was measured."),
    ] = None
    gpu: Annotated[str | None, _cluster("With --nodes: GPU type, e.g. h100; `pipette-opt gpus` lists all types.")] = (
        None
    )
    nics: Annotated[
        str | None,
        _cluster("With --nodes: NICs of a host x Gbit/s of each, e.g. 8x400; by default those usual for the GPU type."),
    ] = None
    gpus_per_node: Annotated[
        int | None, _cluster("With --nodes: GPUs per host; by default as usual for the GPU type.")
    ] = None
    model: Annotated[
        str | None, Option(help="Preset name, or Hugging Face config.json; by default the model of --launch.")
    ] = None
    launch: Annotated[
        str | None,
        Option(
            help="Launch that runs today: a script, a folder that export wrote, a settings file (torchtitan, "
            "DeepSpeed, Accelerate), or Megatron arguments. What it sets need not be given: model, batch, sequence "
            "length, precision."
        ),
    ] = None
    host_order: Annotated[
        str | None,
        Option(
            help="Hosts of --launch in their order; by default as an export names them, else as the cluster lists them."
        ),
    ] = None
    vocab_size: Annotated[
        int | None, Option(help="Vocabulary size, if --launch leaves it to a tokenizer.", minimum=1)
    ] = None
    env: Annotated[
        list[str] | None,
        Option(help="A variable of the launch script, NAME=VALUE; may be repeated.", metavar="NAME=VALUE"),
    ] = None
    global_batch_size: Annotated[int | None, _training("Sequences per iteration.")] = None
    seq_length: Annotated[int | None, _training("Tokens per sequence.")] = None
    packed: Annotated[
        bool,
        _training("Every sequence of --seq-length tokens holds several documents, each of which attends to itself."),
    ] = False
    lengths: Annotated[
        Path | None,
        _training(
            "Lengths of the documents: a file with a length, or length,count, on each line. Without --packed, a "
            "micro-batch is padded to its longest document."
        ),
    ] = None
    micro_batches: Annotated[
        str | None,
        _training(
            "equal: every replica runs the same number of micro-batches, as launchers require; unequal: numbers may "
            "differ, so that any number of replicas can share the batch (planned only). [default: equal]",
            words=("equal", "unequal"),
        ),
    ] = None
    example: Annotated[
        str | None,
        Option(help="Name of a shipped example job, e.g. lab-16x8 or lab-2x8; instead of --cluster and --model."),
    ] = None
    precision: Annotated[
        str | None,
        _training("Precision: bf16, fp16 or fp32; by default the example's, or bf16.", words=("bf16", "fp16", "fp32")),
    ] = None
    fp8: Annotated[
        bool,
        _training("Compute the layers' matrix products in fp8 (Transformer Engine), everything else in --precision."),
    ] = False
    fp8_recipe: Annotated[
        str | None,
        _training(
            "Scaling recipe of fp8: delayed, tensorwise, blockwise or mxfp8; by default that of --launch, "
            "else delayed (torchtitan: tensorwise).",
            words=("delayed", "tensorwise", "blockwise", "mxfp8"),
        ),
    ] = None
    finetune: Annotated[
        str | None,
        _training(
            "Fine-tune instead of training from scratch: full, lora (adapters on frozen weights) or qlora (frozen "
            "weights in 4 bits).",
            words=("full", "lora", "qlora"),
        ),
    ] = None
    lora_rank: Annotated[int | None, _training("(lora, qlora) Rank of the adapters; 8 by default.", minimum=1)] = None
    lora_targets: Annotated[
        str | None,
        _training(
            "(lora, qlora) Matrices with adapters, as PEFT or Megatron-Bridge name them: all-linear, attention, mlp, "
            "q_proj,v_proj, linear_qkv. [default: all-linear]"
        ),
    ] = None
    base_format: Annotated[
        str | None,
        _training(
            "(lora, qlora) Format of the frozen weights; 16-bit with lora, nf4-double with qlora by default.",
            words=("16-bit", "fp8", "int8", "nf4", "nf4-double"),
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        _training(
            "Optimizer: adam, adam-8bit, adafactor, lion, muon, sgd or lomo (no states, no whole gradients). [default: "
            "that of --launch, else adam]",
            words=("adam", "adam-8bit", "adafactor", "lion", "muon", "sgd", "lomo"),
        ),
    ] = None
    main_weights: Annotated[
        str | None,
        _training(
            "Copies of the weights that the optimizer keeps beside 16-bit ones: fp32, fp16, or none where it changes "
            "the 16-bit weights themselves. [default: that of --launch, else fp32]",
            words=("fp32", "fp16", "none"),
        ),
    ] = None
    attention_kernel: Annotated[str, _training("Attention kernel: flash or unfused.", words=("flash", "unfused"))] = (
        "flash"
    )
    profile: Annotated[
        Path | None,
        _software("CSV of measured layer times, from `profile compute`; they replace computed layer times."),
    ] = None
    software: Annotated[
        str | None,
        _software(
            "Software that trains: megatron-core, megatron-core-tuned (as in NVIDIA's performance recipes), torchtitan "
            "(FSDP2), deepspeed, internevo or nanotron; or a stack of your software, a file from `calibrate`. "
            "[default: megatron-core]"
        ),
    ] = None
    framework: Annotated[
        str | None,
        _software(
            "Framework that is to run the plan: only plans that it can express are searched, and its software prices "
            "them.",
            panel="The search space",
            words=("accelerate", "axolotl", "deepspeed", "llamafactory", "megatron", "msswift", "nemo", "torchtitan"),
        ),
    ] = None
    measured_runs: Annotated[
        list[str] | None,
        Option(
            help="Measured runs that predictions start from: a launch (script, Megatron arguments, export, plan) with "
            "seconds, peak, failure or log, e.g. train.sh=98.2s, =61.3GiB (or :allocated, :nvidia-smi), =oom, "
            "=run.log; a log of Megatron-LM or a folder of logs; a runs.csv; a folder of tune; repeatable.",
            section="measured",
        ),
    ] = None
    num_gpus: Annotated[
        int | None,
        _cluster(
            "Number of GPUs to use; by default all GPUs, or those of fewer hosts if that is faster.",
            panel="The search space",
        ),
    ] = None
    gpu_price: Annotated[
        list[str] | None,
        _cluster(
            "Price per GPU-hour: 2.5 for all GPUs, or per host or GPU type, e.g. gpu[01-04]=1.3 or h100=2.9; "
            "repeatable. A cluster file may also contain prices."
        ),
    ] = None
    reserve_memory: Annotated[
        str | None,
        _cluster("Memory of every GPU that others use, such as an engine beside the training, e.g. 20GiB."),
    ] = None
    exclude_hosts: Annotated[
        str | None, _cluster("Hosts not to use, e.g. gpu03,gpu[07-09].", panel="The search space")
    ] = None
    speed: Annotated[
        list[str] | None,
        _cluster(
            "Speed of slow hosts as a share of their peak, e.g. gpu[03-04]=0.8; repeatable.", panel="The search space"
        ),
    ] = None
    launcher: Annotated[
        str,
        _software(
            "Launcher: torchrun (consecutive ranks on each host), slurm or mpi (any rank map).",
            panel="The search space",
            words=("torchrun", "slurm", "mpi"),
        ),
    ] = "slurm"
    p2p: Annotated[
        str,
        _software(
            "Pipeline sends: blocking (as in Megatron-Core's 1F1B) or async.",
            panel="The search space",
            words=("blocking", "async"),
        ),
    ] = "blocking"
    allreduce: Annotated[
        str,
        _software(
            "All-reduce algorithm of gradients between hosts: ring, hierarchical, or (estimate only) tree.",
            panel="The search space",
            words=("ring", "hierarchical", "tree"),
        ),
    ] = "ring"
    loss_chunks: Annotated[
        int,
        _training(
            "Parts of a micro-batch whose logits exist one after the other: 8 with torchtitan's loss in chunks; with a "
            "loss fused with the output product (Liger), the vocabulary over the hidden size."
        ),
    ] = 1
    expert_imbalance: Annotated[
        float, _training("Tokens on the busiest expert-parallel rank, relative to the mean; 1 for equal loads.")
    ] = 1.0
    expert_loads: Annotated[
        str | None,
        _training(
            "Loads of experts: a file with a number per expert, in a single line or a line per layer; or zipf:1.2."
        ),
    ] = None
    moe_token_dispatcher: Annotated[
        str | None,
        _training(
            "Token dispatcher of experts: alltoall, allgather, flex, deepep or hybridep; by default that of --launch.",
            words=("alltoall", "allgather", "flex", "deepep", "hybridep"),
        ),
    ] = None
    overlap_moe_expert_parallel_comm: Annotated[
        bool, _training("Token exchanges of experts overlap with the compute of another micro-batch.")
    ] = False
    cuda_graph: Annotated[
        bool, _training("Launch layers as CUDA graphs, so that GPUs do not wait for kernel launches.")
    ] = False
    tp_comm_overlap: Annotated[
        bool | None,
        _training(
            "Overlap tensor-parallel communication with matrix products (Transformer Engine's user buffers, inside an "
            "NVLink domain); by default both are searched, and `estimate` has it off."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Configurations to search; ``None`` leaves a dimension free. See :class:`~pipette_opt.candidates.SearchSpace`."""

    max_gpus: Annotated[int | None, _parallel("Largest number of GPUs to use; the search chooses the hosts.")] = None
    tensor_parallel: Annotated[Sizes | None, _parallel("Allowed tensor-parallel sizes, e.g. 4,8.")] = None
    pipeline_parallel: Annotated[Sizes | None, _parallel("Allowed pipeline-parallel sizes, e.g. 1,2,4.")] = None
    data_parallel: Annotated[Sizes | None, _parallel("Allowed data-parallel sizes, e.g. 8,16.")] = None
    virtual_pipeline: Annotated[
        Sizes | None, _parallel("Allowed numbers of model chunks per stage, e.g. 1,2; 1 is no interleaving.")
    ] = None
    micro_batch_size: Annotated[Sizes | None, _parallel("Allowed micro-batch sizes in sequences, e.g. 1,2.")] = None
    data_parallel_sharding_strategy: Annotated[
        tuple[str, ...] | None,
        _parallel(
            "Allowed sharding among replicas: any of no_shard,optim,optim_grads,optim_grads_params (ZeRO 0 to 3; the "
            "last two are fully sharded data parallelism). [default: optim]"
        ),
    ] = None
    num_distributed_optimizer_instances: Annotated[
        Sizes | None,
        _parallel(
            "Allowed numbers of replica groups, e.g. 1,4; states are shared within a group (optimizer instances)."
        ),
    ] = None
    recompute: Annotated[
        Words | None,
        _parallel(
            "Allowed recomputation: none,selective,block,full, modules such as moe_act+layernorm, or ops (torchtitan's "
            "selective op)."
        ),
    ] = None
    offload: Annotated[
        Words | None,
        _parallel(
            "Allowed offload to the host's memory, if GPU memory is too small: none,optimizer,optimizer:0.5, "
            "parameters (shards of ZeRO 3), layers:8, or modules such as qkv_linear+core_attn. [default: the launch's]"
        ),
    ] = None
    context_parallel: Annotated[
        Sizes | None,
        _parallel(
            "Allowed context-parallel sizes; by default sizes inside a host, and of whole hosts unless the "
            "other degrees are given."
        ),
    ] = None
    context_a2a: Annotated[
        Sizes | None,
        _parallel(
            "Allowed numbers of context ranks that exchange heads by all-to-all (Ulysses degree) in jobs with "
            "cp_comm_type a2a+p2p; by default every divisor that stays inside a host."
        ),
    ] = None
    expert_parallel: Annotated[
        Sizes | None, _parallel("Allowed expert-parallel sizes; by default every divisor of the number of experts.")
    ] = None
    expert_tensor_parallel: Annotated[
        Sizes | None, _parallel("Allowed expert tensor-parallel sizes; by default 1 and the tensor-parallel size.")
    ] = None
    overlap_grad_reduce: Annotated[
        bool | None, _parallel("Reduce gradients during the last backward pass; by default both choices are searched.")
    ] = None
    overlap_param_gather: Annotated[
        bool | None, _parallel("Gather parameters during the next forward pass; by default both choices are searched.")
    ] = None
    ddp_bucket_size: Annotated[
        int | None, _parallel("Number of parameters per gradient bucket; by default Megatron-Core's value.")
    ] = None
    overlap_p2p_communication: Annotated[bool, _parallel("Interleaved schedules compute while they send.")] = True


def _search(help_text: str, panel: str = "The run", **more: Any) -> Option:
    return Option(help=help_text, section="search", panel=panel, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Objective of a search, choice among good plans, and limits."""

    objective: Annotated[
        str | None,
        _search(
            "What to optimise. time: seconds per iteration; tokens-per-gpu: tokens per second and GPU, on any number "
            "of hosts; progress: tokens per second including host failures (--host-mean-days), on any number of "
            "hosts; cost: price per token, from --gpu-price or the cluster file; robust: the upper end of the time's "
            "error band, which prefers plans whose time is known better; regret: slowdown against the best "
            "configuration of each world, with worlds from public and measured runs. [default: time]",
            panel="The search space",
            words=("time", "tokens-per-gpu", "progress", "cost", "robust", "regret"),
        ),
    ] = None
    host_mean_days: Annotated[
        float | None,
        _search("(--objective progress) Mean days between failures of a host.", panel="The search space"),
    ] = None
    checkpoint_seconds: Annotated[
        float | None,
        _search(
            "(--objective progress) Seconds that saving a checkpoint stops the job; 60 by default.",
            panel="The search space",
        ),
    ] = None
    recovery_seconds: Annotated[
        float | None,
        _search(
            "(--objective progress) Seconds from a failure until training continues; 600 by default.",
            panel="The search space",
        ),
    ] = None
    regret_quantile: Annotated[
        float | None,
        _search(
            "(--objective regret) Quantile of the regret over the worlds to minimise, e.g. 0.9, instead of its mean.",
            panel="The search space",
        ),
    ] = None
    prefer: Annotated[
        str,
        _search(
            "simple: the plainest of the plans within 1 % of the fastest (less risk of running out of memory, even "
            "layers, hosts as listed, fewer stages, fewer chunks, similar to today's launch); fastest: the fastest "
            "plan found.",
            panel="The search space",
            words=("simple", "fastest"),
        ),
    ] = "simple"
    max_oom_risk: Annotated[
        float,
        _search("Accepted probability of running out of memory; 1 ignores memory.", panel="The search space"),
    ] = USUAL_RISK
    time_limit: Annotated[float, _search("Time limit of the search in seconds.")] = 60.0
    gap_limit: Annotated[
        float | None,
        _search(
            "Stop when the proven gap is at most this share; 0: never. By default 0.005; a gap up to 0.01 exits with 0."
        ),
    ] = None
    workers: Annotated[int | None, _search("Number of threads; by default all cores.")] = None
    seed: Annotated[int, _search("Seed of every random choice.")] = 0


OF_JOB_FILES = (JobOptions, SpaceOptions, SearchOptions)
"""Classes of options that a job file sets, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured figures of a run of the job."""

    iter_time_s: Annotated[float | None, Option(help="Measured seconds of an iteration.")] = None
    peak_mem_gib: Annotated[float | None, Option(help="Measured peak memory of the fullest GPU, GiB.")] = None
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


def is_declared(kind: object) -> bool:
    """Return whether a type is a class of declared options."""
    return isinstance(kind, type) and is_dataclass(kind) and bool(fields_of(kind))


def field_of(name: str) -> Field:
    """Return the field with this name from any of the classes of options. ``KeyError`` if none declares the name."""
    for described in (JobOptions, SpaceOptions, SearchOptions, Measured):
        if name in (found := fields_of(described)):
            return found[name]
    raise KeyError(name)
