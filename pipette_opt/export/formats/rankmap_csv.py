"""The rank map as CSV."""

from pipette_opt.export.rankmap import export_rankmap_csv
from pipette_opt.export.target import Target

TARGET = Target(export_rankmap_csv, "rankmap.csv", any_count=True, is_map=True)
