"""The rank map as CSV."""

from pipette_opt.export.rankmap import export_rankmap_csv
from pipette_opt.export.target import ANY, Target

TARGET = Target(export_rankmap_csv, "rankmap.csv", ANY, any_count=True, is_map=True)
