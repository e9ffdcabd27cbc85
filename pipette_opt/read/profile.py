"""Reader of measured layer times from a CSV file."""

import logging
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import ABOVE_ZERO, number_in
from pipette_opt.read.fields import unused_keys
from pipette_opt.read.files import read_csv
from pipette_opt.read.kinds_of_files import PROFILE_TABLE, reads
from pipette_opt.specs import ComputeProfile, ProfileKey

logger = logging.getLogger(__name__)

SIZES, TIMES = ("tensor_model_parallel_size", "micro_batch_size", "seq_length"), ("forward_s", "backward_s")

COLUMNS = ("gpu", *SIZES, *TIMES)


@reads(PROFILE_TABLE)
def read_profile(path: str | Path) -> ComputeProfile:
    """
    Return the layer times in a CSV file.

    Columns are ``gpu, tensor_model_parallel_size, micro_batch_size, seq_length, forward_s, backward_s``. Times are
    seconds of one transformer layer of the model to plan, without communication and recomputation.
    """
    header, rows = read_csv(path)
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise InputError(str(path), f"needs the columns {', '.join(COLUMNS)}; {', '.join(missing)} missing.")
    if unused := unused_keys(header, COLUMNS):
        logger.warning("%s: %s", path, unused)
    layers: dict[ProfileKey, tuple[float, float]] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        texts = {column: (row[column] or "").strip() for column in COLUMNS}
        sizes = {
            name: int(number_in(texts[name], where, f"{name} must be a whole number >= 1", 1, is_whole=True))
            for name in SIZES
        }
        key = ProfileKey(gpu=texts["gpu"].lower(), **sizes)
        if key in layers:
            raise InputError(where, "repeats the sizes of an earlier line; remove one of the two lines.")
        forward_s, backward_s = (
            number_in(texts[name], where, f"{name} must be seconds > 0", ABOVE_ZERO) for name in TIMES
        )
        layers[key] = (forward_s, backward_s)
    if not layers:
        raise InputError(str(path), "has no rows.")
    return ComputeProfile(layers=layers)
