"""
A plan as a self-contained HTML page, which needs no network, server or other file.

Figures are drawn by plotly. Its script and the data are in the page, compressed; the browser unpacks them. All numbers
are also in tables, which need no script. The page's content security policy blocks every other script.
"""

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.units import gib, percent, percent_above, short_seconds, three_digits
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.predicted import fullness
from pipette_opt.plans.verdict import risk_words
from pipette_opt.report.best_mfu import above_best_words, best_of_plan, best_words
from pipette_opt.report.first_screen import job_words
from pipette_opt.report.page.inputs import assumptions_panel, inputs_panel
from pipette_opt.report.page.links import links_panel
from pipette_opt.report.page.markup import Child, Panel, bullets, element, number, paragraph
from pipette_opt.report.page.memory import memory_panel
from pipette_opt.report.page.placement import placement_panel
from pipette_opt.report.page.plan import plan_panel
from pipette_opt.report.page.proof import certificate_panel, funnel_panel
from pipette_opt.report.page.schedule import schedule_panel
from pipette_opt.report.page.sensitivity import sensitivities
from pipette_opt.report.page.times import sensitivity_panel, time_panel
from pipette_opt.specs import Instance
from pipette_opt.verify.common import on_cluster


def page_of(
    plan: Plan,
    instance: Instance | None = None,
    *,
    flags: Sequence[Sequence[str]] = (),
    file: str = "plan.json",
    sha256: str = "",
) -> str:
    """
    Return the page of a plan, as HTML.

    Parameters
    ----------
    instance
        Job of the plan; without it the page leaves out links, schedule and sensitivity, and says so.
    flags
        Megatron-LM's options for the plan, each with its values; empty if Megatron-LM cannot express the plan.
    file, sha256
        Name of the plan file, and its hash; the page shows both.
    """
    panels = [plan_panel(plan, flags, file), time_panel(plan), memory_panel(plan), placement_panel(plan, instance)]
    if instance is not None:
        placement = on_cluster(instance, plan)
        if instance.cluster.num_nodes > 1:
            panels.append(links_panel(plan, instance))
        panels.append(schedule_panel(plan, instance, placement))
        panels.append(sensitivity_panel(plan, sensitivities(instance, plan.config, placement)))
    panels += [certificate_panel(plan), funnel_panel(plan), assumptions_panel(plan), inputs_panel(plan, file, sha256)]
    left_out = (
        []
        if instance is not None
        else ["Links, schedule and sensitivity are missing: the plan's cluster file does not exist."]
    )
    return _document(plan, panels, left_out)


def write_page(path: Path, text: str) -> None:
    """Write the page atomically; raise ``InputError`` if the path cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror or error}.") from None


def _document(plan: Plan, panels: Sequence[Panel], left_out: Sequence[str]) -> str:
    script = _resource("page.js")
    policy = (
        f"default-src 'none'; script-src 'sha256-{_sha256(script)}' 'strict-dynamic' blob:; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content="pipette-opt"),
        element("title", f"Plan: {job_words(plan)}"),
        element("style", _resource("page.css")),
    )
    links = bullets(element("a", panel.title, href=f"#{panel.name}") for panel in panels)
    main = element("main", *map(_section, panels), id="main")
    body = element(
        "body",
        element("a", "To the panels", href="#main", class_="skip"),
        _header(plan, left_out),
        element("nav", links, aria_label="Panels"),
        main,
        element("footer", paragraph(f"pipette-opt {plan.versions.get('pipette-opt', '')}, plan of {plan.created}")),
        *_packed(panels),
        element("script", script),
    )
    return (
        "<!DOCTYPE html>\n" + tostring(element("html", head, body, lang="en"), encoding="unicode", method="html") + "\n"
    )


def _header(plan: Plan, left_out: Sequence[str]) -> Element:
    estimate, proof, size = plan.estimate, plan.certificate, plan.config.world_size
    gap, num_gpus = "gap" if proof.fastest_s is None else "shown_gap", len(plan.hosts) * plan.gpus_per_node
    best = best_of_plan(plan)
    facts: list[tuple[str, Child]] = [
        (
            "expected per iteration",
            number(estimate.expected_s, short_seconds(estimate.expected_s), "estimate.expected_s"),
        ),
        ("tokens/s", three_digits(estimate.expected_tokens_per_s)),
        (f"MFU {best_words(estimate, best)}".rstrip(), percent(estimate.expected_mfu)),
        (
            "above the best searched at most",
            number(getattr(proof, gap), percent_above(getattr(proof, gap)), f"certificate.{gap}"),
        ),
        ("GPUs used", f"{size:,} of {num_gpus:,}"),
    ]
    if plan.memory:
        stage = max(plan.memory, key=fullness)
        need, room = gib(stage.predicted_bytes), gib(stage.capacity_bytes)
        shown = number(need, f"{need:.1f}", f"memory.{plan.memory.index(stage)}.predicted_gib")
        facts += [
            (f"GiB on a GPU of stage {stage.stage}, the fullest", element("span", shown, f" of {room:.1f}")),
            ("risk of running out of memory", risk_words(stage.oom_probability)),
        ]
    return element(
        "header",
        element("h1", job_words(plan)),
        element("p", plan.verdict, class_="verdict"),
        element("dl", *(element("div", element("dt", term), element("dd", value)) for term, value in facts)),
        *(element("p", line, class_="left-out") for line in (above_best_words(estimate, best), *left_out) if line),
    )


def _section(panel: Panel) -> Element:
    parts = [element("h2", panel.title, id=f"{panel.name}-title"), *panel.body]
    if panel.figure is not None:
        drawn = element("div", id=f"figure-{panel.name}", class_="plot", role="group", aria_label=panel.shows)
        drawn.set("style", f"min-height: {panel.figure.layout.height}px")
        hint = element(
            "p", "This figure needs a browser of 2023 or newer; the details below have its numbers.", class_="no-figure"
        )
        drawn.append(hint)
        parts.append(element("figure", drawn, element("figcaption", panel.shows)))
    if panel.details:
        parts.append(element("details", element("summary", f"{panel.title}: details"), *panel.details))
    return element("section", *parts, id=panel.name, aria_labelledby=f"{panel.name}-title")


def _packed(panels: Sequence[Panel]) -> list[Element]:
    """Return the compressed plotly script and figures, as script elements."""
    figures = [f'"{panel.name}": {panel.figure.to_json()}' for panel in panels if panel.figure is not None]
    packed = {"plotly": _plotly(), "figures": _compressed("{" + ", ".join(figures) + "}")}
    return [element("script", text, id=name, type="application/gzip+base64") for name, text in packed.items()]


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _compressed(get_plotlyjs())


def _compressed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _resource(name: str) -> str:
    return files("pipette_opt.report.page").joinpath(name).read_text(encoding="utf-8")
