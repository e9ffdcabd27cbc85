"""Launch scripts evaluated as bash does, without running anything."""

from pipette_opt.read.shell.evaluation import Evaluation, ExternalCommand, evaluate

__all__ = ["Evaluation", "ExternalCommand", "evaluate"]
