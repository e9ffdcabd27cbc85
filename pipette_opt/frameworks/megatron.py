"""Megatron-LM's arguments as arrays of bash; :mod:`pipette_opt.read.megatron_args` reads them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipette_opt.export.megatron import MODEL_FIELDS, TRAINING_FIELDS, export_megatron
from pipette_opt.export.recorded import refuse_unwritten, written_training
from pipette_opt.export.target import Target
from pipette_opt.specs import ModelSpec, TrainingSpec

SOFTWARE = "megatron-core"

LAUNCHER = None
"""Launcher that Megatron-LM needs: any."""

TRAINING: Mapping[str, Any] = MappingProxyType({})
"""Fields of the training that the framework sets: none."""

SPACE: Mapping[str, Any] = MappingProxyType({})
"""Fields of a search space whose default values Megatron-LM cannot run: none."""


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for a model or training that Megatron-LM has no option for."""
    refuse_unwritten("Megatron-LM", model, MODEL_FIELDS)
    refuse_unwritten("Megatron-LM", written_training(training), TRAINING_FIELDS)


TARGET = Target(export_megatron, "megatron_args.sh", any_count=True)
