"""Number of public runs that were compared with their predictions, by GPU type, from ``data/backtests.yaml``."""

from collections import Counter
from collections.abc import Mapping

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.files import read_yaml


def runs_by_gpu() -> Mapping[str, int]:
    """Return the number of compared runs by GPU type; types without runs are absent."""
    counts = Counter[str]()
    for row in read_yaml(shipped_path("data", "backtests.yaml")):
        counts[row["gpu"]] += row["runs"]
    return counts
