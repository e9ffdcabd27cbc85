"""Best public MFU of each kind of job."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories import LLAMA_8B, TINY
from llama_jobs import job

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.gpus import gpu_generations, read_gpu_catalogue
from pipette_opt.worlds.best_mfu import COLUMNS, PLACE, BestRun, best_run, read_best_runs, shipped_best_runs
from pipette_opt.worlds.jobs import SMALL_MODEL
from pipette_opt.worlds.prior import shipped_priors

ROW = '"dense, 16 bit, hopper",0.5,3,gpt,16,h100-80gb,ABC,"abc/def@123, page"'


def written(folder: Path, *rows: str, head: str = ",".join(COLUMNS)) -> Path:
    """Return a file of best runs with these rows."""
    path = folder / "best.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return path


def test_shipped_rows() -> None:
    """A kind ends with a generation and is no small model; GPUs are of the catalogue; no MFU is beyond belief."""
    catalogue, runs = read_gpu_catalogue(), shipped_best_runs()
    assert len(runs) >= 10
    for kind, run in runs.items():
        generation = kind.rpartition(", ")[2]
        assert generation in gpu_generations()
        assert catalogue[run.gpu].gpu.generation == generation
        assert SMALL_MODEL not in kind
        assert 0.05 < run.mfu < 0.7
    large = {kind for kind, number in shipped_priors().runs.items() if number >= 5 and SMALL_MODEL not in kind}
    assert large <= set(runs)


def test_a_row_is_read(tmp_path: Path) -> None:
    """Numbers are numbers, and a quoted cell keeps its comma."""
    assert read_best_runs(written(tmp_path, ROW)) == {
        "dense, 16 bit, hopper": BestRun(
            kind="dense, 16 bit, hopper",
            mfu=0.5,
            runs=3,
            model="gpt",
            num_gpus=16,
            gpu="h100-80gb",
            publisher="ABC",
            source="abc/def@123, page",
        )
    }
    assert read_best_runs(shipped_path(*PLACE)) == shipped_best_runs()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((ROW, ROW), "line 3: kind 'dense, 16 bit, hopper' is given twice"),
        ((ROW.replace("0.5", "53.8"),), "mfu"),
        ((ROW.replace("0.5", "half"),), "mfu"),
        ((ROW.replace(",3,", ",0,"),), "runs"),
        ((ROW.replace(",16,", ",,"),), "num_gpus"),
        ((ROW + ",more",), "line 2"),
        ((ROW.rpartition(",")[0].rpartition(",")[0],), "line 2"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, rows: tuple[str, ...], said: str) -> None:
    """A kind twice, shares in percent, and cells that are no number, missing or too many."""
    with pytest.raises(InputError, match=said):
        read_best_runs(written(tmp_path, *rows))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    """The message has the columns."""
    with pytest.raises(InputError, match="must have the columns kind, mfu, runs"):
        read_best_runs(written(tmp_path, ROW, head="kind,mfu"))


def test_the_row_of_a_job() -> None:
    """By experts, precision and generation; a small model takes the row of larger ones."""
    bf16, fp8 = job().training, job(fp8=True).training
    runs = shipped_best_runs()
    assert best_run(LLAMA_8B, bf16, ["hopper", "hopper"]) == runs["dense, 16 bit, hopper"]
    assert best_run(TINY, bf16, ["hopper"]) == runs["dense, 16 bit, hopper"]
    assert best_run(LLAMA_8B, fp8, ["blackwell"]) == runs["dense, fp8, blackwell"]
    mixture = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)
    assert best_run(mixture, bf16, ["hopper"]) == runs["mixture of experts, 16 bit, hopper"]


def test_no_row_for_a_job() -> None:
    """No public run on Volta or in 32 bits; several generations."""
    bf16 = job().training
    for training, generations in (
        (bf16, ["volta"]),
        (bf16, [""]),
        (bf16, []),
        (bf16, ["ampere", "hopper"]),
        (job(precision="fp32").training, ["ampere"]),
        (job(fp4=True).training, ["hopper"]),
    ):
        assert best_run(LLAMA_8B, training, generations) is None
