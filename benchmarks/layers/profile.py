"""
Galvatron's profiles: a layer and the vocabulary of a model, and the links of one host of eight GPUs.

Units are Galvatron's: milliseconds, and megabytes of 2^20 bytes. Files are those that ``Hetu-Galvatron`` publishes,
joined in one: ``{"data": {"computation_profiling_...": {...}, "memory_profiling_...": {...}}}``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes

MEGABYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """
    Communication times of a host of eight GPUs.

    Parameters
    ----------
    all_reduce_gb_per_s
        Bus bandwidth of an all-reduce, GB/s, by group size and whether the GPUs are neighbours; its inverse is ms per
        MB.
    p2p_gb_per_s
        Bandwidth between stages, GB/s, by number of stages.
    overlap
        Slow-down of gradient reduction and backward pass while both run.
    all_reduce_ms, all_to_all_ms
        Measured milliseconds by group size and megabytes.
    """

    all_reduce_gb_per_s: Mapping[tuple[int, bool], float]
    p2p_gb_per_s: Mapping[int, float]
    overlap: float
    all_reduce_ms: Mapping[int, Mapping[int, float]]
    all_to_all_ms: Mapping[int, Mapping[int, float]]

    def ms_per_mb(self, size: int, neighbours: bool) -> float:
        """Return the milliseconds per megabyte of an all-reduce; the whole host has a single value."""
        if size == 1:
            return 0.0
        return 1.0 / self.all_reduce_gb_per_s[size, neighbours or (size, False) not in self.all_reduce_gb_per_s]

    def collective_ms(self, size: int, megabytes: float, all_to_all: bool) -> float:
        """Return the milliseconds of an all-to-all or all-reduce: measured, or else from the fitted line."""
        measured = (self.all_to_all_ms if all_to_all else self.all_reduce_ms).get(size, {})
        if megabytes not in measured:
            return self.line_ms(size, megabytes, all_to_all)
        return measured[int(megabytes)]

    def line_ms(self, size: int, megabytes: float, all_to_all: bool) -> float:
        """
        Return the milliseconds of an all-to-all or all-reduce of ``megabytes`` in a group of ``size`` ranks.

        The time is on the line through all measured message sizes.
        """
        if size == 1:
            return 0.0
        measured = (self.all_to_all_ms if all_to_all else self.all_reduce_ms)[size]
        slope, start = np.polyfit(list(measured), list(measured.values()), 1)
        return float(slope * megabytes + start)


_SIZES = tuple(2**power for power in range(11))


def _by_size(*rows: tuple[float, ...]) -> dict[int, dict[int, float]]:
    return {size: dict(zip(_SIZES, row, strict=True)) for size, row in zip((2, 4, 8), rows, strict=True)}


PUBLISHED_LINKS = Links(
    all_reduce_gb_per_s={
        (8, True): 160.445,
        (4, True): 164.272,
        (4, False): 165.493,
        (2, True): 155.647,
        (2, False): 153.933,
    },
    p2p_gb_per_s={2: 147.32, 4: 133.469, 8: 108.616},
    overlap=1.1534195950157762,
    all_reduce_ms=_by_size(
        (0.0703, 0.07932, 0.09008, 0.1084, 0.1434, 0.2281, 0.3924, 0.7417, 1.3887, 2.6886, 5.1594),
        (0.07981, 0.09109, 0.1091, 0.1581, 0.2183, 0.3205, 0.5848, 1.0725, 2.0709, 3.7352, 7.1874),
        (0.07895, 0.1094, 0.1333, 0.1827, 0.2941, 0.4157, 0.6519, 1.2826, 2.3584, 4.6768, 8.1409),
    ),
    all_to_all_ms=_by_size(
        (0.0709, 0.09942, 0.1101, 0.1047, 0.1203, 0.1788, 0.2928, 0.4756, 0.8806, 1.7752, 3.4954),
        (0.05244, 0.07992, 0.1065, 0.1255, 0.1514, 0.2237, 0.3654, 0.6439, 1.1567, 2.1003, 4.0389),
        (0.1124, 0.1135, 0.1109, 0.1502, 0.2003, 0.243, 0.3997, 0.7135, 1.2981, 2.4822, 4.8151),
    ),
)
"""Links of one host of eight GPUs, as in ``tests/utils/mock_configs.py`` of AFDWang/Hetu-Galvatron at 49385af."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyMemory:
    """Megabytes of embedding, head and loss, by tensor-parallel degree: all states, and activations of one sample."""

    states: Mapping[int, float]
    activations: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """
    Galvatron's measurements of a model.

    Parameters
    ----------
    layer_ms, vocabulary_ms
        Forward pass of a micro-batch: slope in ms per sample, and start in ms.
    parameter_mb
        Parameters of one layer in fp32; all states take four times as much.
    activation_mb
        Activations of one layer and sample, by the degree over which they are spread.
    recomputed_mb
        Activations of one layer and sample with recomputation.
    whole, first, last
        Memory of the vocabulary on a single stage, and on the first and the last of several stages.
    """

    num_layers: int
    hidden_size: int
    seq_length: int
    layer_ms: tuple[float, float]
    vocabulary_ms: tuple[float, float]
    parameter_mb: float
    activation_mb: Mapping[int, float]
    recomputed_mb: float
    whole: VocabularyMemory
    first: VocabularyMemory
    last: VocabularyMemory
    links: Links = PUBLISHED_LINKS
    num_gpus: int = 8

    @property
    def sample_mb(self) -> float:
        """Megabytes of the hidden states of one sample in bf16."""
        return 2 * self.seq_length * self.hidden_size / MEGABYTE


def read_profile(path: Path, num_layers: int = 32, hidden_size: int = 4096, seq_length: int = 2048) -> LayerProfile:
    """
    Return a joined profile; layers and hidden size, which the files lack, are by default those of llama2-7b.

    Raises ``InputError`` if the file is no such profile, or has another sequence length.
    """
    try:
        data = json.loads(read_bytes(path))["data"]
        memory = next(value for key, value in data.items() if key.startswith("memory") and "layertype_0_sp" in value)
        times = max((value for key, value in data.items() if key.startswith("computation")), key=len)
        layer, sequence = memory["layertype_0_sp"][str(seq_length)], str(seq_length)
        activations = dict(layer["tp_activation_per_bsz_dict"])
        return LayerProfile(
            num_layers=num_layers,
            hidden_size=hidden_size,
            seq_length=seq_length,
            layer_ms=_line(times, "layertype_0_", sequence),
            vocabulary_ms=_line(times, "layertype_other_", sequence),
            parameter_mb=layer["parameter_size"],
            recomputed_mb=activations.pop("checkpoint"),
            activation_mb=_by_degree(activations),
            whole=_vocabulary(memory["other_memory_pp_off_sp"][sequence]),
            first=_vocabulary(memory["other_memory_pp_on_first_sp"][sequence]),
            last=_vocabulary(memory["other_memory_pp_on_last_sp"][sequence]),
        )
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, StopIteration, TypeError, AttributeError) as error:
        raise InputError(
            str(path),
            f"is no profile of Galvatron with sequences of {seq_length} tokens: {type(error).__name__} {error}.",
        ) from None


def _line(times: Mapping[str, float], kind: str, sequence: str) -> tuple[float, float]:
    """Return slope and start of the time of a micro-batch over its samples; the files have times per sample."""
    samples = {
        int(key.split("_bsz")[1].split("_")[0]): value
        for key, value in times.items()
        if key.startswith(kind) and key.endswith(f"_seq{sequence}")
    }
    if len(samples) < 2:
        raise KeyError(kind)
    slope, start = np.polyfit(list(samples), [size * value for size, value in samples.items()], 1)
    return float(slope), float(start)


def _by_degree(table: Mapping[str, Any]) -> dict[int, float]:
    return {int(degree): float(value) for degree, value in table.items()}


def _vocabulary(table: Mapping[str, Mapping[str, float]]) -> VocabularyMemory:
    return VocabularyMemory(states=_by_degree(table["model_states"]), activations=_by_degree(table["activation"]))
