"""Rank maps read back are the placement."""

import csv
import inspect
import io
import json

import numpy as np
import pytest
from factories import exportable_plan, make_plan, scrambled_plan

from pipette_opt.base.errors import InputError
from pipette_opt.cli.export import export as command
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.plans.plan import Plan


@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_json(make: object) -> None:
    """Hosts and GPUs of all ranks, and their number and order."""
    plan: Plan = make()  # type: ignore[operator]
    content = json.loads(export(plan, "rankmap-json")["rankmap.json"])
    assert (content["world_size"], content["rank_order"]) == (16, "tp-cp-ep-dp-pp")
    assert_placement(plan, content["ranks"])


@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_csv(make: object) -> None:
    """The same as a table."""
    plan: Plan = make()  # type: ignore[operator]
    rows = list(csv.DictReader(io.StringIO(export(plan, "rankmap-csv")["rankmap.csv"])))
    assert_placement(plan, rows)


def assert_placement(plan: Plan, rows: list[dict[str, str]]) -> None:
    """Rows are the ranks in order; coordinates by hand for tp 2, dp 4, pp 2."""
    assert [int(row["rank"]) for row in rows] == list(range(16))
    np.testing.assert_array_equal([plan.hosts.index(row["host"]) for row in rows], plan.placement.node)
    np.testing.assert_array_equal([int(row["local_rank"]) for row in rows], plan.placement.local_rank)
    coordinates = [tuple(int(row[name]) for name in ("tp", "cp", "ep", "dp", "pp")) for row in rows]
    assert coordinates == [(rank % 2, 0, 0, rank // 2 % 4, rank // 8) for rank in range(16)]


def test_unknown_target() -> None:
    """The message lists what there is."""
    with pytest.raises(InputError, match=r"rankmap-json.*slurm.*'pbs'"):
        export(make_plan(), "pbs")


def test_every_target_has_files_that_end_in_a_newline() -> None:
    """Whole lines only, so that files can be joined and shown."""
    for target, entry in TARGETS.items():
        files = export(exportable_plan(target), target, ExportOptions(image="image:1" if entry.needs_image else None))
        assert sorted(files) == sorted(entry.files.split(", "))
        assert all(text.endswith("\n") for text in files.values())


def test_images_belong_to_containers() -> None:
    """Needed by the targets that run containers, refused by the others."""
    with pytest.raises(InputError, match=r"image: has no effect with --format torchrun; it applies to .*slurm"):
        export(make_plan(), "torchrun", ExportOptions(image="image:1"))
    with pytest.raises(InputError, match="image: is required with --format kubernetes"):
        export(make_plan(), "kubernetes")
    for image in ("", "two words", "line\nbreak"):
        with pytest.raises(InputError, match=r"image: must not contain blanks"):
            ExportOptions(image=image)


def test_help_names_every_target() -> None:
    """The command's help is made from the names of files, since it must not import the targets."""
    text = " ".join(str(one.help) for one in inspect.signature(command).parameters["target"].annotation.__metadata__)
    assert all(target in text for target in TARGETS)
