"""Timing of a transformer layer, forward and backward, by tensor-parallel size and micro-batch size, on this device."""

import csv
import io
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import note_continued, write_atomically
from pipette_opt.measure.layer import build_layer
from pipette_opt.read.gpus import catalogue_name, recognise_gpu
from pipette_opt.read.profile import COLUMNS, read_profile
from pipette_opt.specs import ComputeProfile, ModelSpec, ProfileKey, TrainingSpec

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Name of the torch type of each precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeParams:
    """
    Settings for timing layers.

    Parameters
    ----------
    repeats
        Timed runs of each layer, after two untimed runs; the median is recorded.
    """

    tensor_parallel: tuple[int, ...] = (1, 2, 4, 8)
    micro_batch_size: tuple[int, ...] = (1, 2, 4)
    repeats: int = 10

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats must be >= 1, got {self.repeats}.")


def profile_compute(
    model: ModelSpec,
    training: TrainingSpec,
    path: Path,
    params: ComputeParams,
    *,
    device: str = "cuda",
    gpu: str | None = None,
    on_row: Callable[[int, int, str], None] = lambda done, total, next_row: None,
) -> ComputeProfile:
    """
    Time a layer for each tensor-parallel size that divides the model, and write the CSV that ``solve --profile`` reads.

    Existing rows of ``path`` are kept. Combinations that do not fit on the device are skipped.

    Parameters
    ----------
    gpu
        Catalogue name of the GPU; ``None`` to derive it from the driver's name.
    on_row
        Progress callback: rows done, rows in total, and text for the next row.

    Raises
    ------
    InputError
        If the model has experts, whose layers are not timed, or if no tensor-parallel size divides it.
    """
    if model.num_experts is not None:
        raise InputError(f"model {model.name}", f"has {model.num_experts} experts; only dense layers are timed.")
    name = device_name(device) if gpu is None else catalogue_name(gpu)
    keys = [
        ProfileKey(gpu=name, tensor_model_parallel_size=tp, micro_batch_size=mbs, seq_length=training.seq_length)
        for tp in params.tensor_parallel
        for mbs in params.micro_batch_size
        if divides(model, tp)
    ]
    if not keys:
        raise InputError(
            "--tensor-parallel",
            f"{params.tensor_parallel} do not divide the attention heads and the MLP width of {model.name}; "
            "give other tensor-parallel sizes.",
        )
    note_continued(path)
    layers = dict(read_profile(path).layers) if path.exists() else {}
    missing = [key for key in keys if key not in layers]
    for number, key in enumerate(missing):
        on_row(number, len(missing), f"tp{key.tensor_model_parallel_size} mbs{key.micro_batch_size}")
        timed = time_layer(model, training, key, device, params.repeats)
        if timed is not None:
            layers[key] = timed
            write_atomically(path, profile_csv(layers))
    on_row(len(missing), len(missing), "done")
    if not layers:
        raise InputError(
            "profile compute",
            f"no combination of the given sizes fits in the memory of {device}; give smaller micro-batches.",
        )
    return ComputeProfile(layers=layers)


def divides(model: ModelSpec, tensor_parallel: int) -> bool:
    """Return whether ``tensor_parallel`` ranks can share a layer: its heads, query groups and MLP divide."""
    groups = model.num_query_groups % tensor_parallel == 0 or tensor_parallel % model.num_query_groups == 0
    return groups and model.num_attention_heads % tensor_parallel == 0 and model.ffn_hidden_size % tensor_parallel == 0


def time_layer(
    model: ModelSpec, training: TrainingSpec, key: ProfileKey, device: str, repeats: int
) -> tuple[float, float] | None:
    """Return the median seconds of forward and backward; ``None`` if the device has too little memory."""
    import torch

    dtype = getattr(torch, DTYPES[training.precision])
    try:
        layer = build_layer(model, key.tensor_model_parallel_size).to_empty(device=device).to(dtype)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        shape = (key.micro_batch_size, key.seq_length, model.hidden_size)
        x = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
        grad = torch.randn(shape, device=device, dtype=dtype)
        forward, backward = [], []
        for _ in range(2 + repeats):
            layer.zero_grad(set_to_none=True)
            start = _now(device)
            out = layer(x)
            middle = _now(device)
            out.backward(grad)
            end = _now(device)
            forward.append(middle - start)
            backward.append(end - middle)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return statistics.median(forward[2:]), statistics.median(backward[2:])


def profile_csv(layers: dict[ProfileKey, tuple[float, float]]) -> str:
    """Return layer times as CSV text that ``solve --profile`` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    order: Sequence[ProfileKey] = sorted(
        layers, key=lambda key: (key.gpu, key.seq_length, key.tensor_model_parallel_size, key.micro_batch_size)
    )
    for key in order:
        sizes = (key.gpu, key.tensor_model_parallel_size, key.micro_batch_size, key.seq_length)
        writer.writerow([*sizes, *(f"{seconds:.6g}" for seconds in layers[key])])
    return out.getvalue()


def device_name(device: str) -> str:
    """Return the catalogue name of the GPU on this device; ``cpu`` for the processor."""
    import torch

    if device == "cpu":
        return "cpu"
    if not re.fullmatch(r"cuda(:[0-9]+)?", device):
        raise InputError("--device", f"must be cuda, cuda:N or cpu, got {device!r}.")
    if not torch.cuda.is_available():
        raise InputError(
            "--device", f"is {device}, but torch finds no GPU on this machine; --device cpu measures the processor."
        )
    driver = torch.cuda.get_device_name(device)
    entry = recognise_gpu(driver)
    if entry is None:
        raise InputError(
            "--gpu",
            f"the GPU {driver!r} is not in the catalogue; give the most similar type with --gpu, e.g. --gpu h100-80gb.",
        )
    return entry.gpu.name


def _now(device: str) -> float:
    """Return the time in seconds after all work on the device has finished."""
    if device.split(":")[0] == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()
