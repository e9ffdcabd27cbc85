"""Files and options that are refused, each with one message that names the place, the value and what would be right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import link_logs
import pytest
import test_expert_loads as expert_loads
import test_gpu_matrices as gpu_matrices
import test_levels_of_files as levels
import test_nominal as nominal
import test_profile as profile
import test_quietly_wrong as quietly_wrong
import test_read_cluster as cluster
import test_read_runs as runs
import test_run_launches as run_launches
from factories import make_cluster
from hugging_face_configs import LAYER_LISTS, LLAMA_3_8B
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.expert_loads import read_expert_loads
from pipette_opt.read.files import parse_json
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.link_formats.link_log import parse_link_log
from pipette_opt.read.link_formats.switches import parse_switches
from pipette_opt.read.links import import_links as read_links
from pipette_opt.read.log_lines import Log
from pipette_opt.read.matrices import read_matrix
from pipette_opt.read.model import read_model
from pipette_opt.read.nics import parse_nics
from pipette_opt.read.nominal import nominal_cluster
from pipette_opt.read.pipeline_layout import layers_of_layout
from pipette_opt.read.prices import parse_prices
from pipette_opt.read.profile import read_profile
from pipette_opt.read.runs import read_runs
from pipette_opt.read.speeds import parse_speeds


def written(folder: Path, **texts: str) -> Path:
    """Write files of a folder, and return the first."""
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder / next(iter(texts)).replace("_", ".")


def cluster_of(folder: Path, text: str, **matrices: str) -> None:
    """Read a cluster file with matrices beside it."""
    read_cluster(written(folder, c_yaml=text, **matrices))


def log_of(changes: dict[str, Any]) -> None:
    """Read a log of links whose lines have other values."""
    lines = ({**line, **{name: changes[name] for name in line if name in changes}} for line in quietly_wrong.LINES)
    parse_link_log("".join(json.dumps(line) + "\n" for line in lines), "l.log")


GIVEN = {"gpu": "a100-80gb", "gpus_per_node": 8}

READERS: dict[str, Callable[..., object]] = {
    "cluster": lambda folder, old, new: cluster_of(folder, cluster.GOOD.replace(old, new, 1), links_csv=cluster.LINKS),
    "matrix": lambda folder, old, new: cluster_of(folder, cluster.GOOD, links_csv=cluster.LINKS.replace(old, new)),
    "matrix in JSON": lambda folder, text: read_matrix(written(folder, links_json=text)),
    "matrix inside hosts": lambda folder, old, new: cluster_of(
        folder, gpu_matrices.CLUSTER, pairs_csv=gpu_matrices.PAIRS.replace(old, new)
    ),
    "matrices inside hosts": lambda folder, entries: cluster_of(
        folder, gpu_matrices.CLUSTER.replace("[{file: pairs.csv}]", entries), pairs_csv=gpu_matrices.PAIRS
    ),
    "matrix of GPUs": lambda folder, old, new: cluster_of(
        folder, gpu_matrices.with_singles(), singles_csv=gpu_matrices.SINGLES.replace(old, new)
    ),
    "NICs of GPUs": lambda folder, nics: cluster_of(
        folder,
        gpu_matrices.with_singles(f"inter_node: {{nics_per_node: 2, nic_of_gpu: {nics}, "),
        singles_csv=gpu_matrices.SINGLES,
    ),
    "levels": lambda folder, given: levels.parsed(given),
    "--nics": lambda folder, text: parse_nics(text, "--nics"),
    "hosts without a file": lambda folder, change: nominal_cluster(**{**nominal.H100, **change}),
    "--gpu-price": lambda folder, entries: parse_prices(entries, make_cluster(3)),
    "--speed": lambda folder, entries: parse_speeds(entries),
    "mpiGraph": lambda folder, old, new: read_links(
        written(folder, mpi_out=link_logs.MPIGRAPH.replace(old, new, 1)), **GIVEN
    ),
    "links in JSON": lambda folder, text: read_links(written(folder, m_json=text), **GIVEN),
    "log of links": lambda folder, changes: log_of(changes),
    "line of a log of links": lambda folder, line: parse_link_log(
        f"{json.dumps(quietly_wrong.HEADER)}\n{line}\n", "l.log"
    ),
    "switches": lambda folder, text: parse_switches(Log(text), "topology"),
    "loads of experts": lambda folder, text: read_expert_loads(str(written(folder, loads_csv=text)), expert_loads.MOE),
    "law of loads": lambda folder, text: read_expert_loads(text, expert_loads.MOE),
    "pipeline layout": lambda folder, layout: layers_of_layout(layout, 8, 0, 2, "here"),
    "profile": lambda folder, lines: read_profile(profile.written(folder, *lines)),
    "JSON": lambda folder, text: parse_json(text, "f"),
    "config.json": lambda folder, content: read_model(written(folder, config_json=json.dumps(content))),
    "config.json of Llama": lambda folder, change: read_model(
        written(folder, config_json=json.dumps(LLAMA_3_8B | change))
    ),
    "config.json with lists": lambda folder, name, change: model_from_hugging_face(
        LAYER_LISTS[name] | change, "config.json", name
    ),
    "cells of runs": lambda folder, changes: read_runs(runs.write(folder / "runs.csv", runs.GOOD, runs.GOOD | changes)),
    "runs": lambda folder, text: read_runs(written(folder, runs_csv=text)),
    "launches of runs": lambda folder, cells: run_launches.read(folder, **cells),
}


@pytest.mark.parametrize(
    ("kind", "given", "named"), [(kind, *row) for kind in READERS for row in table(__file__, kind)]
)
def test_refused(kind: str, given: list[Any], named: str | list[str], tmp_path: Path) -> None:
    """Each part of the message is there, in one line."""
    with pytest.raises(InputError) as refused:
        READERS[kind](tmp_path, *given)
    for part in [named] if isinstance(named, str) else named:
        assert part in str(refused.value)
