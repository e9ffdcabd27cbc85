"""Options shared by several commands, and the job that they describe."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli.spread import OnlyInJobFile as OnlyInJobFile
from pipette_opt.cli.spread import OrJobFile as OrJobFile
from pipette_opt.cli.spread import WholeLaunch as WholeLaunch
from pipette_opt.cli.spread import Without as Without
from pipette_opt.cli.spread import is_given as is_given
from pipette_opt.cli.spread import parameter as parameter
from pipette_opt.cli.spread import parameters_of as parameters_of
from pipette_opt.cli.spread import spread as spread
from pipette_opt.cli.spread import typed_of as typed_of
from pipette_opt.cli.spread import typer_option as typer_option
from pipette_opt.cli.spread import with_parameters as with_parameters
from pipette_opt.options.description import JobOptions as JobOptions
from pipette_opt.options.description import SearchOptions as SearchOptions
from pipette_opt.options.description import SpaceOptions as SpaceOptions
from pipette_opt.options.questions import LimitOptions as LimitOptions
from pipette_opt.options.values import checked as checked
from pipette_opt.options.values import given_of as given_of
from pipette_opt.options.values import one_of as one_of
from pipette_opt.options.values import sizes as sizes

JOB, RUN = "The job", "The run"

Cluster = Annotated[Path | None, typer_option("cluster")]
VocabSize = Annotated[int | None, typer_option("vocab_size")]
Env = Annotated[list[str] | None, typer_option("env")]
Software = Annotated[str | None, typer_option("software")]
MaxOomRisk = Annotated[float, typer_option("max_oom_risk")]
TimeLimit = Annotated[float, typer_option("time_limit")]
DONE_GAP = 0.01
"""Proven gap up to which a search that reached its time limit exits with 0, without ``--gap-limit``. Chosen."""

Workers = Annotated[int | None, typer_option("workers")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all tables, and log the solver's steps.", rich_help_panel=RUN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer and errors.", rich_help_panel=RUN)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)]
