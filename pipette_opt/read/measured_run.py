"""Measured run: a row of ``runs.csv``."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.megatron_args import MegatronArgs


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
    model
        Name of the model in the file.
    launch
        Launch that the row describes, with its model: by column ``args``, or by columns of degrees, batch and model,
        whose empty cells have the defaults of the row's framework. It also has the settings that Megatron-LM has no
        option for: layers of stages that another framework splits, recomputation by operation, the first version of
        FlashAttention, norms in one kernel, and a loss in chunks.
    unpredictable
        Reason why the row does not describe a whole launch; empty if it does.
    peak_mem_bytes
        Peak memory. Sources define it differently: allocated, reserved or used on the device; of different ranks.
    cells
        All cells of the row by column, as text. They say what no launch does: framework, software version, stage of the
        peak, bandwidth of a host.
    dropped_time
        Reason why the row's time does not count although its memory does; empty if it counts or was not given.
    """

    row: int
    source: str
    gpu: CatalogueEntry | None
    gpu_name: str
    gpus_per_node: int
    num_gpus: int
    model: str
    launch: MegatronArgs
    unpredictable: str
    iter_time_s: float | None
    peak_mem_bytes: float | None
    oom: bool | None
    mfu: float | None
    notes: str
    cells: Mapping[str, str]
    dropped_time: str = ""

    @property
    def precision(self) -> str:
        """Name of the number format in the file, with hyphens and in lower case; empty if the row has none."""
        return self.cells.get("precision", "").lower().replace("_", "-")

    @property
    def attention_kernel(self) -> str:
        """Name of the attention kernel in the file; empty if the row has none."""
        return self.cells.get("attention_kernel", "")

    @property
    def group(self) -> tuple[str, int | None, int, str]:
        """Model, sequence length, number of GPUs and attention kernel."""
        return self.model, self.launch.seq_length, self.num_gpus, self.attention_kernel
