"""Megatron-LM's arguments as arrays of bash."""

from pipette_opt.export.megatron import export_megatron
from pipette_opt.export.target import ELSEWHERE, Target

TARGET = Target(export_megatron, "megatron_args.sh", ELSEWHERE, any_count=True)
