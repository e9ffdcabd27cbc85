"""The page of a plan: its numbers are the plan's, its figures show them, and no name in it is taken for markup."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from typing import Any, get_args
from xml.etree.ElementTree import tostring

import numpy as np
import pytest
from factories import make_plan, small_instance, whole_plan
from report_pages import Page, plain, section, values

from pipette_opt.base.table import Cell, Table
from pipette_opt.base.types import ProofStep
from pipette_opt.base.units import GB, GIB, gib, three_digits
from pipette_opt.plans.plan import (
    JointModel,
    Plan,
    Proof,
    RuledOut,
)
from pipette_opt.report.page import page_of
from pipette_opt.report.page.figures import INK, RATES, RATES_OF_LEVELS
from pipette_opt.report.page.links import Links, folded_figure, links_of
from pipette_opt.report.page.markup import as_html, html_tables
from pipette_opt.report.page.placement import LISTED, runs_of
from pipette_opt.report.page.sensitivity import sensitivities
from pipette_opt.report.plan_file import plan_to_dict
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance, LinkMatrix
from pipette_opt.specs.levels import Level

PANELS = {
    "plan",
    "certificate",
    "time",
    "memory",
    "placement",
    "links",
    "schedule",
    "sensitivity",
    "search",
    "assumptions",
    "inputs",
}
OF_THE_JOB = {"links", "schedule", "sensitivity"}


@pytest.fixture(scope="module")
def job() -> Instance:
    """Five hosts; nothing was measured from the first to the third, which the plan leaves out."""
    given = small_instance()
    links = np.array(given.cluster.link_matrices[0].bytes_per_s)
    links[0, 2], links[2, 3] = np.nan, GB
    return replace(
        given, cluster=replace(given.cluster, link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=links),))
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A small plan."""
    return make_plan()


@pytest.fixture(scope="module")
def page(plan: Plan, job: Instance) -> Page:
    """Its page."""
    return Page(page_of(plan, job))


@pytest.mark.search
def test_all_panels_are_there(page: Page) -> None:
    """A section each, named by its heading, and reached from the navigation."""
    assert page.ids == PANELS
    targets = {named["href"] for tag, named in page.elements if tag == "a"}
    assert {f"#{name}" for name in PANELS} <= targets


@pytest.mark.search
def test_without_the_job_the_page_says_what_is_missing(plan: Plan) -> None:
    """All else comes from the plan."""
    text = page_of(plan)
    assert Page(text).ids == PANELS - OF_THE_JOB
    assert "Links, schedule and sensitivity are missing: the plan's cluster file does not exist." in text


@pytest.mark.search
def test_every_number_is_that_of_the_plan_file(job: Instance) -> None:
    """Each names its place in plan.json, and has the value that is there."""
    plan, seen = whole_plan(), set()
    content = plan_to_dict(plan)
    for tag, named in Page(page_of(plan, job)).elements:
        if tag != "data":
            continue
        place: Any = content
        for key in str(named["data-field"]).split("."):
            place = place[int(key)] if isinstance(place, list) else place[key]
        assert float(str(named["value"])) == pytest.approx(place, rel=1e-12), named
        seen.add(str(named["data-field"]).split(".")[0])
    assert seen >= {"certificate", "estimate", "memory", "alternatives", "objective", "inputs"}


@pytest.mark.search
def test_bars_of_time_and_memory_add_up(job: Instance) -> None:
    """Causes to the expected iteration, components to the predicted peak of each stage."""
    plan = whole_plan(1.3)
    figures = Page(page_of(plan, job)).figures()
    time, expected = figures["time"], plan.estimate.expected_of
    assert time["layout"]["xaxis"]["title"]["text"] == "expected seconds"
    for bar, seconds in ((0, plan.estimate.iteration_time_s), (2, 1.1 * plan.estimate.iteration_time_s)):
        assert sum(values(trace["x"])[bar] for trace in time["data"]) == pytest.approx(expected(seconds))
    memory = [trace for trace in figures["memory"]["data"] if trace["type"] == "bar"]
    peaks = sum(values(trace["y"]) for trace in memory)
    assert peaks == pytest.approx([gib(stage.predicted_bytes) for stage in plan.memory])


def test_whiskers_are_the_range_over_stacks(plan: Plan) -> None:
    """The diamond is the predicted peak; its lower whisker ends where the counted bytes do."""
    memory = tuple(replace(stage, spread=0.5) for stage in plan.memory)
    traces = Page(page_of(replace(plan, memory=memory))).figures()["memory"]["data"]
    (diamonds,) = (trace for trace in traces if trace["name"] == "nine in ten stacks")
    highs, lows = (values(diamonds["error_y"][side]) for side in ("array", "arrayminus"))
    for place, stage in enumerate(memory):
        low, high = stage.range_bytes
        assert low == stage.counted_bytes
        assert values(diamonds["y"])[place] == pytest.approx(gib(stage.predicted_bytes))
        assert values(diamonds["y"])[place] + highs[place] == pytest.approx(gib(high))
        assert values(diamonds["y"])[place] - lows[place] == pytest.approx(gib(low))


def test_placement_names_host_and_ranks(page: Page, plan: Plan) -> None:
    """Stage 0, replica 0 is on n3, the first of the plan's hosts in grid order."""
    (grid,) = page.figures()["placement"]["data"]
    assert grid["text"][0][0] == plan.hosts[plan.placement.node[0]]
    assert grid["customdata"][0][0] == "n3<br>ranks 0-1<br>GPUs 0-1"


def test_links_show_rates_and_what_is_missing(page: Page, plan: Plan, job: Instance) -> None:
    """The map has the measured rates; the missing and the slow link are counted and marked."""
    links = links_of(plan, job)
    rates, missing, used, slow = page.figures()["links"]["data"]
    assert values(rates["z"]) == pytest.approx(links.gb_per_s, rel=1e-6, nan_ok=True)
    assert np.argwhere(~np.isnan(values(missing["z"]))).tolist() == [[0, 2]]
    assert (slow["x"], slow["y"]) == (["n3"], ["n2"])
    assert len(used["x"]) == len(links.used)
    said = " ".join(text for _, text in page.texts)
    assert f"sends over {len(links.used)} of 20 links" in said
    assert "1 are slow" in said
    assert "and 1 missing" in said


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("colours", [RATES, RATES_OF_LEVELS, LISTED])
def test_dark_marks_and_names_are_legible_on_every_colour_of_a_map(colours: list[list[Any]]) -> None:
    """As WCAG asks of text, 4.5 to 1."""
    for _, colour in colours:
        assert (luminance(colour) + 0.05) / (luminance(INK) + 0.05) >= 4.5


@pytest.mark.search
def test_links_of_levels_are_not_called_slow_by_their_colour(plan: Plan, job: Instance) -> None:
    """Where links differ by design there is no red, and domains have outlines."""
    level = Level(
        name="domain",
        group_of_node=np.array([0, 0, 0, 1, 1]),
        bytes_per_s=100 * GB,
        latency_s=1e-6,
        scale_up=True,
    )
    with_levels = replace(job, cluster=replace(job.cluster, levels=(level,)))
    links = Page(page_of(plan, with_levels)).figures()["links"]
    assert [colour for _, colour in links["data"][0]["colorscale"]] == [colour for _, colour in RATES_OF_LEVELS]
    assert len(links["layout"]["shapes"]) == 2


@pytest.mark.search
def test_placement_says_which_hosts_are_left_out_and_which_gpus_they_have(plan: Plan, job: Instance) -> None:
    """Beside the grid, without opening a table; kinds of GPU where there are several."""
    said = " ".join(text for _, text in Page(page_of(plan, job)).texts)
    assert "Left out: n2 (in place of n0 an iteration would take 1.23 % more)." in said
    slow = replace(job.cluster.nodes[3], gpu=job.cluster.nodes[3].gpu.at_speed(0.5))
    nodes = (*job.cluster.nodes[:3], slow, job.cluster.nodes[4])
    (grid,) = Page(page_of(plan, replace(job, cluster=replace(job.cluster, nodes=nodes)))).figures()["placement"][
        "data"
    ]
    assert grid["text"][0][0] == f"n3 {slow.gpu.name}"


FLAGS = [
    ("--tensor-model-parallel-size", "2"),
    ("--pipeline-model-parallel-layout", "E|t*3|L"),
    ("--sequence-parallel",),
]


def test_head_names_job_machines_and_time(plan: Plan) -> None:
    """Model, batch, sequence length and machines are the main heading; below are verdict, time and GPUs used."""
    text = page_of(plan)
    head = plain(text[text.index("<h1>") : text.index("<nav")])
    job = "tiny, batch 64 of 1,024 tokens, bf16, 5 hosts of 4 GPUs"
    assert f"<h1>{job}</h1>" in text
    assert f"<title>Plan: {job}</title>" in text
    assert plan.verdict in head
    assert f"expected per iteration {three_digits(plan.estimate.expected_s)} s" in head
    assert "GPUs used 16 of 20" in head


def test_plan_and_flags_stand_before_the_certificate(plan: Plan) -> None:
    """The plan in words, then flags that a shell reads as they are, then the command; the certificate is later."""
    text = page_of(plan, flags=FLAGS, file="mine.json")
    order = [text.index(f'<section id="{name}"') for name in ("plan", "time", "memory", "certificate", "search")]
    assert order == sorted(order)
    (flags,) = re.findall(r"<pre [^>]*>(.*?)</pre>", text)
    assert shlex.split(unescape(re.sub("<[^>]+>", "", flags))) == [word for option in FLAGS for word in option]
    said = plain(text[order[0] : order[1]])
    places = [
        said.index(words) for words in ("tensor 2 x pipeline 2", "--tensor-model", "pipette-opt export mine.json")
    ]
    assert places == sorted(places)
    assert "Flags" not in page_of(plan).replace("pre.flags", "")


def test_one_risk_is_shown(plan: Plan) -> None:
    """Head and memory panel have the risk of the fullest stage, and no other."""
    memory = tuple(replace(stage, oom_probability=0.06) for stage in plan.memory)
    text = page_of(replace(plan, memory=memory))
    chance = "6.0 %"
    head, panel = text[text.index("<h1>") : text.index("<nav")], section(text, "memory")
    for said in (plain(head), panel):
        assert f"risk of running out of memory is {chance}" in said or f"risk of running out of memory {chance}" in said
    assert "Fits: 30.0 of 78.0 GiB" in plain(head)


WORDS_OF_THE_SEARCH = ("packing", "unusual", "judge", "work alone", "best links", "to look at", "prover", "incumbent")


@pytest.mark.search
def test_no_words_of_the_search(plan: Plan, job: Instance) -> None:
    """With every step of the proof and a joint model, people read none of the solver's own words."""
    engine, rule = (RuledOut(name=name, configurations=1, example="tp1") for name in ("judge over best links", "batch"))
    others = ("memory", "fewer recomputed layers", "less on the host", "tensor overlap", "no placement")
    proof = (
        Proof(by="legality rules", configurations=1, bound_s=None, named=(rule,)),
        *(Proof(by=by, configurations=1, bound_s=1.0, named=(engine,)) for by in (*others, *get_args(ProofStep))),
    )
    joint = JointModel(
        families=7, variables=5, constraints=7, solves=2, seconds=1.5, splits=0, status="FEASIBLE", bound_s=0.9
    )
    certificate = replace(plan.certificate, proof=proof, joint_model=joint)
    text = page_of(replace(plan, certificate=certificate), job)
    said = plain(text[text.index("<body") :]) + json.dumps(Page(text).figures()["search"])
    assert "for 7 sets of configurations" in said
    assert [word for word in WORDS_OF_THE_SEARCH if re.search(word, said, re.IGNORECASE)] == []


def test_certificate_says_how_far_and_folds_the_rest(plan: Plan) -> None:
    """A search that ended early: 3.23 % at most, by hand 1 / 0.96875; figures and what was not searched are folded."""
    text = page_of(plan)
    certificate = text[text.index('<section id="certificate"') : text.index('<section id="search"')]
    open_part, folded = certificate.split("<details>")
    assert "the plan takes at most 3.23 % longer than the fastest of those searched." in open_part
    assert "<table" not in open_part
    assert "ZeRO 2 and 3" in folded
    assert "1 choice was not searched." in open_part
    nothing = replace(plan, certificate=replace(plan.certificate, lower_bound_s=0.0, gap=1.0))
    assert "nothing is known about how much faster other plans may be" in page_of(nothing)


@pytest.mark.search
def test_legends_are_below_figures_and_the_toolbar_above(page: Page) -> None:
    """The toolbar takes 36 pixels of the upper margin."""
    for figure in page.figures().values():
        legend = figure["layout"]["legend"]
        assert (legend["yref"], legend["y"], legend["yanchor"], legend["orientation"]) == (
            "container",
            0,
            "bottom",
            "h",
        )
        assert figure["layout"]["margin"]["t"] >= 36


def test_header_and_memory_speak_of_the_same_stage(plan: Plan) -> None:
    """The one whose memory may be full first, also where no stage has a risk."""
    memory = [replace(stage, oom_probability=1e-5) for stage in plan.memory]
    memory[1] = replace(memory[1], capacity_bytes=33 * GIB)
    said = " ".join(text for _, text in Page(page_of(replace(plan, memory=tuple(memory)))).texts)
    assert "GiB on a GPU of stage 1, the fullest" in said
    assert "The fullest stage is 1:" in said


@pytest.mark.parametrize("num_hosts", [129, 300, 1280])
def test_many_hosts_share_cells(num_hosts: int) -> None:
    """A cell is the slowest of its links, also at the border, and the map stays small."""
    rates = np.random.default_rng(0).uniform(1.0, 50.0, (num_hosts, num_hosts))
    rates[np.arange(num_hosts), np.arange(num_hosts)] = np.nan
    hosts = tuple(f"n{number}" for number in range(num_hosts))
    usual = np.full_like(rates, 20.0)
    found = folded_figure(Links(hosts=hosts, flows=1, gb_per_s=rates, usual=usual, used={}), ())
    text = found.to_json()
    width = -(-num_hosts // 128)
    shown = values(json.loads(text)["data"][0]["z"])
    last = (num_hosts - 1) // width
    assert shown[0, 1] == pytest.approx(np.nanmin(rates[:width, width : 2 * width]), rel=1e-6)
    assert shown[last, 0] == pytest.approx(np.nanmin(rates[last * width :, :width]), rel=1e-6)
    assert len(text) < 1_000_000


def test_schedule_ends_with_the_iteration(page: Page, plan: Plan) -> None:
    """Two strips a stage; the optimizer is last."""
    strips, *legend = page.figures()["schedule"]["data"]
    codes = values(strips["z"])
    assert len(codes) == 2 * plan.config.pipeline_model_parallel_size
    assert codes[:, -1].max() == codes.max() > 0
    assert {"forward", "backward", "optimizer"} <= {trace["name"] for trace in legend}


def test_funnel_ends_with_the_plan(page: Page, plan: Plan) -> None:
    """What arrives at a step is what those before did not rule out."""
    (bars,) = page.figures()["search"]["data"]
    ruled_out = [part.configurations for part in plan.certificate.proof]
    left = [sum(ruled_out[place:]) for place in range(len(ruled_out))]
    assert values(bars["x"]).tolist() == [*left, 1]


def test_sensitivity_is_the_simulator(plan: Plan) -> None:
    """Slower links between hosts, simulated by hand; nothing is faster with slower inputs."""
    given = small_instance()
    found = {one.name: one for one in sensitivities(given, plan.config, plan.placement)}
    slower = tuple(replace(one, bytes_per_s=one.bytes_per_s * 0.9) for one in given.cluster.link_matrices)
    by_hand = estimate(
        replace(given, cluster=replace(given.cluster, link_matrices=slower)), plan.config, plan.placement
    )
    assert found["links between hosts"].slower_s == pytest.approx(by_hand.iteration_time_s)
    now = plan.estimate.iteration_time_s
    assert all(one.faster_s <= now * (1 + 1e-9) and one.slower_s >= now * (1 - 1e-9) for one in found.values())
    assert found["GPUs (compute and memory)"].slower_s > now > found["GPUs (compute and memory)"].faster_s


@pytest.mark.search
@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&b<b>c</b>"])
def test_names_are_no_markup(name: str, job: Instance) -> None:
    """A host, a model and a note with such a name are shown with it, and make no element."""
    plain = make_plan()
    hosts = (name, *plain.hosts[1:])
    nodes = (replace(job.cluster.nodes[0], host=name), *job.cluster.nodes[1:])
    plan = replace(
        plain, hosts=hosts, notes=(name,), inputs={**plain.inputs, "model": {"name": name}}, unused_hosts={name: name}
    )
    named = Page(page_of(plan, replace(job, cluster=replace(job.cluster, nodes=nodes))))
    kinds = {tag for tag, _ in named.elements}
    assert "img" not in kinds
    assert "b" not in kinds
    assert sum(tag == "script" for tag, _ in named.elements) == 3
    assert any(name in text for _, text in named.texts)
    figures = json.dumps(named.figures())
    assert name not in figures.replace('\\"', '"')


@pytest.mark.search
def test_same_plan_same_page(plan: Plan, job: Instance) -> None:
    """Nothing in it depends on when it was made."""
    assert page_of(plan, job) == page_of(plan, job)


def test_runs_of_numbers() -> None:
    """Neighbours are joined."""
    assert runs_of(np.array([3, 1, 2, 7, 9, 10])) == "1-3, 7, 9-10"


def test_a_finished_search_names_the_fastest(plan: Plan) -> None:
    """The fastest found, which is less plain; without one, no plan is faster."""
    whole = whole_plan()
    finished = replace(whole, certificate=replace(whole.certificate, status="OPTIMAL"))
    label = whole.alternatives[0].config.label()
    assert f"faster than the fastest found: {label} is 0.806 % faster" in page_of(finished)
    assert "no plan searched is faster." in page_of(replace(finished, fastest=None))
    assert "Experts are assumed to be evenly loaded" in page_of(whole)


def test_a_table_on_a_page() -> None:
    """A caption, a header for each column and row, numbers to the right, and marks of the numbers of a plan."""
    table = Table(
        title="Sizes",
        headers=("part", "", "GiB >"),
        rows=[("<b>", "hidden", Cell("3.0", 3.04, "memory.0.predicted_gib")), ("rest", "", Cell("-", None, "memory"))],
        total=("all", "", "3.0"),
        note="* a note",
    )
    assert tostring(as_html(table), encoding="unicode") == (
        '<div class="scroll" role="region" aria-label="Sizes (* a note)" tabindex="0"><table>'
        '<caption>Sizes (* a note)</caption><thead><tr><th scope="col">part</th><th scope="col" class="n">GiB</th></tr>'
        '</thead><tbody><tr><th scope="row">&lt;b&gt;</th>'
        '<td class="n"><data value="3.04" data-field="memory.0.predicted_gib">3.0</data></td></tr>'
        '<tr><th scope="row">rest</th><td class="n">-</td></tr>'
        '<tr><th scope="row">all</th><td class="n">3.0</td></tr></tbody></table></div>'
    )
    assert len(html_tables(table, replace(table, rows=()))) == 1


@pytest.mark.search
def test_poorer_plans_have_a_page(plan: Plan) -> None:
    """Without components, causes of alternatives, critical path, proof and memory."""
    poorer = replace(
        plan,
        memory=tuple(replace(stage, components={}) for stage in plan.memory),
        alternatives=tuple(replace(one, breakdown={}) for one in plan.alternatives),
        estimate=replace(plan.estimate, critical_path={}),
        certificate=replace(plan.certificate, proof=(), searched={}, not_searched=()),
    )
    assert Page(page_of(poorer)).ids == PANELS - OF_THE_JOB
    without = replace(poorer, memory=())
    assert "Memory was not predicted for this plan." in page_of(without)
    assert "<table" in without._repr_html_()
