"""File of the trained network: plain numpy arrays, with the names of the features."""

import io
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import MIB
from pipette_opt.memory.features import FEATURE_NAMES

FORMAT = "pipette-opt memory network 2"

MAX_ARRAYS, MAX_ARRAY_BYTES = 64, 64 * MIB
"""Maximum number of arrays in a file, and maximum of their total bytes; the shipped network takes 0.1 MiB. Chosen."""

MAX_LOG_RATIO = 10.0
"""Maximum of the absolute ``log(peak / formula)`` in a network file; training has values below 3. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NetworkWeights:
    """
    Weights of :class:`~models.memory.network.MemoryNetwork` as numpy arrays.

    Parameters
    ----------
    mean, scale
        Scaling of each feature, shape ``(num_features,)``.
    weights, biases
        Parameters of each layer, shapes ``(outputs, inputs)`` and ``(outputs,)``.
    lowest, highest
        Range of each feature in training, shape ``(num_features,)``.
    log_ratio_range
        Range of ``log(peak / formula)`` in training; predictions are clipped to this range.
    """

    mean: FloatArray
    scale: FloatArray
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    lowest: FloatArray
    highest: FloatArray
    log_ratio_range: FloatArray

    def log_ratio(self, features: FloatArray) -> FloatArray:
        """Predict ``log(peak / formula)`` of every row, shape ``(num_rows,)``."""
        x = (features - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = np.tanh(x @ weight.T + bias)
        out = (x @ self.weights[-1].T + self.biases[-1])[:, 0]
        return np.clip(out, *self.log_ratio_range)


def read_weights(path: Path) -> NetworkWeights:
    """
    Return the network in a file.

    Raises
    ------
    InputError
        If the file is damaged, of another program, or of a network with other features.
    """
    try:
        arrays = _arrays(read_bytes(path))
    except InputError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        problem = f"is no readable weights file ({error}); `python -m models.memory.train` writes one."
        raise InputError(str(path), problem) from error
    if str(arrays.get("format")) != FORMAT:
        raise InputError(str(path), f"format must be {FORMAT!r}, got {str(arrays.get('format'))!r}.")
    names = tuple(str(name) for name in arrays.get("feature_names", ()))
    if names != FEATURE_NAMES:
        raise InputError(str(path), f"was trained on other features: {sorted(set(names) ^ set(FEATURE_NAMES))}.")
    try:
        return _network(arrays)
    except (KeyError, ValueError) as error:
        raise InputError(str(path), f"is damaged: {error}.") from error


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name. Raise ``ValueError`` for large arrays or sizes unlike the header's."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > MAX_ARRAYS or sum(member.file_size for member in members) > MAX_ARRAY_BYTES:
            raise ValueError(f"more than {MAX_ARRAYS} arrays or {MAX_ARRAY_BYTES >> 20} MiB")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"{name} occurs twice")
            content = archive.read(member)
            head = io.BytesIO(content)
            if np.lib.format.read_magic(head) != (1, 0):
                raise ValueError(f"{name} is of another version than numpy.savez writes")
            shape, _, kind = np.lib.format.read_array_header_1_0(head)
            if kind.hasobject or math.prod(shape) * kind.itemsize != len(content) - head.tell():
                raise ValueError(f"{name} has no plain numbers, or fewer or more than its header says")
            found[name] = np.load(io.BytesIO(content), allow_pickle=False)
    return found


def _network(arrays: dict[str, np.ndarray]) -> NetworkWeights:
    """Return the network, after checks of shapes and values."""
    depth = sum(name.startswith("weight_") for name in arrays)
    floats = {name: np.asarray(arrays[name], dtype=np.float64) for name in arrays if arrays[name].dtype.kind in "fiu"}
    for name, array in floats.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite")
    weights = tuple(floats[f"weight_{index}"] for index in range(depth))
    biases = tuple(floats[f"bias_{index}"] for index in range(depth))
    inputs = len(FEATURE_NAMES)
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if weight.ndim != 2 or weight.shape[1] != inputs or bias.shape != weight.shape[:1]:
            raise ValueError(f"layer {index} has shapes {weight.shape} and {bias.shape}")
        inputs = weight.shape[0]
    if not depth or inputs != 1:
        raise ValueError(f"the network has {depth} layers and {inputs} outputs")
    for name in ("mean", "scale", "lowest", "highest"):
        if floats[name].shape != (len(FEATURE_NAMES),):
            raise ValueError(f"{name} has shape {floats[name].shape}")
    if not (floats["scale"] > 0).all():
        raise ValueError("scale must be > 0")
    if floats["log_ratio_range"].shape != (2,):
        raise ValueError("log_ratio_range has the wrong shape")
    if not -MAX_LOG_RATIO <= floats["log_ratio_range"][0] <= floats["log_ratio_range"][1] <= MAX_LOG_RATIO:
        raise ValueError(f"log_ratio_range must rise between -{MAX_LOG_RATIO:g} and {MAX_LOG_RATIO:g}")
    return NetworkWeights(
        mean=floats["mean"],
        scale=floats["scale"],
        weights=weights,
        biases=biases,
        lowest=floats["lowest"],
        highest=floats["highest"],
        log_ratio_range=floats["log_ratio_range"],
    )
