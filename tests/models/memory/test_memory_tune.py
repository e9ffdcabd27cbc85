"""Fine-tuning: the network learns what runs say, and forgets little of what it knew."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from modules_here import typed_module

from models.memory import tuning as tuning_module
from models.memory.dataset import TRACES
from models.memory.fit import load_dataset
from models.memory.tune import Lessons, TuneParams, tune_network
from models.memory.tuning import tune_memory, tuning_rows
from pipette_opt.base.shipped import shipped_path
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import memory_run, shipped_predictor
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.memory.features import FEATURE_NAMES
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.weights import NetworkWeights, read_weights
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import MemoryConstants

pytestmark = pytest.mark.search

HEADER = (
    "source,gpu,gpu_mem_gib,num_gpus,model,num_layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gbs,mbs,tp,pp,dp,"
    "seq_parallel,zero_stage,precision,peak_mem_gib,oom,iter_time_s\n"
)
QUICK = TuneParams(steps=100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every seventh of the shipped traces, as a file."""
    with gzip.open(TRACES, "rt", encoding="utf-8") as file:
        head, *rows = file.readlines()
    path = tmp_path_factory.mktemp("traces") / "traces.csv"
    path.write_text(head + "".join(rows[::7]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def traces(data: Path) -> Lessons:
    """The same, as what the network is to remember."""
    dataset = load_dataset(data)
    return Lessons(features=dataset.features, log_ratio=dataset.log_ratio)


def write_runs(path: Path, factor: float = 1.0) -> Path:
    """Llama-like jobs on 8 GPUs whose peaks are what is counted, times ``factor`` where gates are recomputed."""
    rows = []
    for layers in (16, 32):
        for mbs in (1, 2):
            for tp, pp in ((2, 1), (1, 2), (2, 2)):
                dp = 8 // tp // pp
                rows.append(
                    f"ours,H100-80GB,80,8,llama-{layers},{layers},2048,8192,16,16,32000,2048,"
                    f"{8 * mbs * dp},{mbs},{tp},{pp},{dp},True,1,bf16,{{}},False,1.5\n"
                )
    plain = path.with_name("plain.csv")
    plain.write_text(HEADER + "".join(row.format("") for row in rows), encoding="utf-8")
    peaks = []
    for case in make_cases(read_runs(plain), read_stack()):
        assert isinstance(case, Case)
        run = memory_run(case)
        peak = predict_memory(MemoryConstants(), run).taken_gib
        peaks.append(peak * (factor if (case.run.mbs or 0) > 1 else 1.0))
    text = "".join(row.format(f"{peak:.3f}") for row, peak in zip(rows, peaks, strict=True))
    path.write_text(HEADER + text, encoding="utf-8")
    return path


def test_the_network_learns_and_remembers(traces: Lessons) -> None:
    """Rows 10 % above are nearly learnt, traces far from them move by less than 1 % on average."""
    network = read_weights(shipped_path("models", "memory.npz"))
    chosen = np.flatnonzero(traces.features[:, FEATURE_NAMES.index("flash")] == 0)[:60]
    lessons = Lessons(features=traces.features[chosen], log_ratio=network.log_ratio(traces.features[chosen]) + 0.1)
    others = np.flatnonzero(traces.features[:, FEATURE_NAMES.index("flash")] == 1)
    calm = Lessons(features=traces.features[others], log_ratio=traces.log_ratio[others])
    tuned = tune_network(network, lessons, calm, QUICK)
    left = np.abs(tuned.log_ratio(lessons.features) - lessons.log_ratio).mean()
    moved = np.abs(tuned.log_ratio(calm.features) - network.log_ratio(calm.features)).mean()
    assert left < 0.04
    assert moved < 0.01
    assert (tuned.lowest <= network.lowest).all()
    assert (tuned.highest >= network.highest).all()


def test_nothing_to_learn_changes_nothing(traces: Lessons) -> None:
    """No runs: the very same network."""
    network: NetworkWeights = read_weights(shipped_path("models", "memory.npz"))
    none = Lessons(features=traces.features[:0], log_ratio=traces.log_ratio[:0])
    assert tune_network(network, none, traces) is network


def test_tuning_is_kept_only_where_it_helps(tmp_path: Path, traces: Lessons) -> None:
    """Errors on groups left out decide; with true constants there is nothing left to learn."""
    runs = read_runs(write_runs(tmp_path / "runs.csv", factor=1.15))
    tuning = tune_memory(runs, read_stack(), shipped_predictor(), traces, params=QUICK)
    (left_out,) = tuning.errors
    assert left_out.num_peaks == tuning.num_runs == len(runs)
    assert left_out.start > 0.05
    assert left_out.constants < left_out.start
    assert tuning.improves == (left_out.tuned < left_out.constants)
    assert (tuning.predictor is shipped_predictor()) != tuning.improves
    assert tuning_rows(tuning)[0]["runs"] == "groups left out"


def test_the_command_writes_weights_constants_and_card(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files that go together."""
    monkeypatch.setattr(tuning_module, "TuneParams", lambda: TuneParams(steps=2))
    runs, out = write_runs(tmp_path / "runs.csv", factor=1.15), tmp_path / "mine.npz"
    code, said, err = typed_module(
        tmp_path, "models.memory.train", "--runs", str(runs), "--data", str(data), "-o", str(out)
    )
    assert code == 0, err
    assert "groups left out" in said
    assert "tuned on runs.csv" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert read_stack(out.with_suffix(".yaml")).memory.largest_job == 8
    MemoryPredictor.load(out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "ours,H100-80GB,80,8,llama,16,2048,8192,16,16,32000,2048,64,1,2,2,2,True,1,bf16,20,False,2\n",
         "at least 5 rows with peak_mem_gib"),
        (HEADER + "ours,H100-80GB,80,8,llama,16,2048,8192,16,16,32000,2048,64,1,2,2,2,True,1,bf16,20000,False,2\n",
         "must be in GiB"),
        ("a,b\n1,2\n", "needs the column"),
    ],
)  # fmt: skip
def test_wrong_runs_are_refused(tmp_path: Path, data: Path, text: str, message: str) -> None:
    """Too few peaks, MiB for GiB, foreign columns: with the reason, and nothing is written."""
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    words = ("--runs", str(path), "--data", str(data), "-o", "mine.npz")
    code, _, err = typed_module(tmp_path, "models.memory.train", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "mine.npz").exists()


def test_weights_need_runs(tmp_path: Path) -> None:
    """Training anew starts from nothing."""
    code, _, err = typed_module(tmp_path, "models.memory.train", "--weights", "some.npz", "-o", "mine.npz")
    assert code == 2
    assert "--runs" in err
