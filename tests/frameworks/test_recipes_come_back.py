"""NVIDIA's public recipes: what is written for Megatron-Bridge is read back as the same job."""

import csv
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from factories import LLAMA_8B, make_cluster, make_config, make_job, plan_of

from benchmarks.measured import shared_folder
from pipette_opt.base.errors import InputError
from pipette_opt.frameworks.nemo import hydra_words, overrides
from pipette_opt.job.launch import as_trained, legal_config
from pipette_opt.job.read import Job, read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.parallel.placement import host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_args import MegatronArgs, read_megatron_args

RECIPES = shared_folder() / "recipes" / "megatron_args"

BASE = plan_of(make_job(make_cluster(2), LLAMA_8B), make_config(tp=1, pp=1, dp=16, num_layers=32), (0, 1))
"""Plan whose job and configuration are replaced by a recipe's."""


def job_of(row: dict[str, str]) -> tuple[Job, Plan]:
    """The job of a recipe on its own GPUs, and a plan with its configuration."""
    file, num_gpus = str(RECIPES / f"{row['name']}.args"), int(row["num_gpus"])
    nodes, per_node = str(max(num_gpus // 8, 1)), min(8, num_gpus)
    job = read_job(JobOptions(nodes=nodes, gpu=row["gpu"], gpus_per_node=per_node, nics="8x400", launch=file))
    assert job.launch is not None
    instance = as_trained(job, job.launch)
    config = legal_config(instance, job.launch, num_gpus)
    tile = next(host_tiles(config, instance.cluster.gpus_per_node, instance.launcher))
    cells = tile.node_grid(config)
    placement = tile_placement(config, tile, np.arange(np.prod(cells)).reshape(cells))
    inputs = {**BASE.inputs, "model": asdict(instance.model), "training": asdict(instance.training)}
    batch = instance.training.global_batch_size
    plan = replace(BASE, config=config, placement=placement, inputs=inputs, global_batch_size=batch, p2p=instance.p2p)
    return replace(job, instance=instance), plan


def figures_of(job: Job, given: MegatronArgs, num_gpus: int) -> tuple[Any, ...]:
    """Configuration, training and model of a launch, without names and arguments that no figure depends on."""
    instance = as_trained(job, given)
    assert given.model is not None
    training = replace(instance.training, other_arguments=None)
    return legal_config(instance, given, num_gpus), training, replace(given.model, name="", other_arguments=None)


@pytest.mark.search
@pytest.mark.skipif(not RECIPES.is_dir(), reason="NVIDIA's recipes are not here")
def test_recipes_come_back_from_overrides(tmp_path: Path) -> None:
    """Every recipe that is priced on hosts of eight GPUs, as YAML and as words."""
    equal, unpriced = 0, []
    with (RECIPES / "index.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        try:
            job, plan = job_of(row)
        except InputError:
            unpriced.append(row["name"])
            continue
        assert job.launch is not None
        sections, num_gpus = overrides(plan), int(row["num_gpus"])
        as_yaml = tmp_path / "overrides.yaml"
        as_yaml.write_text(yaml.safe_dump(sections))
        wanted = figures_of(job, job.launch, num_gpus)
        assert figures_of(job, read_megatron_args(str(as_yaml), "--launch"), num_gpus) == wanted, row["name"]
        script = tmp_path / "launch.sh"
        script.write_text("torchrun run_recipe.py " + " ".join(f'"{word}"' for word in hydra_words(sections)) + "\n")
        assert figures_of(job, read_megatron_args(str(script), "--launch"), num_gpus) == wanted, row["name"]
        equal += 1
    assert (equal, len(unpriced)) == (216, 13), unpriced
