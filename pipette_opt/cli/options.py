"""Options that several commands share, and the instance they describe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli.spread import Without as Without
from pipette_opt.cli.spread import parameter as parameter
from pipette_opt.cli.spread import parameters_of as parameters_of
from pipette_opt.cli.spread import spread as spread
from pipette_opt.cli.spread import with_parameters as with_parameters
from pipette_opt.library import options as said
from pipette_opt.library.jobs import Job as Job
from pipette_opt.library.jobs import check_precision as check_precision
from pipette_opt.library.jobs import one_of as one_of
from pipette_opt.library.jobs import read_job as read_job
from pipette_opt.library.jobs import trained_as as trained_as
from pipette_opt.library.settings import checked as checked
from pipette_opt.library.settings import cores as cores
from pipette_opt.library.settings import sizes as sizes
from pipette_opt.library.settings import threads as threads

if TYPE_CHECKING:
    from pipette_opt.candidates import SearchSpace

JOB, SEARCH, RUN = "The job", "The search space", "The run"

Cluster = Annotated[
    Path | None,
    typer.Option(help="cluster.yaml, written by `import links`, `init` or by hand.", rich_help_panel=JOB),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        help="Instead of --cluster, where no link was measured: number of hosts, or names, e.g. gpu\\[01-16].",
        rich_help_panel=JOB,
    ),
]
Gpu = Annotated[
    str | None, typer.Option(help="Kind of GPU of these hosts, e.g. h100; `gpus` lists them.", rich_help_panel=JOB)
]
Nics = Annotated[
    str | None,
    typer.Option(help="NICs of these hosts x Gbit/s of each, e.g. 8x400; the GPU's usual ones.", rich_help_panel=JOB),
]
GpusPerNode = Annotated[
    int | None, typer.Option(help="GPUs of these hosts; as usual for the GPU by default.", rich_help_panel=JOB)
]
Model = Annotated[
    str | None,
    typer.Option(help="Preset name, Hugging Face config.json, or a file of Megatron arguments.", rich_help_panel=JOB),
]
VocabSize = Annotated[
    int | None,
    typer.Option(help="Vocabulary, of Megatron arguments that leave it to a tokenizer.", min=1, rich_help_panel=JOB),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        help="A variable of the launch script, NAME=VALUE; may be repeated.",
        metavar="NAME=VALUE",
        rich_help_panel=JOB,
    ),
]
GlobalBatchSize = Annotated[int | None, typer.Option(help="Sequences per iteration.", rich_help_panel=JOB)]
MicroBatches = Annotated[
    str | None,
    typer.Option(
        help="equal: every replica runs as many, which launchers want; unequal: any number of replicas shares the "
        "batch (planned only). [default: equal]",
        rich_help_panel=JOB,
    ),
]
SeqLength = Annotated[int | None, typer.Option(help="Tokens per sequence.", rich_help_panel=JOB)]
Example = Annotated[
    str | None, typer.Option(help="A shipped example instead, e.g. lab-16x8 or lab-2x8.", rich_help_panel=JOB)
]
Fp8 = Annotated[
    bool,
    typer.Option(
        "--fp8",
        help="Matrix products of the layers in fp8 (Transformer Engine); the rest as --precision says.",
        rich_help_panel=JOB,
    ),
]
Fp8Recipe = Annotated[
    str | None,
    typer.Option(
        help="Scales of fp8: delayed, tensorwise, blockwise or mxfp8; that of the model's script, else delayed.",
        rich_help_panel=JOB,
    ),
]
Precision = Annotated[str | None, typer.Option(help="bf16, fp16 or fp32; the example's, or bf16.", rich_help_panel=JOB)]
AttentionKernel = Annotated[str, typer.Option(help="flash or unfused.", rich_help_panel=JOB)]
Profile = Annotated[
    Path | None, typer.Option(help="CSV of measured layer times, which override the roofline.", rich_help_panel=JOB)
]
Calibration = Annotated[
    str | None,
    typer.Option(help="Stack: a file of `calibrate`, or a shipped name; megatron-core otherwise.", rich_help_panel=JOB),
]
NumGpus = Annotated[
    int | None, typer.Option(help="How many GPUs to use; all, or fewer hosts if faster.", rich_help_panel=SEARCH)
]
MaxGpus = Annotated[
    int | None,
    typer.Option(help="How many GPUs to use at most: a budget of GPUs, the hosts chosen.", rich_help_panel=SEARCH),
]
GpuPrice = Annotated[
    list[str] | None,
    typer.Option(
        help="Price of a GPU-hour: 2.5, or of hosts, e.g. gpu[03-04]=1.2; may be repeated. Cluster files may say it.",
        rich_help_panel=JOB,
    ),
]
ExcludeHosts = Annotated[
    str | None, typer.Option(help="Hosts not to use, e.g. gpu03,gpu[07-09].", rich_help_panel=SEARCH)
]
Speed = Annotated[
    list[str] | None,
    typer.Option(
        help="Hosts that run at a share of their peak, e.g. gpu[03-04]=0.8; may be repeated.", rich_help_panel=SEARCH
    ),
]
Launcher = Annotated[
    str, typer.Option(help="torchrun (contiguous ranks per host), slurm or mpi (any map).", rich_help_panel=SEARCH)
]
P2P = Annotated[str, typer.Option(help="blocking (Megatron-Core's 1F1B) or async sends.", rich_help_panel=SEARCH)]
AllReduce = Annotated[
    str,
    typer.Option(
        "--allreduce",
        help="How gradients cross hosts: ring, hierarchical, or (estimate only) tree.",
        rich_help_panel=SEARCH,
    ),
]
TensorParallel = Annotated[str | None, typer.Option(help="Allowed sizes, e.g. 4,8.", rich_help_panel=SEARCH)]
PipelineParallel = Annotated[str | None, typer.Option(help="Allowed sizes.", rich_help_panel=SEARCH)]
DataParallel = Annotated[str | None, typer.Option(help="Allowed sizes.", rich_help_panel=SEARCH)]
VirtualPipeline = Annotated[
    str | None, typer.Option(help="Allowed model chunks per stage; 1 is no interleaving.", rich_help_panel=SEARCH)
]
MicroBatchSize = Annotated[str | None, typer.Option(help="Allowed sizes.", rich_help_panel=SEARCH)]
Recompute = Annotated[
    str | None,
    typer.Option(
        help="Allowed: none,selective,block,full, or modules as in moe_act+layernorm.", rich_help_panel=SEARCH
    ),
]
Offload = Annotated[
    str | None,
    typer.Option(
        help="Allowed in the host's memory, where a GPU's is too small: none,optimizer,optimizer:0.5, layers:8, or "
        "modules as in qkv_linear+core_attn. [default: what the Megatron arguments say]",
        rich_help_panel=SEARCH,
    ),
]
ShardingStrategy = Annotated[
    str | None,
    typer.Option(
        help="What replicas share, any of no_shard,optim,optim_grads,optim_grads_params (ZeRO 0 to 3; the last two are "
        "fully sharded data parallelism). [default: optim]",
        rich_help_panel=SEARCH,
    ),
]
OptimizerInstances = Annotated[
    str | None,
    typer.Option(
        help="Allowed numbers of groups of replicas that share within a group only (hybrid sharding), e.g. 1,4.",
        rich_help_panel=SEARCH,
    ),
]
ContextParallel = Annotated[
    str | None,
    typer.Option(
        help="Allowed sizes; by default all inside a host and, unless all others are given, on whole hosts.",
        rich_help_panel=SEARCH,
    ),
]
ExpertParallel = Annotated[
    str | None,
    typer.Option(
        help="Allowed sizes; every divisor of the experts by default.",
        rich_help_panel=SEARCH,
    ),
]
ExpertTensorParallel = Annotated[
    str | None,
    typer.Option(
        help="Allowed tensor sizes of experts; 1 and the tensor size by default.",
        rich_help_panel=SEARCH,
    ),
]
ExpertImbalance = Annotated[
    float, typer.Option(help="Tokens of the busiest rank of experts over the mean.", rich_help_panel=JOB)
]
ExpertLoads = Annotated[
    str | None,
    typer.Option(
        help="Loads of single experts: a file with a number for each, a line or one for each layer; or zipf:1.2.",
        rich_help_panel=JOB,
    ),
]
ExpertPlacement = Annotated[
    str,
    typer.Option(
        help="Experts of a rank: listed, as launched; balanced by --expert-loads (planned only).",
        rich_help_panel=JOB,
    ),
]
MoeTokenDispatcher = Annotated[
    str | None,
    typer.Option(
        help="How tokens get to experts: alltoall, allgather, flex, deepep, hybridep; else as the model's script.",
        rich_help_panel=JOB,
    ),
]
OverlapExperts = Annotated[
    bool,
    typer.Option(
        "--overlap-moe-expert-parallel-comm",
        help="Tokens travel beside the compute of another micro-batch.",
        rich_help_panel=JOB,
    ),
]
TensorOverlap = Annotated[
    bool | None,
    typer.Option(
        "--tp-comm-overlap/--no-tp-comm-overlap",
        help="Tensor ranks send beside the products (Transformer Engine's user buffers, inside an NVLink domain); "
        "searched by default, off where nothing is searched.",
        rich_help_panel=JOB,
    ),
]
CudaGraph = Annotated[
    bool,
    typer.Option(
        "--cuda-graph",
        help="Layers are launched as CUDA graphs, so that the host does not hold them up.",
        rich_help_panel=JOB,
    ),
]
OverlapGradReduce = Annotated[
    bool | None,
    typer.Option(help="Gradients are reduced beside the last backward; both by default.", rich_help_panel=SEARCH),
]
OverlapParamGather = Annotated[
    bool | None,
    typer.Option(help="Parameters are gathered beside the next forward; both by default.", rich_help_panel=SEARCH),
]
DdpBucketSize = Annotated[
    int | None, typer.Option(help="Parameters of a bucket; Megatron-Core's own by default.", rich_help_panel=SEARCH)
]
OverlapP2P = Annotated[bool, typer.Option(help="Interleaved schedules go on while they send.", rich_help_panel=SEARCH)]
MaxOomRisk = Annotated[
    float,
    typer.Option(
        help="Accepted probability of running out of memory; 1: memory does not count.", rich_help_panel=SEARCH
    ),
]
GpuPrices = Annotated[
    list[str] | None,
    typer.Option(
        help="Of a GPU for an hour: 2.5, or of hosts or a kind, gpu[01-04]=1.3, h100=2.9; may be repeated.",
        rich_help_panel=RUN,
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        help="time: of an iteration; tokens-per-gpu: tokens per second and GPU, on any number of hosts; progress: "
        "tokens per second where hosts are lost (--host-mean-days), on any number of hosts; cost: of a token, by "
        "--gpu-price or the cluster file; robust: the upper end of the band of the time, so that a plan like "
        "measured runs may come before a faster one unlike them.",
        rich_help_panel=SEARCH,
    ),
]
Prefer = Annotated[
    str,
    typer.Option(
        help="simple: of the plans within 1 % of the fastest the plainest (less risk of running out of memory, fewer "
        "stages, fewer chunks, even layers, near to today's launch); fastest: the fastest found.",
        rich_help_panel=SEARCH,
    ),
]
TimeLimit = Annotated[float, typer.Option(help="Seconds.", rich_help_panel=RUN)]
DONE_GAP = 0.01
"""Proven gap at which a search that its time limit ended counts as done if --gap-limit says nothing. Chosen."""

GapLimit = Annotated[
    float | None,
    typer.Option(
        help="Stop at this proven gap; 0: at none. Without it at 0.005, and 0.01 counts as done.",
        rich_help_panel=RUN,
    ),
]
Workers = Annotated[int | None, typer.Option(help="Threads; all cores by default.", rich_help_panel=RUN)]
Backend = Annotated[
    str,
    typer.Option(
        help="threads; joblib: processes of this machine; ray: a Ray cluster (pip install 'pipette-opt\\[ray]').",
        rich_help_panel=RUN,
    ),
]
RayAddress = Annotated[
    str | None, typer.Option(help="Of the Ray cluster, e.g. auto; one on this machine otherwise.", rich_help_panel=RUN)
]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.", rich_help_panel=RUN)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all tables, and log what the solver does.", rich_help_panel=RUN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer and errors only.", rich_help_panel=RUN)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(said.JobOptions):
    """What is trained, on which machines, and how: each field is an option of ``solve`` and its relatives."""

    cluster: Cluster = None
    nodes: Nodes = None
    gpu: Gpu = None
    nics: Nics = None
    gpus_per_node: GpusPerNode = None
    model: Model = None
    vocab_size: VocabSize = None
    env: Env = None
    global_batch_size: GlobalBatchSize = None
    seq_length: SeqLength = None
    micro_batches: MicroBatches = None
    example: Example = None
    precision: Precision = None
    fp8: Fp8 = False
    fp8_recipe: Fp8Recipe = None
    attention_kernel: AttentionKernel = "flash"
    profile: Profile = None
    calibration: Calibration = None
    num_gpus: NumGpus = None
    gpu_price: GpuPrice = None
    exclude_hosts: ExcludeHosts = None
    speed: Speed = None
    launcher: Launcher = "slurm"
    p2p: P2P = "blocking"
    allreduce: AllReduce = "ring"
    expert_imbalance: ExpertImbalance = 1.0
    expert_loads: ExpertLoads = None
    expert_placement: ExpertPlacement = "listed"
    moe_token_dispatcher: MoeTokenDispatcher = None
    overlap_moe_expert_parallel_comm: OverlapExperts = False
    cuda_graph: CudaGraph = False
    tp_comm_overlap: TensorOverlap = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which configurations are searched: each field is an option that narrows the default space."""

    max_gpus: MaxGpus = None
    tensor_parallel: TensorParallel = None
    pipeline_parallel: PipelineParallel = None
    data_parallel: DataParallel = None
    virtual_pipeline: VirtualPipeline = None
    micro_batch_size: MicroBatchSize = None
    data_parallel_sharding_strategy: ShardingStrategy = None
    num_distributed_optimizer_instances: OptimizerInstances = None
    recompute: Recompute = None
    offload: Offload = None
    context_parallel: ContextParallel = None
    expert_parallel: ExpertParallel = None
    expert_tensor_parallel: ExpertTensorParallel = None
    overlap_grad_reduce: OverlapGradReduce = None
    overlap_param_gather: OverlapParamGather = None
    ddp_bucket_size: DdpBucketSize = None
    overlap_p2p_communication: OverlapP2P = True


def search_space(job: Job, options: SpaceOptions) -> "SearchSpace":
    """The search space that the options pin down."""
    from pipette_opt.candidates import SearchSpace

    _check_expert_sizes(job, options.expert_parallel, options.expert_tensor_parallel)
    space = SearchSpace(
        num_gpus=job.num_gpus,
        max_gpus=options.max_gpus,
        tensor_parallel=sizes("--tensor-parallel", options.tensor_parallel),
        pipeline_parallel=sizes("--pipeline-parallel", options.pipeline_parallel),
        data_parallel=sizes("--data-parallel", options.data_parallel),
        virtual_pipeline=sizes("--virtual-pipeline", options.virtual_pipeline),
        micro_batch_size=sizes("--micro-batch-size", options.micro_batch_size),
        context_parallel=sizes("--context-parallel", options.context_parallel),
        expert_parallel=sizes("--expert-parallel", options.expert_parallel),
        expert_tensor_parallel=sizes("--expert-tensor-parallel", options.expert_tensor_parallel),
        data_parallel_sharding_strategy=words(options.data_parallel_sharding_strategy),
        offload=words(options.offload),
        tp_comm_overlap=job.tp_comm_overlap,
        num_distributed_optimizer_instances=sizes(
            "--num-distributed-optimizer-instances", options.num_distributed_optimizer_instances
        ),
        overlap_grad_reduce=options.overlap_grad_reduce,
        overlap_param_gather=options.overlap_param_gather,
        ddp_bucket_size=options.ddp_bucket_size,
        overlap_p2p_communication=options.overlap_p2p_communication,
    )
    if options.recompute is None:
        return space
    names = words(options.recompute) or ()
    return replace(space, recompute=tuple(None if name == "none" else name for name in names))


def words(text: str | None) -> tuple[str, ...] | None:
    """Words between commas; ``None`` where nothing is said."""
    return None if text is None else tuple(word.strip() for word in text.split(","))


def _check_expert_sizes(job: Job, expert_parallel: str | None, expert_tensor_parallel: str | None) -> None:
    """Raise ``InputError`` where sizes of experts have no effect, or cannot divide them."""
    model = job.instance.model
    options = (
        ("--expert-parallel", expert_parallel, model.num_experts, "experts"),
        ("--expert-tensor-parallel", expert_tensor_parallel, model.expert_ffn_size, "columns of an expert"),
    )
    for option, text, whole, what in options:
        for size in sizes(option, text) or ():
            if model.num_experts is None and size > 1:
                raise InputError(option, f"has no effect: model {model.name} has no experts.")
            if model.num_experts is not None and whole is not None and whole % size:
                raise InputError(option, f"must divide the {whole} {what} of model {model.name}, got {size}.")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
