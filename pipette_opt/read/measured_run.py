"""Measured run: a row of ``runs.csv``."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.specs import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """
    Measured run, a row of ``runs.csv`` in base units; ``None`` for empty cells.

    Parameters
    ----------
    row
        Number of the row, 0 for the first row below the header.
    gpu
        Catalogue entry of the GPU; ``None`` if the catalogue lacks it. ``gpu_name`` is the name in the file.
    recompute
        ``None`` for no recomputation, or the word of the row: ``selective``, ``full``, or another that labels have
        (:func:`~pipette_opt.parallel.recompute.labelled_fields`).
    layers_per_stage
        Number of layers of each stage, from column ``layers_per_stage`` or the launch; ``None`` if neither gives it.
    peak_mem_bytes
        Peak memory. Sources define it differently: allocated, reserved or used on the device; of different ranks.
    extra
        Further columns, as text.
    launch
        Launch in column ``args``, with the options of other columns.
    spec
        Model of a row that names its model and has no shape; the shape of the row is then the model's.
    """

    row: int
    source: str
    gpu: CatalogueEntry | None
    gpu_name: str
    gpus_per_node: int
    num_gpus: int
    model: str
    num_layers: int | None
    hidden: int | None
    ffn_hidden: int | None
    heads: int | None
    kv_heads: int | None
    vocab: int | None
    seq_len: int | None
    gbs: int | None
    mbs: int | None
    tp: int | None
    pp: int | None
    dp: int | None
    vpp: int
    cp: int
    seq_parallel: bool | None
    zero_stage: int | None
    recompute: str | None
    recompute_text: str
    attention_kernel: str
    precision: str
    layers_per_stage: tuple[int, ...] | None
    iter_time_s: float | None
    peak_mem_bytes: float | None
    oom: bool | None
    mfu: float | None
    notes: str
    extra: Mapping[str, str]
    spec: ModelSpec | None = None
    launch: MegatronArgs | None = None

    @property
    def group(self) -> tuple[str, int | None, int, str]:
        """Model, sequence length, number of GPUs and attention kernel."""
        return self.model, self.seq_len, self.num_gpus, self.attention_kernel
