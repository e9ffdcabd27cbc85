"""torchrun with Megatron-LM's training script."""

from pipette_opt.export.target import Target
from pipette_opt.export.torchrun import export_torchrun

TARGET = Target(export_torchrun, "launch.sh, nodes.txt")
