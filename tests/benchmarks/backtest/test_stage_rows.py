"""Memory of rows that describe one stage of an uneven pipeline."""

from pathlib import Path

import pytest

from benchmarks.backtest.stage_rows import known_rows, stage_row_memory, tuned_row_memory, tuned_stage
from pipette_opt.base.units import GIB
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import REGRESSORS

HEADER = (
    "source,gpu,gpu_mem_gib,num_gpus,model,num_layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gbs,mbs,tp,pp,dp,"
    "seq_parallel,zero_stage,precision,peak_mem_gib,oom,iter_time_s,peak_mem_stage\n"
)
MIST_HEADER = HEADER.strip() + ",recompute,stage,notes\n"


def tuned_row(recompute: str = "full on 2 of 7 layers", notes: str = "offload W,G,O,A [0.0, 0.0, 0.0, 0.0]") -> str:
    """Stage 1 of one of Mist's plans: 7 of 32 layers."""
    return (
        MIST_HEADER + "Mist-tuned-L4,L4-24GB,24,4,gpt2-2.7b,32,2560,10240,32,32,50304,2048,64,1,1,4,1,,1,fp16,19.3,"
        f'False,20.0,,{recompute},1,"{notes}"\n'
    )


def test_stages_of_tuned_plans(tmp_path: Path) -> None:
    """Seven layers in stage 1, two of them recomputed, the other 25 spread; no dropout."""
    path = tmp_path / "runs.csv"
    path.write_text(tuned_row(), encoding="utf-8")
    (run,) = read_runs(path)
    tuned = tuned_stage(run)
    assert tuned is not None
    assert tuned.config.layers_per_stage == (9, 7, 8, 8)
    assert (tuned.config.recompute_method, tuned.config.recompute_num_layers) == ("block", 2)
    assert tuned.model.hidden_dropout == tuned.model.attention_dropout == 0
    found = tuned_row_memory(run)
    assert found is not None
    assert found.regressors.shape[0] == len(found.measured_rows) == 2


@pytest.mark.parametrize(
    "text",
    [
        tuned_row(recompute="full"),
        tuned_row(notes="offload W,G,O,A [0.0, 0.0, 0.5, 0.0]"),
        tuned_row(notes="nothing said"),
        tuned_row(recompute="full on 2 of 40 layers"),
    ],
)
def test_other_rows_are_no_tuned_plans(tmp_path: Path, text: str) -> None:
    """Whole recomputation, states on the host, nothing said, more layers than there are."""
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    assert tuned_row_memory(read_runs(path)[0]) is None


ACESO_HEADER = (
    HEADER.strip() + ",recompute,stage,stage_gpus,stage_ops,stage_layers_est,stage_tp_ops,stage_recompute_ops,"
    "params_on_rank,attention_kernel\n"
)


def aceso_row(again: int) -> str:
    """Stage 2 of 4, tp 2: two attentions and three MLPs of hidden size 1024, 31 operators, as parameters tell."""
    size = (2 * 4 + 3 * 8) * 1024**2 // 2
    return (
        ACESO_HEADER + "Mist-ref-aceso,L4-24GB,24,8,GPT,32,1024,4096,16,16,51200,2048,64,1,2,4,1,False,0,fp16,10,False,"
        f"20.0,,op-level,2,2,31,2.38,2x31,{again},{size},unfused\n"
    )


@pytest.mark.parametrize(
    ("again", "scores", "split", "whole", "kept"),
    [
        (0, 1.0, 1.0, 1.0, 0.0),
        (4, 0.5, 1.0, 1.0, 0.0),
        (8, 0.0, 1.0, 1.0, 0.0),
        (31, 0.0, 0.0, 0.0, 1.0),
    ],
)
def test_stages_of_operators_by_hand(
    tmp_path: Path, again: int, scores: float, split: float, whole: float, kept: float
) -> None:
    """
    Two passes in flight in stage 2 of 4; the core's operators go first, 4 of each attention, and all 31 at last.

    Stored outside the core: (8 * 2 + 16 * 3) / 2 of a token's hidden values on each of two ranks, and 5 * 5 on both.
    """
    path = tmp_path / "runs.csv"
    path.write_text(aceso_row(again), encoding="utf-8")
    found = stage_row_memory(read_runs(path)[0])
    assert found is not None
    passes, step = (dict(zip(REGRESSORS, row * GIB, strict=True)) for row in found.regressors)
    unit, all_scores = 2048 * 1024, 2048 * 2048 * 16 / 2
    stored = 2 * unit * (split * 32 + whole * 25)
    back = (unit * (10 + 24 / 2) + 5 * all_scores) * (again > 0)
    size = 16 * 1024**2
    assert passes["activations"] == pytest.approx(stored)
    assert passes["score_bytes"] == pytest.approx(2 * 2 * scores * all_scores)
    assert passes["gathered_per_layer"] == pytest.approx(2 * 2 * kept * 2 * unit)
    assert passes["counted"] == pytest.approx(16 * size + stored + 3 * passes["score_bytes"] + back)
    assert step["counted"] == pytest.approx(18 * size)
    assert passes["group_gib"] / GIB == pytest.approx(2 * 20 / 235)


def test_rows_of_stages_and_of_jobs(tmp_path: Path) -> None:
    """Both kinds are known, in the order of the file; the job's stages are all predicted."""
    path = tmp_path / "runs.csv"
    shape = "llama-3b,28,3072,8192,24,8,128256,4096,64,1,2,2,2"
    job = f"ours,H100-80GB,80,8,{shape},True,1,bf16,20,False,3.0,,,,,,,,,,flash\n"
    path.write_text(aceso_row(0) + job + aceso_row(4).split("\n")[1] + "\n", encoding="utf-8")
    found = known_rows(read_runs(path), read_stack())
    assert [run.row for run, _ in found] == [0, 1, 2]
    assert [len(memory.regressors) for _, memory in found] == [2, 4, 2]
