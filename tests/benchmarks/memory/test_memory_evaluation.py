"""The whole evaluation on a small file of our own: every table has what it should."""

from pathlib import Path

import pytest

from benchmarks.memory.evaluation import RISKS, SPLITS, evaluate_memory
from benchmarks.memory.tables import coverage_rows, method_rows

pytestmark = pytest.mark.search

HEADER = (
    "source,gpu,gpu_mem_gib,num_gpus,model,num_layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gbs,mbs,tp,pp,dp,"
    "seq_parallel,zero_stage,precision,peak_mem_gib,oom,iter_time_s\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep on H100 in small: 8, 16 and 32 GPUs, four micro-batches, two sizes; the largest run out."""
    rows = []
    for num_gpus in (8, 16, 32):
        for hidden in (2048, 3072):
            for mbs, peak in ((1, 14.0), (2, 21.0), (4, 36.0), (16, None)):
                taken = "" if peak is None else f"{peak * hidden / 2048:.1f}"
                rows.append(
                    f"HF-UltraScale-nanotron,H100-80GB,80,{num_gpus},Llama-like-{hidden},16,{hidden},8192,32,32,131072,"
                    f"4096,256,{mbs},2,1,{num_gpus // 2},True,1,bf16,{taken},{peak is None},{2.0 if peak else ''}\n"
                )
    path: Path = tmp_path_factory.mktemp("measured")
    (path / "hf_ultrascale_h100.csv").write_text(HEADER + "".join(rows), encoding="utf-8")
    return path


def test_every_table_is_there(folder: Path) -> None:
    """Methods, coverage, probabilities for the two splits that have rows; the others are named as absent."""
    found = evaluate_memory(folder)
    assert len(found.notes) == len(SPLITS) - 2
    names = [one.split for one in found.methods]
    assert names == [name for name in dict.fromkeys(names) for _ in range(3)]
    for one in found.methods:
        assert one.num_peaks == 6
        assert one.verdicts.ran_out == 2
        assert one.verdicts.fitted == 6
    assert {one.risk for one in found.coverage} == set(RISKS)
    assert sum(one.num_runs for one in found.reliability) == 16
    assert [row["method"] for row in method_rows(found)][:3] == ["ours", "closed formula", "formula + 20 %"]
    assert {row["holds"] for row in coverage_rows(found)} <= {"yes", "no"}


def test_jobs_that_ran_out_later_are_counted_apart(folder: Path, tmp_path: Path) -> None:
    """Of 32 GPUs one job that fits says in its notes that it died later: no label, and whether it is refused."""
    lines = (folder / "hf_ultrascale_h100.csv").read_text(encoding="utf-8").splitlines()
    last = max(index for index, line in enumerate(lines) if ",32," in line and "False" in line)
    marked = [
        f"{lines[0]},notes",
        *(f"{line},{'and then an OOM' * (i == last - 1)}" for i, line in enumerate(lines[1:])),
    ]
    (tmp_path / "hf_ultrascale_h100.csv").write_text("\n".join(marked) + "\n", encoding="utf-8")
    found = evaluate_memory(tmp_path)
    ours = found.methods[3]
    assert (ours.num_peaks, ours.verdicts.fitted, ours.verdicts.ran_out) == (6, 5, 2)
    notes = [note for note in found.notes if "no label" in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"{SPLITS[1].name}: 1 jobs ran and then")
