"""A PyTorchJob of Kubeflow."""

from pipette_opt.export.formats.kubernetes import export_pytorchjob
from pipette_opt.export.target import OF_PODS, PER_HOST, Target

TARGET = Target(export_pytorchjob, "pytorchjob.yaml", PER_HOST, takes=OF_PODS, needs_image=True)
