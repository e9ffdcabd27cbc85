"""Evaluation of launch scripts by the rules of bash, without running a program."""

from pipette_opt.read.shell.evaluation import INSTEAD, Evaluation, ExternalCommand, evaluate, missing_variables

__all__ = ["INSTEAD", "Evaluation", "ExternalCommand", "evaluate", "missing_variables"]
