"""Options of ``whatif`` and ``replan``: changes of hosts, links, GPUs and training settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.options.description import Option, Sizes, field_of

HOSTS = "Hosts and links"
"""Heading of the options on hosts and links in the help of ``whatif``."""

RISK, WORKERS, SEED = (field_of(name).option for name in ("max_oom_risk", "workers", "seed"))
RUNS, ENV, PRICES = (field_of(name).option for name in ("measured_runs", "env", "gpu_price"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatifOptions:
    """Questions about a plan, and limits of their answers."""

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
    max_oom_risk: Annotated[float, RISK] = USUAL_RISK
    time_limit: Annotated[
        float | None,
        Option(
            help="Seconds for all questions together; by default 0.3 per lost host and 4 per other job.",
            panel="The run",
            minimum=0.1,
        ),
    ] = None
    workers: Annotated[int | None, WORKERS] = None
    seed: Annotated[int, SEED] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanOptions:
    """Hosts that are lost or join, the accepted moves, and limits of the search."""

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
    max_oom_risk: Annotated[float, RISK] = USUAL_RISK
    time_limit: Annotated[float, Option(help="Time limit of the search in seconds.", panel="The run")] = 10.0
    workers: Annotated[int | None, WORKERS] = None
    seed: Annotated[int, SEED] = 0
