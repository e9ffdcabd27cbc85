"""Options shared by several commands, and the job that they describe."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli.spread import FromLaunch as FromLaunch
from pipette_opt.cli.spread import OrJobFile as OrJobFile
from pipette_opt.cli.spread import Without as Without
from pipette_opt.cli.spread import is_given as is_given
from pipette_opt.cli.spread import parameter as parameter
from pipette_opt.cli.spread import parameters_of as parameters_of
from pipette_opt.cli.spread import spread as spread
from pipette_opt.cli.spread import typer_option as typer_option
from pipette_opt.cli.spread import with_parameters as with_parameters
from pipette_opt.job.read import check_precision as check_precision
from pipette_opt.job.read import one_of as one_of
from pipette_opt.job.read import read_job as read_job
from pipette_opt.job.read import trained_as as trained_as
from pipette_opt.options.description import JobOptions as JobOptions
from pipette_opt.options.description import SpaceOptions as SpaceOptions
from pipette_opt.options.values import checked as checked
from pipette_opt.options.values import cores as cores
from pipette_opt.options.values import sizes as sizes
from pipette_opt.options.values import threads as threads

JOB, SEARCH, RUN = "The job", "The search space", "The run"

Cluster = Annotated[Path | None, typer_option("cluster")]
VocabSize = Annotated[int | None, typer_option("vocab_size")]
Env = Annotated[list[str] | None, typer_option("env")]
GlobalBatchSize = Annotated[int | None, typer_option("global_batch_size")]
SeqLength = Annotated[int | None, typer_option("seq_length")]
Software = Annotated[str | None, typer_option("software")]
MaxOomRisk = Annotated[
    float,
    typer.Option(help="Accepted probability of running out of memory; 1 ignores memory.", rich_help_panel=SEARCH),
]
GpuPrices = Annotated[
    list[str] | None,
    typer.Option(
        help="Price per GPU-hour: 2.5 for all GPUs, or per host or GPU type, e.g. gpu[01-04]=1.3 or h100=2.9; "
        "repeatable.",
        rich_help_panel=RUN,
    ),
]
MeasuredRuns = Annotated[list[str] | None, typer_option("measured_runs")]
Objective = Annotated[
    str | None,
    typer.Option(
        help="What to optimise. time: seconds per iteration; tokens-per-gpu: tokens per second and GPU, on any "
        "number of "
        "hosts; progress: tokens per second including host failures (--host-mean-days), on any number of hosts; "
        "cost: price per token, from --gpu-price or the cluster file; robust: the upper end of the time's error "
        "band, which prefers plans whose time is known better; regret: slowdown against the best configuration of "
        "each world, with worlds from public and measured runs. [default: time]",
        rich_help_panel=SEARCH,
    ),
]
Prefer = Annotated[
    str,
    typer.Option(
        help="simple: the plainest of the plans within 1 % of the fastest (less risk of running out of memory, even "
        "layers, hosts as listed, fewer stages, fewer chunks, similar to today's launch); fastest: the fastest plan "
        "found.",
        rich_help_panel=SEARCH,
    ),
]
TimeLimit = Annotated[float, typer.Option(help="Time limit of the search in seconds.", rich_help_panel=RUN)]
DONE_GAP = 0.01
"""Proven gap up to which a search that reached its time limit exits with 0, without ``--gap-limit``. Chosen."""

GapLimit = Annotated[
    float | None,
    typer.Option(
        help="Stop when the proven gap is at most this share; 0: never. By default 0.005; a gap up to 0.01 "
        "exits with 0.",
        rich_help_panel=RUN,
    ),
]
Workers = Annotated[int | None, typer.Option(help="Number of threads; by default all cores.", rich_help_panel=RUN)]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.", rich_help_panel=RUN)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all tables, and log the solver's steps.", rich_help_panel=RUN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer and errors.", rich_help_panel=RUN)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)]
