"""Support for a model on a GPU type: modelled parts, origin of constants, and public runs compared with predictions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.units import percent
from pipette_opt.plans.provenance import ORIGINS
from pipette_opt.read.backtests import BackTest, of_model, read_backtests
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.report.cells import QUIET, columns_table, spaced, titled
from pipette_opt.specs import LayerKind, ModelSpec, NotModelled, StackSpec
from pipette_opt.specs.model_gaps import not_modelled_of
from pipette_opt.specs.precision import PRECISION_RECIPES
from pipette_opt.worlds.jobs import FP8, WIDE, generation_of, kind_of
from pipette_opt.worlds.prior import shipped_priors

PLAIN = ("fp32", "fp16", "bf16")
"""Precisions whose products need no scaling recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """
    Knowledge about a model on a GPU type.

    Parameters
    ----------
    layers
        Number of layers of each kind.
    not_modelled
        Parts of the model that the predictions leave out.
    formats
        For each precision of matrix products on this GPU, the origin of its rate: ``measured``, ``interpolated`` or
        ``assumed``, and the GPU whose kernels were measured.
    constants
        Names of the stack's constants, by origin.
    links
        Origin of link rates if the user gives none.
    tested
        Public runs of models with this shape on this GPU type.
    elsewhere
        Public runs of models with this shape on other GPU types.
    kinds
        Number of public runs of similar jobs, by dense or experts, precision, and generation of the GPU.
    """

    model: str
    gpu: str
    layers: Mapping[str, int]
    not_modelled: tuple[NotModelled, ...]
    formats: Mapping[str, str]
    constants: Mapping[str, tuple[str, ...]]
    links: str
    tested: tuple[BackTest, ...]
    elsewhere: tuple[BackTest, ...]
    kinds: Mapping[str, int]
    verdict: str


def support_of(name: str, model: ModelSpec, entry: CatalogueEntry, stack: StackSpec) -> Support:
    """Collect the shipped knowledge about a model on a GPU type; ``name`` is the user's name of the model."""
    gpu, by_gpu = entry.gpu, of_model(read_backtests(), model)
    tested = by_gpu.get(gpu.name, ())
    runs = shipped_priors().runs
    kinds_of = (kind_of(model, precision, generation_of(gpu)) for precision in (WIDE, FP8))
    kinds = {kind: runs[kind] for kind in kinds_of if kind in runs}
    layers = Counter(map(_kind_words, model.layers))
    if model.mtp_num_layers:
        layers["multi-token prediction"] = model.mtp_num_layers
    return Support(
        model=name,
        gpu=gpu.name,
        layers=dict(layers),
        not_modelled=not_modelled_of(model, None),
        formats={origin: _origin(entry, origin) for origin in _formats(entry)},
        constants={origin: tuple(names) for origin in ORIGINS if (names := stack.names_of(origin))},
        links=f"assumed: a share of the nominal rate inside a host ({entry.intra_node_bytes_per_s / 1e9:g} GB/s) and "
        "between hosts; measured where the cluster file says so",
        tested=tested,
        elsewhere=tuple(test for other, rows in by_gpu.items() if other != gpu.name for test in rows),
        kinds=kinds,
        verdict=_verdict(name, entry, tested, by_gpu, kinds),
    )


def _kind_words(kind: LayerKind) -> str:
    """Return the mixer and the MLP of a kind of layer, in words."""
    parts = [part.replace("_", " ") for part in (kind.mixer, kind.mlp) if part != "none"]
    return ", ".join(["dense MLP" if part == "dense" else part for part in parts]) or "nothing"


def _formats(entry: CatalogueEntry) -> list[str]:
    """Return the precisions of matrix products that the GPU supports."""
    peaks = entry.gpu.peak_flops
    narrow = [f"fp8 {name}" if recipe.peak != "nvfp4" else name for name, recipe in PRECISION_RECIPES.items()]
    recipes = list(PRECISION_RECIPES.values())
    return [precision for precision in PLAIN if precision in peaks] + [
        word for word, recipe in zip(narrow, recipes, strict=True) if recipe.peak in peaks
    ]


def _origin(entry: CatalogueEntry, word: str) -> str:
    """Return the origin of the rate of matrix products in a precision."""
    laws, name = entry.gpu.efficiency, word.removeprefix("fp8 ")
    recipe = PRECISION_RECIPES.get(name)
    law = "wide" if recipe is None else recipe.law
    like = "" if laws.like == entry.gpu.name else f" (kernels of {laws.like})"
    if law in ("block", "fp4") and getattr(laws, law) is None:
        return f"assumed: as fp8 with one scale a tensor{like}"
    return f"{laws.origin}{like}"


def _verdict(
    name: str,
    entry: CatalogueEntry,
    tested: tuple[BackTest, ...],
    by_gpu: Mapping[str, tuple[BackTest, ...]],
    kinds: Mapping[str, int],
) -> str:
    gpu, origin = entry.gpu.name, entry.gpu.efficiency.origin
    rates = f"rates of products on {gpu} are {origin}"
    if tested:
        runs, error = _together(tested)
        return f"{name} on {gpu}: {runs} public runs, times {percent(error)} off in the mean; {rates}."
    others = tuple(test for rows in by_gpu.values() for test in rows)
    if others:
        runs, error = _together(others)
        where = " and ".join(by_gpu)
        return f"{name} on {gpu}: never tested; {runs} public runs on {where}, {percent(error)} off; {rates}."
    runs = sum(kinds.values())
    like = f"{runs} public runs of other models of its kind on such GPUs" if runs else "no public run like it"
    return f"{name} on {gpu}: never tested; {like}; {rates}."


def _together(rows: Iterable[BackTest]) -> tuple[int, float]:
    """Return the number of runs and their mean error."""
    tests = list(rows)
    runs = sum(test.runs for test in tests)
    return runs, sum(test.runs * test.error for test in tests) / runs


def support_table(found: Support) -> RenderableType:
    """Tables for the terminal: verdict, modelled parts, origin of constants, public runs."""
    parts: list[RenderableType] = [Text(found.verdict)]
    layers = columns_table("layers", "number >")
    for kind, count in found.layers.items():
        layers.add_row(kind, str(count))
    parts.append(titled("Modelled", spaced(layers)))
    lines = [f"{entry.option} {entry.value}".strip() + f": {entry.why}" for entry in found.not_modelled] or ["Nothing."]
    parts.append(titled("Not counted", spaced(Text("\n".join(lines)))))
    origins = columns_table("constants", "origin")
    for word, origin in found.formats.items():
        origins.add_row(f"products in {word}", origin)
    for origin, names in found.constants.items():
        origins.add_row(", ".join(names), origin)
    origins.add_row("links", found.links)
    origins.add_row("memory", "counted; overheads beside tensors interpolated between traced layers")
    parts.append(titled("Origin of the numbers", spaced(origins)))
    parts.append(titled("Tested against", spaced(_tests_table(found))))
    legend = (
        "Middle: median of measured over predicted time. Error: mean absolute error of predictions. Models of equal "
        "layers, hidden size, heads and experts count as one. The commands in the last column wrote the rows."
    )
    return Group(*parts, Text(), Text(legend, style=QUIET))


def _tests_table(found: Support) -> RenderableType:
    table = columns_table("GPU", "format", "runs >", "GPUs >", "middle >", "error >", "by")
    for test in (*found.tested, *found.elsewhere):
        sizes = "-".join(map(str, dict.fromkeys(test.gpus)))
        cells = [test.gpu, test.precision, str(test.runs), sizes, f"{test.middle:.2f}", percent(test.error), test.by]
        table.add_row(*cells)
    for kind, runs in found.kinds.items():
        table.add_row("of its kind", kind, str(runs), "", "", "", "benchmarks/worlds")
    return table if table.row_count else Text("No public run of this model, nor of its kind on such GPUs.")
