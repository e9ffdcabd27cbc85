"""The rank map as JSON."""

from pipette_opt.export.rankmap import export_rankmap_json
from pipette_opt.export.target import ANY, Target

TARGET = Target(export_rankmap_json, "rankmap.json", ANY, any_count=True, is_map=True)
