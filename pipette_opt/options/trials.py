"""Options of ``tune`` and of its trials."""

from dataclasses import dataclass
from typing import Annotated

from pipette_opt.options.description import Option, field_of

TRIALS = "The trials"
"""Heading of these options in the help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """Command, number and length of the trials."""

    run: Annotated[
        str | None,
        Option(
            help="Command that runs a trial until it ends, e.g. 'sbatch --wait {script}'; started in the trial's "
            "folder. Also known: {dir}, {plan}, {trial}, {steps}, {hosts}. Without it you start each trial yourself.",
            panel=TRIALS,
        ),
    ] = None
    log: Annotated[
        str,
        Option(help="Pattern of a trial's logs, from its folder; run.log has what the command prints.", panel=TRIALS),
    ] = "{dir}/*.log"
    budget: Annotated[
        int,
        Option(help="Maximum number of trials, those before an interruption included.", panel=TRIALS, minimum=1),
    ] = 8
    steps: Annotated[int, Option(help="Iterations of a trial.", panel=TRIALS)] = 12
    warm_up: Annotated[int, Option(help="First iterations of a trial that do not count.", panel=TRIALS, minimum=0)] = 3
    run_timeout: Annotated[float, Option(help="Seconds after which a trial's command is stopped.", panel=TRIALS)] = (
        3600.0
    )
    parallel: Annotated[
        int,
        Option(
            help="Trials at once, each on hosts of its own: --num-gpus GPUs, or an equal share of the hosts.",
            panel=TRIALS,
            minimum=1,
        ),
    ] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(TrialOptions):
    """The trials, the end of the search, and limits of the search for each trial's placement."""

    until: Annotated[
        str | None,
        Option(
            help="Stop when the best measured time is at most this far from the best possible; 2% by default, with "
            "--replay never.",
            panel=TRIALS,
        ),
    ] = None
    max_oom_risk: Annotated[float, field_of("max_oom_risk").option] = 0.5
    time_limit: Annotated[
        float, Option(help="Time limit of the search for each trial's placement, in seconds.", panel="The run")
    ] = 5.0
    workers: Annotated[int | None, field_of("workers").option] = None
    seed: Annotated[int, field_of("seed").option] = 0
