"""Settings of a search on a cluster."""

from dataclasses import dataclass, field

from pipette_opt.base.errors import InputError
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.export.launch_options import LaunchOptions
from pipette_opt.export.targets import TARGETS
from pipette_opt.read.megatron_logs import WARM_UP
from pipette_opt.tune import launch

TRIAL_SEARCH = OptimizeParams(time_limit_s=5.0, workers=1, max_oom_risk=0.5)
"""Default search for a trial's placement. Chosen: a trial that runs out of memory ends soon, and teaches memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """
    Settings of a search on a cluster.

    Parameters
    ----------
    run
        Command of the shell that runs a trial until it ends; ``None``: the user runs it and puts the log in place.
    log
        Pattern of the log files of a trial.
    budget
        Largest number of trials, those before an interruption included.
    until
        Stated regret at which the search ends; ``None``: at the end of the budget.
    steps, warm_up
        Iterations of a trial, and those of them that do not count.
    run_timeout_s
        Seconds after which a command is ended and its trial refused.
    parallel
        Number of trials at once, each on hosts of its own.
    format
        Export format.
    options
        Options of the launch.
    search
        Limits of the search for each trial's placement, and the largest predicted risk of running out of memory at
        which a configuration is tried.
    """

    run: str | None = None
    log: str = "{dir}/*.log"
    budget: int = 8
    until: float | None = 0.02
    steps: int = 12
    warm_up: int = WARM_UP
    run_timeout_s: float = 3600.0
    parallel: int = 1
    format: str = "slurm"
    options: LaunchOptions = field(default_factory=LaunchOptions)
    search: OptimizeParams = TRIAL_SEARCH

    def __post_init__(self) -> None:
        for name, least in (("budget", 1), ("warm_up", 0), ("parallel", 1)):
            if getattr(self, name) < least:
                option = f"--{name.replace('_', '-')}"
                raise InputError(option, f"must be at least {least}, got {getattr(self, name)}.")
        if self.steps <= self.warm_up:
            raise InputError("--steps", f"must be more than the {self.warm_up} of --warm-up, got {self.steps}.")
        if not self.run_timeout_s > 0:
            raise InputError("--run-timeout", f"must be more than 0 seconds, got {self.run_timeout_s:g}.")
        if self.format not in TARGETS:
            raise InputError("--format", f"must be one of {', '.join(TARGETS)}, got {self.format!r}.")
        blank = dict.fromkeys(launch.PLACEHOLDERS, "")
        launch.filled(self.run or "", blank, "--run")
        launch.filled(self.log, blank, "--log")
