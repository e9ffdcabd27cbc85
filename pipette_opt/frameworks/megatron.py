"""Megatron-LM's arguments as arrays of bash; :mod:`pipette_opt.read.megatron_args` reads them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.target import ELSEWHERE, Target

SOFTWARE = "megatron-core"

LAUNCHER = None
"""Launcher that Megatron-LM needs: any."""

TRAINING: Mapping[str, Any] = MappingProxyType({})
"""Fields of the training that the framework sets: none."""

SPACE: Mapping[str, Any] = MappingProxyType({})
"""Fields of a search space whose default values Megatron-LM cannot run: none."""

TARGET = Target(export_megatron, "megatron_args.sh", ELSEWHERE, any_count=True)
