"""Tables of the shipped GPU types and models."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.table import QUIET, Cell, Table
from pipette_opt.report.cells import as_rich

Entry = Mapping[str, Any]
"""GPU type or model as commands write it to JSON."""


def gpus_table(rows: Sequence[Entry]) -> RenderableType:
    """Table of memory, peaks and links of each GPU type."""
    headers = ("GPU", "GiB >", "GB/s >", "bf16 >", "fp8 >", "in a host >", "usual host", "runs >", "source")
    cells = []
    for row in rows:
        host = row["usual_host"]
        of_gpu = (
            row["name"],
            f"{row['memory_gib']:.0f}",
            f"{row['memory_bandwidth_gb_per_s']:,.0f}",
            _peak(row, "bf16"),
            _peak(row, "fp8"),
            f"{row['intra_node']['bandwidth_gb_per_s']:g} GB/s",
            "-" if host is None else f"{host['gpus_per_node']} GPUs, {host['nics']}",
            f"{row['public_runs']:,}" if row["public_runs"] else "none",
            Cell(short_source(row["source"]), style=QUIET),
        )
        cells.append(of_gpu)
    legend = (
        "GiB, GB/s: device memory. bf16, fp8: dense peak, TFLOP/s. In a host: from GPU to GPU, one way, assumed where "
        "nothing was measured. Usual host: GPUs, and NICs x Gbit/s, taken where you give none. Runs: public "
        "runs whose times were compared with predictions; trust the times of other kinds less. --json has all "
        "figures, further names and whole sources."
    )
    notes = "\n".join(f"{row['name']}: {row['note']}." for row in rows if row["note"])
    table = as_rich(Table(headers=headers, rows=cells))
    return Group(table, Text(), *([Text(notes), Text()] if notes else []), Text(legend, style=QUIET))


def models_table(rows: Sequence[Entry]) -> RenderableType:
    """Table of sizes and shapes of each model; names are never cut, because commands take them."""
    headers = ("model", "parameters >", "layers >", "hidden >", "heads >", "tokens >", "experts >", "source")
    cells = []
    for row in rows:
        heads = str(row["num_attention_heads"])
        if row["num_query_groups"] != row["num_attention_heads"]:
            heads += f"/{row['num_query_groups']}"
        experts = "-" if row["num_experts"] is None else f"{row['moe_router_topk']} of {row['num_experts']}"
        of_model = (
            row["name"],
            f"{(row['num_parameters'] - row['num_mtp_parameters']) / 1e9:,.2f} B",
            str(row["num_layers"]),
            str(row["hidden_size"]),
            heads,
            str(row["max_position_embeddings"]),
            experts,
            Cell(paper_or_page(row["source"]), style=QUIET),
        )
        cells.append(of_model)
    legend = (
        "Heads: of queries, and of keys and values if fewer. Tokens: longest sequence of the source. Experts: used by "
        "a token, of all. Parameters: without multi-token prediction, tested against the published counts. --json has "
        "whole sources and further names; any other model: a Hugging Face config.json, or Megatron arguments."
    )
    return Group(as_rich(Table(headers=headers, rows=cells)), Text(), Text(legend, style=QUIET))


def short_source(source: str) -> str:
    """Return the first part of a source, up to a bracket, comma or semicolon."""
    cut = [source.find(mark) for mark in (" (", ",", ";") if mark in source]
    return source[: min(cut)] if cut else source


def paper_or_page(source: str) -> str:
    """Return the number of the paper, or the page of Hugging Face, that the source of a model names."""
    found = re.search(r"arXiv \S+[0-9]", source) or re.search(r"(?<=huggingface\.co/)\S+\w", source)
    return found[0] if found else short_source(source)


def _peak(row: Entry, precision: str) -> str:
    return f"{row['peak_tflops'][precision]:,.0f}" if precision in row["peak_tflops"] else "-"
