"""Training of the network from the dataset, with errors on models that it has not seen."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from models.memory.dataset import point_of_row, read_rows
from models.memory.files import join_tables
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import GIB
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.table import stage_table
from pipette_opt.memory.weights import NetworkWeights

_SMALLEST_DATASET = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class FitParams:
    """
    Settings of the training.

    Parameters
    ----------
    test_share
        Fraction of the points that are kept from training, to report errors on them.
    """

    hidden: tuple[int, ...] = (24, 24)
    steps: int = 3000
    learning_rate: float = 1e-2
    weight_decay: float = 0.05
    test_share: float = 0.2
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces:
    """Traced points: the stage of each, its traced peak, and its categories as in :class:`Dataset`."""

    table: StageTable
    peak: FloatArray
    slices: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """
    Traced points as arrays for the network.

    Parameters
    ----------
    features
        Features of each point, shape ``(num_rows, num_features)``.
    formula, peak
        Bytes by the memory formula and traced peak, shape ``(num_rows,)``.
    slices
        Categories of each point, by which errors are grouped; one row per point.
    """

    features: FloatArray
    formula: FloatArray
    peak: FloatArray
    slices: pd.DataFrame

    @property
    def log_ratio(self) -> FloatArray:
        """``log(peak / formula)``, the target of the network, shape ``(num_rows,)``."""
        return np.log(self.peak / self.formula)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """
    Trained network with its errors.

    Parameters
    ----------
    errors
        Error of the test points by slice: ``slice, points, mean_percent, p99_percent, max_percent,
        formula_mean_percent, formula_p99_percent``.
    """

    network: NetworkWeights
    num_train: int
    num_test: int
    errors: pd.DataFrame


def load_dataset(path: Path) -> Dataset:
    """Read a dataset that ``models.memory.collect`` wrote."""
    traces = load_traces(path)
    formula = formula_bytes(traces.table)
    return Dataset(
        features=table_features(traces.table, formula), formula=formula.total, peak=traces.peak, slices=traces.slices
    )


def load_traces(path: Path) -> Traces:
    """Read the stages, peaks and categories of a dataset that ``models.memory.collect`` wrote."""
    rows = read_rows(path)
    if len(rows) < _SMALLEST_DATASET:
        raise InputError(str(path), f"holds {len(rows)} points, training needs at least {_SMALLEST_DATASET}.")
    tables, slices = [], []
    for number, row in enumerate(rows, start=2):
        try:
            point = point_of_row(row)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}", f"is no traced point: {error}.") from error
        tables.append(stage_table(point.model, point.training, [point.config], stage=point.stage))
        recompute: str = point.config.recompute_granularity or "none"
        if recompute == "full":
            recompute = f"full {point.config.recompute_method}"
        last = point.config.pipeline_model_parallel_size - 1
        slices.append(
            {
                "family": point.model.name,
                "attention": point.training.attention_kernel,
                "precision": point.training.precision,
                "recompute": recompute,
                "stage": "only" if last == 0 else {0: "first", last: "last"}.get(point.stage, "middle"),
                "context": "split" if point.config.context_parallel_size > 1 else "whole",
                "products": "fp8" if point.training.fp8 else "as precision",
                "ZeRO": str(point.config.sharding_stage),
                "schedule": "interleaved" if point.config.num_chunks > 1 else "1F1B",
                "parameters": _size_class(point.model.num_parameters),
            }
        )
    frame = pd.DataFrame(slices)
    peak = np.array([float(row["peak_bytes"]) for row in rows])
    frame["peak"] = pd.cut(peak / GIB, [0, 8, 24, 80, 192, np.inf], labels=["<8", "8-24", "24-80", "80-192", ">192"])
    return Traces(table=join_tables(tables), peak=peak, slices=frame)


def fit(dataset: Dataset, params: FitParams | None = None, progress: Callable[[int, int], None] | None = None) -> Fit:
    """Train on one part of the dataset and report errors on the other part."""
    params = params or FitParams()
    train, test = split_rows(len(dataset.peak), params)
    network = train_network(dataset, train, params, progress)
    return Fit(
        network=network,
        num_train=len(train),
        num_test=len(test),
        errors=error_table(dataset, network, test),
    )


def fit_small_predict_large(dataset: Dataset, params: FitParams | None = None) -> pd.DataFrame:
    """Return the errors on models above 100 billion parameters, for a network trained on models up to 30 billion."""
    params = params or FitParams()
    small = np.flatnonzero(dataset.slices["parameters"].isin(["<1B", "1-10B", "10-30B"]))
    large = np.flatnonzero(dataset.slices["parameters"].isin(["100-300B", ">300B"]))
    return error_table(dataset, train_network(dataset, small, params), large)


def train_network(
    dataset: Dataset, rows: IntArray, params: FitParams, progress: Callable[[int, int], None] | None = None
) -> NetworkWeights:
    """Return a trained network: full-batch AdamW, cosine schedule, smooth absolute error of ``log(peak / formula)``."""
    import torch

    from models.memory.network import MemoryNetwork

    torch.manual_seed(params.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small to share, and one thread adds up in one order
    inputs, wanted = torch.from_numpy(dataset.features[rows]), torch.from_numpy(dataset.log_ratio[rows])
    network = MemoryNetwork(params.hidden, inputs.shape[1])
    network.set_scaling(inputs)
    optimizer = torch.optim.AdamW(network.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, params.steps)
    loss_of = torch.nn.SmoothL1Loss(beta=0.002)
    for step in range(params.steps):
        optimizer.zero_grad()
        loss = loss_of(network(inputs), wanted)
        loss.backward()
        optimizer.step()
        schedule.step()
        if progress is not None and (step + 1) % 500 == 0:
            progress(step + 1, params.steps)
    torch.set_num_threads(threads)
    state = {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}
    depth = len(network.layers)
    return NetworkWeights(
        mean=state["mean"],
        scale=state["scale"],
        weights=tuple(state[f"layers.{index}.weight"] for index in range(depth)),
        biases=tuple(state[f"layers.{index}.bias"] for index in range(depth)),
        lowest=dataset.features[rows].min(axis=0),
        highest=dataset.features[rows].max(axis=0),
        log_ratio_range=np.array([dataset.log_ratio[rows].min(), dataset.log_ratio[rows].max()]),
    )


def error_table(dataset: Dataset, network: NetworkWeights, rows: IntArray) -> pd.DataFrame:
    """Return absolute errors by slice, in percent of the traced peak."""
    predicted = dataset.formula[rows] * np.exp(network.log_ratio(dataset.features[rows]))
    error = np.abs(predicted / dataset.peak[rows] - 1) * 100
    formula_error = np.abs(dataset.formula[rows] / dataset.peak[rows] - 1) * 100
    frame = dataset.slices.iloc[rows].assign(error=error, formula_error=formula_error)
    groups = [("all", frame)]
    for column in dataset.slices.columns:
        groups += [(f"{column} {value}", part) for value, part in frame.groupby(column, observed=True)]
    return pd.DataFrame(
        [
            {
                "slice": name,
                "points": len(part),
                "mean_percent": part["error"].mean(),
                "p99_percent": part["error"].quantile(0.99),
                "max_percent": part["error"].max(),
                "formula_mean_percent": part["formula_error"].mean(),
                "formula_p99_percent": part["formula_error"].quantile(0.99),
            }
            for name, part in groups
        ]
    )


def split_rows(count: int, params: FitParams) -> tuple[IntArray, IntArray]:
    """Return the indices of training rows and of test rows; no two points share a model."""
    order = np.random.default_rng(params.seed).permutation(count)
    num_test = int(count * params.test_share)
    return order[num_test:], order[:num_test]


def _size_class(num_parameters: int) -> str:
    for limit, name in ((1e9, "<1B"), (1e10, "1-10B"), (3e10, "10-30B"), (1e11, "30-100B"), (3e11, "100-300B")):
        if num_parameters < limit:
            return name
    return ">300B"
