"""``links``, the end of ``import links``, and a plan on a cluster that changed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.cluster import exclude_hosts, read_cluster, write_cluster
from pipette_opt.replan import whatif

Command = Callable[..., tuple[int, str, str]]


def lab(*, slow: str | None = None) -> Path:
    """The cluster of lab-16x8 in this folder, perhaps with a host that is half as fast as it was."""
    spec = read_cluster(shipped_path("data", "clusters", "lab-16x8.yaml"))
    if slow is not None:
        node, matrices = spec.hosts.index(slow), []
        for matrix in spec.link_matrices:
            links = np.array(matrix.bytes_per_s)
            links[node] *= 0.5
            links[:, node] *= 0.5
            matrices.append(replace(matrix, bytes_per_s=links))
        spec = replace(spec, link_matrices=tuple(matrices))
    path = Path(f"{slow or 'lab'}.yaml")
    write_cluster(spec, path, comment="")
    return path


def test_health_of_one_file(command: Command) -> None:
    """The two slow hosts that the example was made with."""
    code, out, _ = command("links", str(lab()), "--json")
    found = json.loads(out)
    assert code == 0
    assert sorted(found["slow_hosts"]) == ["gpu06", "gpu11"]
    assert found["changed"] == []
    code, out, _ = command("links", str(lab()))
    assert code == 0
    assert "gpu11 attains 60 %" in out


def test_two_files_are_compared(command: Command) -> None:
    """What became slower is named, by how much."""
    code, out, _ = command("links", str(lab()), str(lab(slow="gpu02")))
    assert code == 0
    assert "hosts that became slower than others: gpu02 (-50 %)" in out


def test_links_that_nobody_measured(command: Command) -> None:
    """Have no health."""
    assert command("init", "--nodes", "4", "--gpu", "h100", "-o", "none.yaml")[0] == 0
    code, _, err = command("links", "none.yaml")
    assert code == 2
    assert "has no measured links" in err


def test_a_plan_on_a_cluster_that_changed(command: Command, lab_plan: Path) -> None:
    """Its time there, and what changed; where a host is gone it cannot be; its own file changes nothing."""
    own = shipped_path("data", "clusters", "lab-2x8.yaml")
    spec = read_cluster(own)
    slower = tuple(replace(one, bytes_per_s=one.bytes_per_s * 0.1) for one in spec.link_matrices)
    write_cluster(replace(spec, link_matrices=slower), Path("slower.yaml"), comment="")
    code, out, _ = command("estimate", str(lab_plan), "--cluster", "slower.yaml", "--json")
    found, recorded = json.loads(out), json.loads(lab_plan.read_text())
    assert code == 0
    assert found["estimate"]["iteration_time_s"] > recorded["estimate"]["iteration_time_s"]
    assert "1 flow: a usual link attains -90.0 %." in found["changed"]
    assert found["changed"][-1].startswith(f"An iteration took {recorded['estimate']['expected_s']:.2f} s")
    code, out, _ = command("estimate", str(lab_plan), "--cluster", str(own))
    assert code == 0
    assert "Since the plan was made" not in out
    write_cluster(exclude_hosts(spec, ("gpu02",)), Path("less.yaml"), comment="")
    code, _, err = command("estimate", str(lab_plan), "--cluster", "less.yaml")
    assert code == 2
    assert "lacks host 'gpu02', on which the plan has ranks" in err


def test_health_of_imported_links_and_repairs_of_a_plan(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow host is named, and with a plan also what its repair would bring to it."""
    rates = np.full((5, 5), 10_000.0)
    rates[3], rates[:, 3] = 400.0, 400.0
    Path("links.json").write_text(json.dumps({"gpus": [f"h{i}" for i in range(5)], "bandwidth": rates.tolist()}))
    monkeypatch.setattr(whatif, "UNIT_S", 0.1)
    hosts = ("--gpu", "a100-80gb", "--gpus-per-node", "1")
    code, out, err = command("import", "links", "links.json", "-o", "c.yaml", *hosts, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["slow_hosts"] == ["h3"]
    assert found["health"][0].startswith("h3 attains 4 % of what is usual")
    job = ("--model", "gpt-3-1.3b", "--global-batch-size", "16", "--seq-length", "2048")
    code, _, err = command("solve", "--cluster", "c.yaml", *job, "--time-limit", "0.5", "--gap-limit", "0.9")
    assert code == 0, err
    code, out, err = command("links", "c.yaml", "--plan", "plan.json", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["slow_hosts"] == ["h3"]
    assert len(found["repairs"]) == 1
    assert "h3" in found["repairs"][0]
