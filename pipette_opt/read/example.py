"""Shipped examples: a cluster, a model and a job, ready to solve."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.types import Precision
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.model import read_model
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

_FIELDS = ("description", "cluster", "model", "global_batch_size", "seq_length", "precision", "num_gpus")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """
    Shipped job that is ready to solve.

    Parameters
    ----------
    num_gpus
        Number of GPUs to use; ``None`` for all.
    cluster_path, path
        Paths of the cluster file and of the example file.
    """

    name: str
    description: str
    cluster: ClusterSpec
    model: ModelSpec
    training: TrainingSpec
    num_gpus: int | None
    cluster_path: Path
    path: Path


def list_examples() -> tuple[str, ...]:
    """Return the names of the shipped examples."""
    return tuple(sorted(path.stem for path in shipped_path("data", "examples").glob("*.yaml")))


def read_example(name: str) -> Example:
    """Read a shipped example, e.g. ``lab-16x8``."""
    if name.strip().lower() not in list_examples():
        hint = did_you_mean(name, list_examples())
        raise InputError("--example", f"unknown example {name!r}.{hint} Examples: {', '.join(list_examples())}.")
    path = shipped_path("data", "examples", f"{name.strip().lower()}.yaml")
    fields = Fields(str(path), read_yaml(path), _FIELDS)
    cluster_path = shipped_path("data", "clusters", f"{fields.text('cluster')}.yaml")
    return Example(
        name=path.stem,
        description=fields.text("description", ""),
        cluster=read_cluster(cluster_path),
        model=read_model(fields.text("model")),
        training=TrainingSpec(
            global_batch_size=fields.whole("global_batch_size"),
            seq_length=fields.whole("seq_length"),
            precision=cast(Precision, fields.choice("precision", ("fp32", "fp16", "bf16"), "bf16")),
        ),
        num_gpus=fields.whole("num_gpus") if fields.has("num_gpus") else None,
        cluster_path=cluster_path,
        path=path,
    )
