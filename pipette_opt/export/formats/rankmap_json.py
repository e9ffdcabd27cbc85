"""The rank map as JSON."""

from pipette_opt.export.rankmap import export_rankmap_json
from pipette_opt.export.target import Target

TARGET = Target(export_rankmap_json, "rankmap.json", any_count=True, is_map=True)
