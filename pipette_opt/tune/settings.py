"""Settings of a search on a cluster."""

from dataclasses import dataclass, field

from pipette_opt.base.errors import InputError
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.targets import TARGETS
from pipette_opt.options.trials import TrialOptions
from pipette_opt.options.values import check_declared
from pipette_opt.tune import launch

TRIAL_SEARCH = OptimizeParams(time_limit_s=5.0, workers=1, max_oom_risk=0.5)
"""Default search for a trial's placement. Chosen: a trial that runs out of memory ends soon, and teaches memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings(TrialOptions):
    """
    Settings of a search on a cluster.

    Parameters
    ----------
    until
        Stated regret at which the search ends; ``None``: at the end of the budget.
    format
        Export format.
    options
        Options of the launch.
    search
        Limits of the search for each trial's placement, and the largest predicted risk of running out of memory at
        which a configuration is tried.
    """

    until: float | None = 0.02
    format: str = "slurm"
    options: ExportOptions = field(default_factory=ExportOptions)
    search: OptimizeParams = TRIAL_SEARCH

    def __post_init__(self) -> None:
        check_declared(self)
        if self.steps <= self.warm_up:
            raise InputError("--steps", f"must be more than the {self.warm_up} of --warm-up, got {self.steps}.")
        if not self.run_timeout > 0:
            raise InputError("--run-timeout", f"must be more than 0 seconds, got {self.run_timeout:g}.")
        if self.format not in TARGETS:
            raise InputError("--format", f"must be one of {', '.join(TARGETS)}, got {self.format!r}.")
        blank = dict.fromkeys(launch.PLACEHOLDERS, "")
        launch.filled(self.run or "", blank, "--run")
        launch.filled(self.log, blank, "--log")
