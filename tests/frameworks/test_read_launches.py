"""Launches of other frameworks, read: files and command lines, and the right words."""

import re
from pathlib import Path
from typing import Any

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.frameworks.torchtitan import PRESETS
from pipette_opt.job.read import read_job
from pipette_opt.library.current import current_of
from pipette_opt.options.description import JobOptions
from pipette_opt.read.megatron_args import MegatronArgs, read_megatron_args
from pipette_opt.read.model import list_models, read_model


def put(files: dict[str, str], folder: Path) -> None:
    """Write the files of a launch."""
    for name, text in files.items():
        (folder / name).write_text(text)


def described(given: MegatronArgs, layers: int, gpus: int) -> dict[str, Any]:
    """The launch in the words of the table."""
    return {
        "label": given.parallel_config(layers, gpus).label(),
        "batch": given.batch_on(gpus),
        "length": given.seq_length,
        "precision": given.precision,
        "software": given.software,
        "model": given.model_name,
        "training": dict(given.training_fields),
        "left out": [entry.option for entry in given.not_modelled],
        "finetune": finetuned(given),
    }


def finetuned(given: MegatronArgs) -> list[Any] | None:
    """Method, rank, targets, base and dropout of the fine-tuning, which its model has to take."""
    found = given.finetune
    if found is None:
        return None
    if given.model_name:
        found.applied(read_model(given.model_name))
    return [found.method, found.rank, found.targets, found.base, found.dropout]


@pytest.mark.parametrize("row", table(__file__, "LAUNCHES"), ids=lambda row: row["name"])
def test_launches(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch, a file's name or a command line, means the job that stands beside it."""
    put(row.get("files", {}), tmp_path)
    monkeypatch.chdir(tmp_path)
    found = described(read_megatron_args(row["launch"], "--launch"), row.get("layers", 32), row.get("gpus", 8))
    assert {name: found[name] for name in row["means"]} == row["means"]


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["name"])
def test_refused(row: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not modelled, wrong or unknown is named with its line; nothing is ignored in silence."""
    put(row.get("files", {}), tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        described(read_megatron_args(row["launch"], "--launch"), row.get("layers", 32), row.get("gpus", 8))
    assert re.search(row["error"], str(caught.value)), str(caught.value)


def test_presets_of_flavors_are_shipped() -> None:
    """Each flavor of torchtitan that has a preset has one that exists."""
    assert {preset for flavors in PRESETS.values() for preset in flavors.values()} <= set(list_models())


TOML = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'


def test_a_job_is_what_its_launch_says(tmp_path: Path) -> None:
    """Model, batch on these GPUs, length, software; the launch is simulated as any other."""
    path = tmp_path / "x.toml"
    path.write_text(f'{TOML}[activation_checkpoint]\nmode = "full"\n')
    job = read_job(JobOptions(nodes="2", gpu="h100", launch=str(path)))
    assert (job.instance.model.name, job.instance.stack.name) == ("llama-3.1-8b", "torchtitan")
    assert (job.instance.training.global_batch_size, job.instance.training.seq_length) == (32, 4096)
    current = current_of(job, None, 0.1)
    assert current.config.label() == "tp1 pp1 dp16 mbs2 full zero3"
    assert current.would_pay() == ()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"software": "megatron-core"}, r"is a launch of torchtitan, but the software is megatron-core; choose"),
        ({"global_batch_size": 48}, r"has 32 sequences an iteration on 16 GPUs, but the job has 48"),
        ({"model": "llama-3-70b", "seq_length": 8192}, r"seq_length|--seq-length 4096 differs from the job's 8192"),
        ({"framework": "torchtitan", "software": "megatron-core"}, r"--for: is torchtitan, which --software megatron"),
    ],
)
def test_jobs_that_contradict_their_launch(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """Software, batch and length are given once."""
    path = tmp_path / "x.toml"
    path.write_text(TOML)
    with pytest.raises(InputError, match=problem):
        current_of(read_job(JobOptions(nodes="2", gpu="h100", launch=str(path), **options)), None, 0.1)


def test_adapters_of_a_launch(tmp_path: Path) -> None:
    """A job has them, with a note on the framework; options win over the launch."""
    path = tmp_path / "l.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen3-0.6B\nfinetuning_type: lora\nlora_target: q_proj,v_proj\nquantization_bit: 8\n"
        "per_device_train_batch_size: 1\ncutoff_len: 512\n"
    )
    job = read_job(JobOptions(nodes="1", gpu="h100", launch=str(path), lora_rank=4))
    adapters = job.instance.model.adapters
    assert adapters is not None
    assert (adapters.rank, adapters.targets, adapters.base) == (4, ("q_proj", "v_proj"), "int8")
    assert job.launch is not None
    assert job.launch.notes == (
        "not checked: time and memory are counted as torchtitan's, and no run below LLaMA-Factory was compared",
        "every sequence is counted with 512 tokens; --lengths FILE counts shorter ones",
    )
