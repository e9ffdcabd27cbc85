"""Slurm's list of switches."""

from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.link_formats.switches import parse_switches
from pipette_opt.read.links import import_links
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


def matrix_csv_mpigraph(rates: dict[tuple[int, int], int], hosts: int) -> str:
    """What mpiGraph prints, MB/s; zero where not given."""

    def table(title: str, word: str, turned: bool) -> str:
        names = [f"n{i + 1}" for i in range(hosts)]
        lines = ["\t".join([title, *names])]
        for i in range(hosts):
            cells = [rates.get((j, i) if turned else (i, j), 0) for j in range(hosts)]
            lines.append("\t".join([names[i], word, *map(str, cells)]))
        return "\n".join(lines)

    return f"START mpiGraph v1.6\n{table('Send', 'to', False)}\n\n{table('Recv', 'from', True)}\nEND mpiGraph\n"


def test_a_missing_pair_gets_the_worst_at_its_distance(tmp_path: Path) -> None:
    """Inside leaf 1: 30; between leaves 10; missing n3-n4 gets leaf 1's, missing n1-n4 the one between leaves."""
    rates = {(0, 1): 30, (0, 2): 12, (1, 2): 11, (1, 3): 10}
    rates |= {(j, i): value for (i, j), value in rates.items()}
    (tmp_path / "g.out").write_text(matrix_csv_mpigraph(rates, 4))
    (tmp_path / "switches.txt").write_text(SCONTROL)
    imported = import_links(tmp_path, fill="switch", gpu="a100-80gb", gpus_per_node=8)
    filled = imported.cluster.link_matrices[0].bytes_per_s / 2**20
    assert filled[2, 3] == pytest.approx(30)
    assert filled[0, 3] == filled[3, 0] == pytest.approx(10)
    assert np.isnan(np.diag(filled)).all()
    assert any(
        "median GB/s by switch: under one leaf 0.03 (2 links), 1 level up 0.01" in note for note in imported.notes
    )
    (tmp_path / "switches.txt").unlink()
    with pytest.raises(InputError, match="switch needs the output of scontrol"):
        import_links(tmp_path, fill="switch", gpu="a100-80gb", gpus_per_node=8)
