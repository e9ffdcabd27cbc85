"""What a framework's module writes is read back as the same job; every plan that it may search is written."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, plan_of

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import enumerate_candidates
from pipette_opt.export.folder import write_folder
from pipette_opt.export.targets import TARGETS, export
from pipette_opt.job.launch import as_trained, legal_config
from pipette_opt.job.read import Job, read_job
from pipette_opt.job.space import search_space
from pipette_opt.layers.adapters import Adapters
from pipette_opt.options.description import JobOptions, SpaceOptions, fields_of
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.placement import host_tiles, tile_placement
from pipette_opt.read.foreign import framework_module
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import Instance, ModelSpec

FRAMEWORKS = fields_of(JobOptions)["framework"].option.words
"""Names that ``--for`` takes."""

WITH_EXPERTS = read_model("qwen3-30b-a3b")

SIMPLE = make_config(tp=1, pp=1, dp=16, num_layers=32)

QUANTISED = ("16-bit", "int8", "nf4", "nf4-double")
"""Formats of frozen weights that bitsandbytes has, and 16 bits."""

OF_TRAINERS = ("accelerate", "axolotl", "llamafactory", "msswift")
"""Frameworks whose plans are sharded data parallelism below transformers' trainer."""

NUM_PLANS = 40
"""Plans of each framework that are written and read."""


def job_of(framework: str, model: ModelSpec = LLAMA_8B) -> Job:
    """A job on four hosts of four GPUs, for a framework."""
    module = framework_module(framework)
    given = make_job(make_cluster(4, gpus=4), model, launcher=module.LAUNCHER or "slurm")
    training = replace(given.training, global_batch_size=64, seq_length=1024, **module.TRAINING)
    instance = replace(given, training=training, stack=read_stack(module.SOFTWARE))
    return Job(instance=instance, num_gpus=16, inputs={}, framework=framework, can_run=module.SPACE)


def configurations(job: Job) -> list[ParallelConfig]:
    """Configurations that the framework's search space has, drawn by a seed."""
    found = enumerate_candidates(job.instance, search_space(job, SpaceOptions()))
    legal = [config for config in found if config.recomputation != "block"]
    return random.Random(job.framework).sample(legal, min(NUM_PLANS, len(legal)))


def written(job: Job, config: ParallelConfig, folder: Path) -> None:
    """Write the launch of a configuration on the first of its tiles."""
    tile = next(host_tiles(config, job.instance.cluster.gpus_per_node, job.instance.launcher))
    cells = tile.node_grid(config)
    placement = tile_placement(config, tile, np.arange(np.prod(cells)).reshape(cells))
    plan = replace(plan_of(job.instance, SIMPLE, (0, 1, 2, 3)), config=config, placement=placement)
    write_folder(folder, export(plan, job.framework))


def read_back(job: Job, folder: Path) -> tuple[Instance, ParallelConfig]:
    """Return the job and the configuration of the launch in a folder."""
    given = read_megatron_args(str(folder), "--launch")
    instance = as_trained(job, given)
    return instance, legal_config(instance, given, 16)


@pytest.mark.search
@pytest.mark.parametrize(
    ("framework", "model"),
    [*((name, LLAMA_8B) for name in FRAMEWORKS), *((name, WITH_EXPERTS) for name in ("megatron", "nemo"))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_plans_come_back(framework: str, model: ModelSpec, tmp_path: Path) -> None:
    """With the same configuration and training, and so with the same time and memory."""
    job = job_of(framework, model)
    found = configurations(job)
    assert len(found) >= 5
    for number, config in enumerate(found):
        folder = tmp_path / str(number)
        written(job, config, folder)
        instance, read = read_back(job, folder)
        overlap = config.tp_comm_overlap
        assert replace(read, tp_comm_overlap=overlap) == config, config.label()
        training = replace(job.instance.training, tp_comm_overlap=overlap)
        assert replace(instance.training, other_arguments=None) == training


@pytest.mark.parametrize(
    ("framework", "base"),
    [
        *((name, base) for name in ("accelerate", "msswift") for base in QUANTISED),
        *(("axolotl", base) for base in QUANTISED if base != "nf4"),
        *(("llamafactory", base) for base in QUANTISED if base != "int8"),
        ("nemo", "16-bit"),
    ],
)
def test_adapters_come_back(framework: str, base: str, tmp_path: Path) -> None:
    """As arguments of TRL's trainers, with the format of the frozen weights; as a class of Megatron-Bridge."""
    adapters = Adapters(rank=12, targets=("q_proj", "down_proj"), base=base)  # type: ignore[arg-type]
    model = replace(LLAMA_8B, adapters=adapters)
    job = job_of(framework, model)
    written(job, configurations(job)[0], tmp_path / "launch")
    for launch in (tmp_path / "launch", tmp_path / "launch" / "overrides.yaml"):
        if launch.exists():
            given = read_megatron_args(str(launch), "--launch")
            assert given.finetune is not None
            assert given.finetune.applied(LLAMA_8B) == model


@pytest.mark.parametrize("framework", [*OF_TRAINERS, "torchtitan", "deepspeed"])
def test_shards_on_the_host_come_back(framework: str, tmp_path: Path) -> None:
    """What the search put there is what the launch keeps there; other sharding than ZeRO 3 is refused."""
    job = job_of(framework)
    config = next(config for config in configurations(job) if config.sharding_stage == 3)
    written(job, replace(config, offload="parameters"), tmp_path / "launch")
    instance, read = read_back(job, tmp_path / "launch")
    assert replace(read, tp_comm_overlap=config.tp_comm_overlap) == config
    assert instance.training.offload.word == "parameters"
    text = (tmp_path / "launch").iterdir()
    changes = (
        ("reshard_after_forward: true", "reshard_after_forward: false"),
        ('"always"', '"never"'),
        ('"stage": 3', '"stage": 2'),
    )
    for path in text:
        for old, new in changes:
            path.write_text(path.read_text().replace(old, new).replace("--zero-stage 3", "--zero-stage 2"))
    with pytest.raises(InputError, match="which is modelled with"):
        read_back(job, tmp_path / "launch")


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name not in (*OF_TRAINERS, "nemo")])
def test_frameworks_without_adapters_refuse_them(framework: str) -> None:
    """Before the search, with what writes them."""
    sizes = {"nodes": "1", "gpu": "h100", "global_batch_size": 8, "seq_length": 4096, "model": "llama-3.1-8b"}
    problem = (
        "shape of no torchtitan|has None"
        if framework == "torchtitan"
        else "export with --format accelerate, nemo or rankmap-csv"
    )
    with pytest.raises(InputError, match=problem):
        read_job(JobOptions(**sizes, finetune="lora", framework=framework))


@pytest.mark.parametrize(
    ("framework", "options", "error"),
    [
        ("llamafactory", {"base_format": "int8"}, "base_format: is int8, but LLaMA-Factory shards 4-bit weights only"),
        ("axolotl", {"base_format": "nf4"}, "base_format: is nf4, but axolotl quantises its constants, too"),
        ("axolotl", {"main_weights": "none"}, "main_weights: is none, but axolotl steps adapters in fp32"),
        ("msswift", {"packed": True, "attention_kernel": "unfused"}, "--packed: needs fused attention in ms-swift"),
        ("accelerate", {"precision": "fp16"}, "gradients: are in 16 bits, but accelerate keeps gradients in fp32"),
    ],
)
def test_what_trainers_lack_is_refused_before_the_search(
    framework: str, options: dict[str, object], error: str
) -> None:
    """With the framework's own reason."""
    sizes = {"nodes": "1", "gpu": "h100", "global_batch_size": 8, "seq_length": 4096, "model": "llama-3.1-8b"}
    method = "qlora" if "base_format" in options else "lora"
    with pytest.raises(InputError, match=error):
        read_job(JobOptions(**sizes, finetune=method, framework=framework, **options))  # type: ignore[arg-type]


def test_overrides_in_a_file_come_back(tmp_path: Path) -> None:
    """The YAML of Megatron-Bridge says the same as its words."""
    job = job_of("nemo")
    for number, config in enumerate(configurations(job)[:5]):
        folder = tmp_path / str(number)
        written(job, config, folder)
        given = read_megatron_args(str(folder / "overrides.yaml"), "--launch")
        words = read_megatron_args(str(folder), "--launch")
        assert (given.options, given.training_fields) == (words.options, words.training_fields)
        assert given.parallel_config(32, 16) == words.parallel_config(32, 16)


def test_names_are_modules_that_write() -> None:
    """Each name of ``--for`` is a format, and its module says what it can run."""
    for name in FRAMEWORKS:
        assert name in TARGETS
        assert read_stack(framework_module(name).SOFTWARE)
        search_space(job_of(name), SpaceOptions())


def test_jobs_that_a_framework_does_not_have() -> None:
    """They are refused before the search, not at the export."""
    sizes = {"nodes": "1", "gpu": "h100", "global_batch_size": 8, "seq_length": 4096}
    with pytest.raises(InputError, match=r"model: qwen3-8b has the shape of no torchtitan llama3 flavor"):
        read_job(JobOptions(**sizes, model="qwen3-8b", framework="torchtitan"))
    with pytest.raises(InputError, match=r"fp8: is True, but accelerate has no option for that"):
        read_job(JobOptions(**sizes, model="qwen3-8b", fp8=True, framework="accelerate"))


def test_what_a_framework_cannot_run_is_refused() -> None:
    """The option, its value, and what it can be."""
    with pytest.raises(InputError, match=r"--recompute: has selective, which torchtitan cannot run; .* none,ops,full"):
        search_space(job_of("torchtitan"), SpaceOptions(recompute=("selective",)))
    with pytest.raises(InputError, match=r"--tensor-parallel: has 8, which accelerate cannot run; it can have 1\."):
        search_space(job_of("accelerate"), SpaceOptions(tensor_parallel=(1, 8)))
    assert search_space(job_of("torchtitan"), SpaceOptions(recompute=("full",))).recompute == ("full",)
