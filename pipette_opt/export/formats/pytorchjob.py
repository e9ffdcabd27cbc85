"""A PyTorchJob of Kubeflow."""

from pipette_opt.export.formats.kubernetes import export_pytorchjob
from pipette_opt.export.target import OF_PODS, Target

TARGET = Target(export_pytorchjob, "pytorchjob.yaml", takes=OF_PODS, needs_image=True)
