"""Tables of traced stages, and the file of the trained network."""

import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from pipette_opt.base.files import write_atomically
from pipette_opt.memory.features import FEATURE_NAMES
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.weights import FORMAT, NetworkWeights


def join_tables(tables: Sequence[StageTable]) -> StageTable:
    """Return one table with the rows of several tables, in order."""
    return StageTable(
        **{field.name: np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(StageTable)}
    )


def write_weights(path: Path, network: NetworkWeights) -> None:
    """Write the network to a file; equal networks give equal bytes."""
    arrays: dict[str, np.ndarray] = {
        "format": np.array(FORMAT),
        "feature_names": np.array(FEATURE_NAMES),
        "mean": network.mean,
        "scale": network.scale,
        "lowest": network.lowest,
        "highest": network.highest,
        "log_ratio_range": network.log_ratio_range,
    }
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        arrays |= {f"weight_{index}": weight, f"bias_{index}": bias}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())
