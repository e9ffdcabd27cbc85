"""Evaluation of launch scripts by the rules of bash, without running a program."""

from pipette_opt.read.shell.evaluation import Evaluation, ExternalCommand, evaluate, missing_variables

__all__ = ["Evaluation", "ExternalCommand", "evaluate", "missing_variables"]
