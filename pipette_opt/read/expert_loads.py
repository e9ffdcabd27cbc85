"""Loads of experts for ``expert_loads``: a file of counts or shares, or a Zipf law such as ``zipf:1.2``."""

from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import number_in, number_of
from pipette_opt.read.files import read_text
from pipette_opt.read.kinds_of_files import reads
from pipette_opt.specs import ModelSpec
from pipette_opt.specs.expert_loads import zipf_loads

OPTION = "expert_loads"

ZIPF = "zipf:"
"""Prefix of a Zipf law, given in place of a file."""

MAX_EXPONENT = 10.0
"""Largest exponent of a Zipf law: with two experts, the second already gets a thousandth. Chosen."""

SLACK = 1e-3
"""Relative tolerance of expert loads, as shares are often written with three digits. Chosen."""


@reads()
def read_expert_loads(given: str, model: ModelSpec) -> FloatArray:
    """
    Return the share of routed tokens that each expert gets, shape ``(layers, num_experts)``; each row sums to 1.

    A file has a line of numbers for each layer with experts, or one line for all layers; commas or blanks separate
    them. The numbers are shares or counts of tokens. ``InputError`` unless a line has a number for each expert, or if
    an expert gets more than each token once.
    """
    if model.num_experts is None:
        raise InputError(OPTION, f"has no effect, because model {model.name} has no experts.")
    num_experts, topk = model.num_experts, model.moe_router_topk
    if given.startswith(ZIPF):
        must = f"zipf takes an exponent from 0 to {MAX_EXPONENT:g}, e.g. zipf:1.2"
        exponent = number_in(given.removeprefix(ZIPF), OPTION, must, 0, MAX_EXPONENT)
        return zipf_loads(num_experts, topk, exponent)
    lines = [line for line in read_text(Path(given)).splitlines() if line.strip() and not line.startswith("#")]
    rows = []
    for number, line in enumerate(lines, 1):
        where = f"{given}, line {number}"
        try:
            row = np.array([number_of(word) for word in line.replace(",", " ").split()])
        except ValueError:
            raise InputError(where, f"must be numbers separated by commas or blanks, got {line[:40]!r}.") from None
        if len(row) != num_experts:
            raise InputError(where, f"must have a number for each of the {num_experts} experts, got {len(row)}.")
        if not ((row >= 0).all() and row.sum() > 0):
            raise InputError(where, "must be numbers >= 0, at least one above 0.")
        row /= row.sum()
        if row.max() > (1 + SLACK) / topk:
            most = f"an expert can get 1/{topk} of the copies, as each token goes to {topk} different ones"
            raise InputError(where, f"{most}; got {row.max():.3f} for expert {int(row.argmax())}.")
        rows.append(row)
    if len(rows) not in (1, model.num_moe_layers):
        raise InputError(
            given, f"must have 1 line, or one for each of the {model.num_moe_layers} layers, got {len(rows)}."
        )
    return np.array(rows)
