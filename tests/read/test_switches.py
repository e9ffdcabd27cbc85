"""Slurm's list of switches."""

from pipette_opt.read.link_formats.switches import parse_switches
from pipette_opt.read.log_lines import Log

SCONTROL = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
SwitchName=alone Level=0 LinkSpeed=1 Nodes=n5
"""


def test_distances() -> None:
    """Same leaf, one level up, no common switch, unknown."""
    tree = parse_switches(Log(SCONTROL), "topology")
    assert tuple(tree.ancestors) == ("n1", "n2", "n3", "n4", "n5")
    assert tree.distance("n1", "n2") == 0
    assert tree.distance("n2", "n3") == 1
    assert tree.distance("n1", "n5") is None
    assert tree.distance("n1", "elsewhere") is None


def test_lines_that_are_no_switches_are_counted() -> None:
    """Comments of topology.conf are known; options of other plugins are not used."""
    log = Log(f"# leaves\nBlockName=b1 Nodes=n[1-2]\n{SCONTROL}")
    parse_switches(log, "topology")
    assert log.unused() == "1 of 6 lines were not used: first, line 2: 'BlockName=b1 Nodes=n[1-2]'."
