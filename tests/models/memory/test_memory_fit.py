"""Training: the network learns what the formula misses, and numpy gives what torch gives."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from models.memory.card import markdown_table, model_card
from models.memory.dataset import TRACES, collect_traces, read_rows, trace_point
from models.memory.fit import (
    Dataset,
    FitParams,
    fit,
    fit_small_predict_large,
    load_dataset,
    train_network,
)
from models.memory.network import MemoryNetwork
from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.memory.features import FEATURE_NAMES
from pipette_opt.memory.weights import read_weights

pytestmark = pytest.mark.search

QUICK = FitParams(hidden=(8,), steps=600)

TINY_TRAINING = """
import sys
from pathlib import Path
import numpy as np, pandas as pd
from pipette_opt.memory.features import FEATURE_NAMES
from models.memory.fit import Dataset, FitParams, fit
from models.memory.files import write_weights

rng = np.random.default_rng(0)
features = rng.normal(size=(3000, len(FEATURE_NAMES)))
formula = np.exp(rng.uniform(20, 25, size=3000))
slices = pd.DataFrame({"parameters": ["<1B"] * 3000})
peak = formula * np.exp(0.1 * np.tanh(features[:, 2]))
dataset = Dataset(features=features, formula=formula, peak=peak, slices=slices)
write_weights(Path(sys.argv[1]), fit(dataset, FitParams(hidden=(24, 24), steps=100)).network)
"""


@pytest.fixture
def synthetic() -> Dataset:
    """A thousand points whose peak is 10 % above the formula where the third feature is positive."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, len(FEATURE_NAMES)))
    formula = np.exp(rng.uniform(20, 25, size=1000))
    peak = formula * np.exp(0.1 / (1 + np.exp(-8 * features[:, 2])))
    sizes = np.where(np.arange(1000) % 2, "<1B", ">300B")
    return Dataset(features=features, formula=formula, peak=peak, slices=pd.DataFrame({"parameters": sizes}))


def test_learns_what_the_formula_misses(synthetic: Dataset) -> None:
    """The network's error is a fraction of the formula's, on points it has not seen."""
    result = fit(synthetic, QUICK)
    row = result.errors.iloc[0]
    assert row["points"] == result.num_test == 200
    assert row["mean_percent"] < row["formula_mean_percent"] / 2
    assert result.num_train == 800
    shift = fit_small_predict_large(synthetic, QUICK)
    assert shift.iloc[0]["points"] == 500


def test_training_is_reproducible(synthetic: Dataset) -> None:
    """The same seed gives the same weights."""
    rows = np.arange(300)
    one, two = (train_network(synthetic, rows, FitParams(hidden=(8,), steps=20)) for _ in range(2))
    for a, b in zip(one.weights, two.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_processes_and_threads_give_the_same_bytes(tmp_path: Path) -> None:
    """Weights files of two processes, one with one thread and one with two, are the same."""
    files = []
    for threads in ("1", "2"):
        files.append(tmp_path / f"{threads}.npz")
        numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        command = [sys.executable, "-c", TINY_TRAINING, str(files[-1])]
        subprocess.run(command, env=os.environ | numbers, check=True)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_numpy_and_torch_agree(synthetic: Dataset) -> None:
    """One ``state_dict`` holds layers and scaling; evaluated in numpy it gives the same numbers."""
    weights = train_network(synthetic, np.arange(500), FitParams(hidden=(8, 6), steps=50))
    network = MemoryNetwork((8, 6))
    state = {"mean": weights.mean, "scale": weights.scale}
    for index, (weight, bias) in enumerate(zip(weights.weights, weights.biases, strict=True)):
        state |= {f"layers.{index}.weight": weight, f"layers.{index}.bias": bias}
    network.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    with torch.no_grad():
        expected = network(torch.from_numpy(synthetic.features)).numpy()
    found = weights.log_ratio(synthetic.features)
    np.testing.assert_allclose(found, np.clip(expected, *weights.log_ratio_range), rtol=1e-10, atol=1e-12)


def test_constant_features_do_not_divide_by_zero() -> None:
    """A column without spread keeps scale 1."""
    network = MemoryNetwork()
    network.set_scaling(torch.ones(10, len(FEATURE_NAMES), dtype=torch.float64))
    assert (network.scale == 1).all()


def test_too_few_points_are_refused(tmp_path: Path) -> None:
    """Two points are no dataset."""
    path = tmp_path / "points.csv"
    collect_traces(path, num_points=2)
    with pytest.raises(InputError, match="at least"):
        load_dataset(path)


@pytest.fixture(scope="module")
def shipped() -> Dataset:
    """The shipped traces, read once."""
    return load_dataset(TRACES)


def test_shipped_network_belongs_to_the_shipped_data(shipped: Dataset) -> None:
    """
    The dataset is predicted to 0.2 % on average, its ranges are the recorded ones, its traces still hold.

    Statistics of norms of queries and keys were corrected after the training, which moved ranges by up to 6e-6.
    """
    dataset, network = shipped, read_weights(shipped_path("models", "memory.npz"))
    error = np.abs(dataset.log_ratio - network.log_ratio(dataset.features))
    assert error.mean() < 0.002
    assert (dataset.features.min(axis=0) <= network.lowest * (1 + 1e-5)).all()
    assert (dataset.features.max(axis=0) >= network.highest * (1 - 1e-5)).all()
    rows = read_rows(TRACES)
    assert [trace_point(0, index) for index in (0, 1000, 2999)] == [rows[index] for index in (0, 1000, 2999)]


def test_card_states_data_error_and_limits(synthetic: Dataset) -> None:
    """The card has the tables and says where not to trust it."""
    result = fit(synthetic, QUICK)
    card = model_card(result, result.errors, seed="7")
    for part in ("1000 points", "--seed 7", "Where not to trust it", "was measured on a GPU", "| all | 200 |"):
        assert part in card
    assert markdown_table(pd.DataFrame({"a": [1], "b": [0.5]})) == "| a | b |\n| --- | --- |\n| 1 | 0.500 |"
