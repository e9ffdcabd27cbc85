"""Options of ``whatif``, ``replan``, ``explain``, ``recommend``, ``calibrate`` and ``pack``, beside those of jobs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.options.description import Option, Sizes, field_of

HOSTS = "Hosts and links"
"""Heading of the options on hosts and links in the help of ``whatif``."""

RUNS, ENV, PRICES = (field_of(name).option for name in ("measured_runs", "env", "gpu_price"))

NOT_COMPARED = (
    *("measured_runs", "host_order", "tp_comm_overlap", "micro_batches", "expert_loads"),
    *("max_gpus", "virtual_pipeline", "context_a2a", "data_parallel_sharding_strategy"),
    *("num_distributed_optimizer_instances", "recompute", "offload", "context_parallel", "expert_parallel"),
    *("expert_tensor_parallel", "overlap_grad_reduce", "overlap_param_gather", "ddp_bucket_size"),
    "overlap_p2p_communication",
)
"""Options of a job that ``benchmark solve`` does not take: no baseline knows them, or the comparison fixes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Accepted risk, threads and random choices of the searches of any command."""

    max_oom_risk: Annotated[float, field_of("max_oom_risk").option] = USUAL_RISK
    workers: Annotated[int | None, field_of("workers").option] = None
    seed: Annotated[int, field_of("seed").option] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatifOptions:
    """Questions about a plan, and the time limit of their answers."""

    cluster: Annotated[
        Path | None, Option(help="Cluster file of today, e.g. measured again; by default the plan's.")
    ] = None
    without: Annotated[
        list[str] | None,
        Option(
            help="Hosts that are lost together, e.g. gpu07 or gpu[07-08]; `each` asks for every host alone.",
            panel=HOSTS,
        ),
    ] = None
    repair: Annotated[
        list[str] | None,
        Option(
            help="A host, or a link such as gpu07:gpu09, becomes as fast as the median; `each` asks for every host "
            "alone.",
            panel=HOSTS,
        ),
    ] = None
    add_hosts: Annotated[
        Sizes | None,
        Option(
            help="Numbers of hosts to add, e.g. 1,2,4; added hosts are like the median of the cluster.", panel=HOSTS
        ),
    ] = None
    num_gpus: Annotated[
        Sizes | None, Option(help="Other numbers of GPUs on the same hosts, e.g. 64,96.", panel=HOSTS)
    ] = None
    link_speed: Annotated[
        tuple[float, ...] | None,
        Option(help="Factors on the bandwidth of all links between hosts, e.g. 0.5,2.", panel=HOSTS),
    ] = None
    gpu: Annotated[
        tuple[str, ...] | None, Option(help="Other GPU types in all hosts, e.g. h100,h200.", panel=HOSTS)
    ] = None
    global_batch_size: Annotated[Sizes | None, Option(help="Other global batch sizes, e.g. 256,1024.")] = None
    seq_length: Annotated[Sizes | None, Option(help="Other sequence lengths in tokens, e.g. 4096,8192.")] = None
    precision: Annotated[
        tuple[str, ...] | None,
        Option(help="Other precisions: bf16, fp16, fp32 or fp8.", words=("bf16", "fp16", "fp32", "fp8")),
    ] = None
    gpu_price: Annotated[list[str] | None, PRICES] = None
    measured_runs: Annotated[list[str] | None, RUNS] = None
    env: Annotated[list[str] | None, ENV] = None
    time_limit: Annotated[
        float | None,
        Option(
            help="Seconds for all questions together; by default 0.3 per lost host and 4 per other job.",
            panel="The run",
            minimum=0.1,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanOptions:
    """Hosts that are lost or join, the accepted moves, and the time limit of the search."""

    lost: Annotated[str | None, Option(help="Hosts that failed or left, e.g. gpu07 or gpu[07-08].")] = None
    joined: Annotated[str | None, Option(help="Hosts that joined and may be used now.")] = None
    cluster: Annotated[
        Path | None,
        Option(help="Cluster file that includes the joined hosts, if the plan's cluster file lacks them."),
    ] = None
    max_moves: Annotated[
        int | None, Option(help="Maximum number of hosts that may have to load other parameters.", minimum=0)
    ] = None
    tolerance: Annotated[
        float,
        Option(
            help="Without --max-moves: choose the plan with the fewest hosts to load among plans that are at most "
            "this share slower than the fastest.",
            minimum=0,
        ),
    ] = 0.005
    num_gpus: Annotated[int | None, Option(help="Number of GPUs to use; by default the fastest number.", minimum=1)] = (
        None
    )
    micro_batches: Annotated[
        str | None,
        Option(
            help="unequal: replicas may run different numbers of micro-batches, so that any number of replicas can "
            "share the batch (planned only, no launcher runs it); equal; by default as in the plan.",
            words=("equal", "unequal"),
        ),
    ] = None
    measured_runs: Annotated[list[str] | None, RUNS] = None
    env: Annotated[list[str] | None, ENV] = None
    time_limit: Annotated[float, Option(help="Time limit of the search in seconds.", panel="The run")] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """Plan to compare with, and the time limit of the searches."""

    plan: Annotated[
        Path | None,
        Option(help="Plan file to compare with; also gives the job, unless job options are given.", panel=""),
    ] = None
    rules: Annotated[
        bool, Option(help="Check which rules of the layouts study (arXiv 2311.05610) hold for this job.", panel="")
    ] = False
    time_limit: Annotated[
        float | None,
        Option(
            help="Seconds to place each configuration (default 5), or for each solve of --rules (default 15).",
            panel="The run",
            minimum=0.1,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendOptions:
    """Numbers of hosts to compare, length and deadline of the training run, and the time limit of the searches."""

    num_hosts: Annotated[
        Sizes | None,
        Option(
            help="Numbers of hosts to compare, e.g. 4,8,16; by default all hosts, half of them, a quarter, ...",
            panel="",
        ),
    ] = None
    tokens: Annotated[float | None, Option(help="Tokens of the whole training run, e.g. 1e12.", panel="")] = None
    deadline: Annotated[str | None, Option(help="Maximum duration of the training run: 36h, 30d or 6w.", panel="")] = (
        None
    )
    time_limit: Annotated[
        float | None,
        Option(help="Seconds for all searches together; by default 5 for each row.", panel="The run", minimum=0.1),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """Stack to start from, the runs that are used, and their check."""

    base: Annotated[str, Option(help="Stack to start from: a shipped name or a file.", panel="")] = "megatron-core"
    name: Annotated[str | None, Option(help="Name of the stack; by default the name of the file.", panel="")] = None
    max_runs: Annotated[
        int, Option(help="Use at most this many runs; of more, a random sample.", panel="", minimum=3)
    ] = 100
    validate: Annotated[bool, Option(help="Cross-validate over groups of runs.", panel="")] = True
    seed: Annotated[int, Option(help="Seed of every random choice.", minimum=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """Bins of a step, model and pipeline that give documents their work, and limits of the search."""

    bin: Annotated[int | None, Option(help="Tokens of a packed sequence, e.g. 8192.", panel="", minimum=1)] = None
    replicas: Annotated[int, Option(help="Number of data-parallel replicas.", panel="", minimum=1)] = 1
    microbatches: Annotated[
        int, Option(help="Packed sequences of each replica in a step, one a micro-batch.", panel="", minimum=1)
    ] = 1
    model: Annotated[str | None, Option(help="Preset name, or Hugging Face config.json.", panel="")] = None
    stages: Annotated[int, Option(help="Number of pipeline stages.", panel="", minimum=1)] = 1
    wait: Annotated[
        str,
        Option(
            help="step: replicas wait for each other once a step (DDP, ZeRO 1 and 2); microbatch: at each micro-batch "
            "(ZeRO 3, FSDP).",
            panel="",
            words=("step", "microbatch"),
        ),
    ] = "step"
    time_limit: Annotated[float, field_of("time_limit").option] = 30.0
    workers: Annotated[int | None, field_of("workers").option] = None
    seed: Annotated[int, field_of("seed").option] = 0
