"""Simulation of the launch that the user runs today, or of an existing plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.units import listed
from pipette_opt.job.read import Job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from pipette_opt.base.types import IntArray
    from pipette_opt.parallel import ParallelConfig, Placement
    from pipette_opt.parallel.schedule import Schedule
    from pipette_opt.plans.plan import IterationTime, Plan, StageMemory
    from pipette_opt.report.comparison import Uncounted
    from pipette_opt.simulate.paying import PayingOption
    from pipette_opt.specs import ClusterSpec, Instance, NotModelled


LAUNCH = "your current launch"
"""Title of today's launch in tables."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Current:
    """
    A launch of today or an existing plan, with its simulated time and memory.

    Parameters
    ----------
    instance
        The job, with the launch's training settings.
    max_oom_risk
        Accepted probability of running out of memory.
    not_modelled
        Options that the predicted time and memory leave out.
    changed
        Sentences on differences between today's cluster and the cluster that the plan was made for.
    model_from
        Sentence that names the source of the model if several places give one; otherwise empty.
    remarks
        Sentences on how the Megatron arguments were read.
    """

    instance: "Instance"
    config: "ParallelConfig"
    placement: "Placement"
    hosts: tuple[str, ...]
    estimate: "IterationTime"
    memory: "tuple[StageMemory, ...]"
    schedule: "Schedule | None" = None
    max_oom_risk: float = USUAL_RISK
    title: str = LAUNCH
    not_modelled: "tuple[NotModelled, ...]" = ()
    changed: tuple[str, ...] = ()
    model_from: str = ""
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        from pipette_opt.plans.summary import launch_lines, lines_at_most

        lines = launch_lines(self.estimate, self.memory, self.hosts)
        return lines_at_most(f"{self.title}: {self.config.label()}", [*lines, *self.changed, *self.remarks])

    def screen(self) -> list["RenderableType"]:
        """Return the first screen: verdict, job, launch, time, memory, options that would pay, next commands."""
        from dataclasses import asdict

        from rich.text import Text

        from pipette_opt.parallel import with_offload
        from pipette_opt.plans.notes import document_notes
        from pipette_opt.plans.releases import release_words
        from pipette_opt.report import first_screen as screens
        from pipette_opt.report.best_mfu import best_of_job
        from pipette_opt.report.tables import configuration_words, verdict_line
        from pipette_opt.specs.activations import host_keeps
        from pipette_opt.specs.host_names import compress_hosts

        instance, batch = self.instance, self.instance.training.global_batch_size
        cluster, on_host = instance.cluster, with_offload(self.config, host_keeps(instance.training, self.config).word)
        kinds = dict.fromkeys(gpu.name for gpu in cluster.gpu_kinds)
        machines = screens.machines_words(cluster.num_nodes, cluster.gpus_per_node, kinds)
        words = screens.training_words(asdict(instance.training), batch)
        job = [instance.model.name, *screens.adapter_words(asdict(instance.model)), *words, machines]
        rows = (
            ("Job", ", ".join(job)),
            ("Launch", f"{configuration_words(on_host, batch)}; {self.config.label()}"),
            ("Needs", release_words(self.config, instance.model.num_query_groups)),
            ("Hosts", f"{len(self.hosts)} of {cluster.num_nodes}: {compress_hosts(self.hosts)}"),
            ("Schedule", self._schedule_words()),
            ("Time", screens.time_words(self.estimate, best_of_job(instance))),
            ("Documents", screens.document_words(document_notes(instance, self.config))),
            ("Measured", screens.measured_words(asdict(self.instance.stack))),
            ("Memory", screens.memory_words(self.memory)),
            ("Would pay", screens.paying_words(self.would_pay())),
            ("Left out", screens.not_modelled_words(self.not_modelled)),
            ("", "\n".join(self.uncounted().lines(self.estimate))),
            ("Changed", "\n".join(self.changed)),
            ("Model", self.model_from),
        )
        return [verdict_line(self._verdict()), Text(), screens.facts(rows), *screens.steps_lines(self._next_steps())]

    def would_pay(self) -> "tuple[PayingOption, ...]":
        """Return unused options that would save time; empty for a user-given schedule."""
        from pipette_opt.library.advice import lawful
        from pipette_opt.prepare import load_predictor
        from pipette_opt.simulate.paying import paying_options

        if self.schedule is not None:
            return ()
        predictor = load_predictor(self.max_oom_risk, self.instance)
        found = paying_options(self.instance, self.config, self.placement, predictor, self.max_oom_risk)
        return lawful(found, self.instance, self.config)

    def _verdict(self) -> str:
        from pipette_opt.plans.verdict import verdict

        return verdict(
            self.memory,
            self.estimate,
            max_oom_risk=self.max_oom_risk,
            links_measured=self.instance.cluster.links_measured,
            not_modelled=self.not_modelled,
        )

    def _schedule_words(self) -> str:
        """Return how many activations each stage holds; empty for the launch's own schedule."""
        if self.schedule is None:
            return ""
        from pipette_opt.parallel.schedule import max_in_flight

        held = " ".join(str(count) for count in max_in_flight(self.schedule).tolist())
        return f"most activations held by each stage, in chunks x micro-batches: {held}"

    def _next_steps(self) -> list[str]:
        """Return lines with useful next commands, each with its purpose."""
        steps = {"see all": "the same command with -v"}
        if self.is_launch:
            steps = {"find faster": "pipette-opt solve with the same options, and --compare"} | steps
        width = max(map(len, steps))
        return [f"{purpose:<{width}}  {command}" for purpose, command in steps.items()]

    @property
    def is_launch(self) -> bool:
        """Return whether this is a launch of today and not a plan."""
        return self.title == LAUNCH

    def tables(self, planned: "tuple[Plan, Instance] | None" = None) -> list["RenderableType"]:
        """Return all tables, the verdict first; with a plan and its job, a comparison with the plan."""
        from rich.text import Text

        from pipette_opt.report.best_mfu import best_of_job
        from pipette_opt.report.cells import titled
        from pipette_opt.report.comparison import comparison
        from pipette_opt.report.tables import estimate_tables, notes

        parts = estimate_tables(
            self.config,
            self.estimate,
            self.memory,
            hosts=self.hosts,
            title=self.title,
            max_oom_risk=self.max_oom_risk,
            links_measured=self.instance.cluster.links_measured,
            not_modelled=self.not_modelled,
            best=best_of_job(self.instance),
        )
        if self.changed:
            parts.insert(
                1, Text("\n".join(["", "Since the plan was made", *(f"- {sentence}" for sentence in self.changed)]))
            )
        if planned is None:
            parts += [Text(line) for line in ("", *self.uncounted().lines(self.estimate))]
        else:
            plan, ends = planned[0], self._ratio_ends(*planned)
            compared = (self.config, self.estimate, plan, self.title, self.uncounted(), ends)
            parts.append(comparison(*compared, fits=self.is_to_fit))
        if self.schedule is not None:
            parts.append(self._schedule_words().capitalize())
        if planned is None:
            parts.append(notes(self._notes()))
            return parts
        return [titled("Your current launch", parts[0]), *parts[1:]]

    def sentences(self, plan: "Plan", instance: "Instance") -> list[str]:
        """
        Return sentences for the first screen: whether the launch fits, its time, and how much faster ``plan`` is.

        Parameters
        ----------
        instance
            The plan's job.
        """
        from dataclasses import replace

        from pipette_opt.base.units import three_digits
        from pipette_opt.job.models import dropout_words
        from pipette_opt.plans.verdict import fit_words
        from pipette_opt.report.comparison import faster_words
        from pipette_opt.specs.not_modelled import LARGE_EFFECT, by_size

        fits, fit = self.is_to_fit, fit_words(self.memory, self.max_oom_risk)
        band = self.estimate.band
        ends = "" if band is None else f" ({three_digits(band.low_s)} to {three_digits(band.high_s)})"
        gain = faster_words(self.estimate, plan.estimate, self.uncounted(), self._ratio_ends(plan, instance), fits=fits)
        large, others, in_part = by_size(
            replace(entry, option=f"{entry.option} {entry.value}".rstrip()) for entry in self.not_modelled
        )
        return [
            *([] if fits else [f"today's launch {fit[0].lower()}{fit[1:]}"]),
            f"{self.config.label()}{':' if fits else ' would take'} {three_digits(self.estimate.expected_s)} s{ends}",
            *([f"with {', '.join(large)} {LARGE_EFFECT}"] if large else []),
            *([f"not counted of it: {', '.join(others)}"] if others else []),
            *([f"counted in part: {', '.join(in_part)}"] if in_part else []),
            *dropout_words(self.instance.model, instance.model),
            *gain.plain.splitlines(),
            *([] if fits else ["If it does run, give its time or its peak with --measured."]),
        ]

    @property
    def is_to_fit(self) -> bool:
        """Return whether the launch is predicted to run."""
        from pipette_opt.plans.verdict import is_to_fit

        return is_to_fit(self.memory, self.max_oom_risk)

    def _ratio_ends(self, plan: "Plan", instance: "Instance") -> tuple[float, float] | None:
        """
        Return ends of the measured ratio of this time to that of a plan for the job ``instance``.

        ``None`` for the plan's own configuration.
        """
        from pipette_opt.library.plans import on_hosts_of
        from pipette_opt.worlds.ratios import ratio_ends

        if plan.config == self.config:
            return None
        ours = (self.instance, self.config, self.placement)
        return ratio_ends(ours, (on_hosts_of(plan, instance), plan.config, plan.placement))

    @property
    def host_order(self) -> tuple[int, ...]:
        """Indices of hosts: first the hosts in use, in their order, then the other hosts as listed."""
        known = self.instance.cluster.hosts
        used = [known.index(host) for host in dict.fromkeys(self.hosts) if host in known]
        return (*used, *(index for index in range(len(known)) if index not in used))

    def _notes(self) -> list[str]:
        """Return sentences on the source of model and constants, and on assumed host properties."""
        from pipette_opt.plans.provenance import provenance
        from pipette_opt.plans.releases import release_words

        source = [self.model_from] if self.model_from else []
        release = release_words(self.config, self.instance.model.num_query_groups)
        source += [f"The launch needs {release}."] if release else []
        return [*source, *self.instance.cluster.assumed, *provenance(self.instance)]

    def uncounted(self) -> "Uncounted":
        """Return the options that the predicted time leaves out, with the most that each can save."""
        from pipette_opt.read.megatron_table import parts_saved
        from pipette_opt.report.comparison import Uncounted

        timed = [entry for entry in self.not_modelled if entry.effect != "memory" and not entry.in_part]
        saved = parts_saved(timed)
        return Uncounted(
            # What is free afterwards shortens an iteration by no more than the critical path had of it.
            saved_s={option: self.estimate.critical_path.get(part, 0.0) for option, part in saved.items()},
            parts=saved,
            others=len({entry.option for entry in timed if entry.option not in saved}),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a document for ``--json``."""
        from dataclasses import asdict

        from pipette_opt.report.plan_file import estimate_to_dict

        return {
            "verdict": self._verdict(),
            "fits": self.is_to_fit,
            "parallel": asdict(self.config),
            "hosts": list(self.hosts),
            "rank_order": self.placement.order,
            "estimate": estimate_to_dict(self.estimate),
            "memory": [asdict(stage) for stage in self.memory],
            "notes": self._notes(),
            **({"changed": list(self.changed)} if self.changed else {}),
            "not_modelled": [asdict(entry) for entry in self.not_modelled],
            "least_iteration_time_s": self.uncounted().least_s(self.estimate),
            "would_pay": [asdict(option) for option in self.would_pay()],
            **self._schedule_dict(),
        }

    def _schedule_dict(self) -> dict[str, Any]:
        if self.schedule is None:
            return {}
        from pipette_opt.parallel.schedule import max_in_flight

        stages = self.schedule.text().splitlines()
        held = max_in_flight(self.schedule).tolist()
        return {"schedule": {"stages": stages, "layout": self.schedule.layout, "max_in_flight": held}}


def current_of(job: Job, hosts: str | None, max_oom_risk: float = USUAL_RISK) -> Current:
    """
    Simulate the launch of a job on hosts in the given order.

    Parameters
    ----------
    hosts
        Host names or ranges; ranks fill the hosts in this order. ``None``: as an exported launch names them, else the
        order of the cluster file.
    """
    from dataclasses import replace

    from pipette_opt.job.launch import as_trained, exported_placement, legal_config
    from pipette_opt.job.models import check_one_model, with_dropout_of
    from pipette_opt.parallel import identity_placement
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.estimate import estimate
    from pipette_opt.simulate.solutions import stage_memory
    from pipette_opt.worlds.bands import with_band

    given = job.launch
    assert given is not None, "a job without a launch"
    instance = as_trained(job, given)
    check_one_model(instance.model, instance.training, given)
    instance = replace(instance, model=with_dropout_of(instance.model, given))
    nodes = nodes_of(job, hosts)
    per_node = instance.cluster.gpus_per_node
    ranks = given.ranks if hosts is None and job.num_gpus in (None, len(given.ranks)) else ()
    num_gpus = job.num_gpus or len(ranks) or len(nodes) * per_node
    config = legal_config(instance, given, num_gpus)
    if num_gpus > len(nodes) * per_node:
        raise InputError(
            given.where,
            f"the launch needs {num_gpus} GPUs, but the {len(nodes)} hosts given have {per_node} GPUs each.",
        )
    placement = exported_placement(given, config, instance.cluster) if ranks else None
    is_elsewhere = bool(ranks) and placement is None
    if placement is None:
        placement = identity_placement(config, per_node, nodes[: -(-num_gpus // per_node)], given.rank_order)
    nodes = np.array(list(dict.fromkeys(placement.node.tolist())))
    instance, unmeasured = _with_links(instance, nodes)
    return Current(
        instance=instance,
        config=config,
        placement=placement,
        hosts=tuple(instance.cluster.hosts[node] for node in nodes),
        estimate=with_band(estimate(instance, config, placement), instance, config, placement),
        memory=stage_memory(instance, config, placement, load_predictor(max_oom_risk, instance), max_oom_risk),
        max_oom_risk=max_oom_risk,
        model_from=job.model_from,
        remarks=(
            *([f"{given.where} names other hosts or GPUs: its ranks fill the job's hosts in order."] * is_elsewhere),
            *given.notes,
        ),
        not_modelled=tuple(dict.fromkeys((*unmeasured, *given.not_modelled, *instance.not_modelled))),
    )


def _with_links(instance: "Instance", nodes: "IntArray") -> "tuple[Instance, list[NotModelled]]":
    """
    Return the instance with the slowest measured bandwidth on every unmeasured link among ``nodes``.

    The second value lists the unmeasured links as a not-modelled entry. Only a launch of today may use unmeasured
    links.
    """
    from dataclasses import replace

    from pipette_opt.specs import LinkMatrix, NotModelled

    cluster = instance.cluster
    unknown = ~cluster.usable_links & ~np.eye(cluster.num_nodes, dtype=np.bool_)  # links of a level are known
    pairs = {tuple(sorted((int(a), int(b)))) for a in nodes for b in nodes if unknown[a, b]}
    if not pairs:
        return instance, []
    matrices = tuple(
        LinkMatrix(
            concurrent_flows=matrix.concurrent_flows,
            bytes_per_s=np.where(unknown, np.nanmin(matrix.bytes_per_s), matrix.bytes_per_s),
        )
        for matrix in cluster.link_matrices
    )
    names = [" - ".join(cluster.hosts[node] for node in pair) for pair in sorted(pairs)]
    left_out = NotModelled(
        option="links not measured",
        value=listed(names, 1),
        effect="time",
        direction="either",
        why="Each is assumed as slow as the slowest measured link; a plan uses measured links only.",
    )
    return replace(instance, cluster=replace(cluster, link_matrices=matrices)), [left_out]


def nodes_of(job: Job, hosts: str | None) -> "IntArray":
    """Return the indices of hosts in the order of a launch; as the cluster lists them without ``hosts``."""
    from pipette_opt.read.hosts import expand_hosts
    from pipette_opt.specs.host_names import compress_hosts

    known = job.instance.cluster.hosts
    if hosts is None:
        return np.arange(len(known))
    names = expand_hosts(hosts, "--host-order")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            "--host-order",
            f"{compress_hosts(tuple(unknown))}: not among the hosts of cluster {job.instance.cluster.name}.",
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            "--host-order", f"{compress_hosts(tuple(repeated))} is listed more than once; list each host once."
        )
    return np.array([known.index(name) for name in names], dtype=np.int64)


def simulated_plan(
    given: "Plan | Path",
    cluster: "ClusterSpec | Path | None",
    max_oom_risk: float,
    measured_runs: "Sequence[str]" = (),
    environment: "Mapping[str, str] | None" = None,
) -> Current:
    """
    Simulate a plan again, on its own cluster or on ``cluster`` as it is today.

    The result lists differences between the two clusters. ``environment`` holds variables of measured launch scripts.
    """
    from pipette_opt.base.units import percent, three_digits
    from pipette_opt.library.measured import with_anchors
    from pipette_opt.library.plans import plan_on_cluster
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.estimate import estimate
    from pipette_opt.simulate.solutions import stage_memory
    from pipette_opt.worlds.bands import with_band

    plan, instance, changed = plan_on_cluster(given, cluster)
    instance = with_anchors(instance, measured_runs, plan.config.world_size, environment=environment)
    found = with_band(estimate(instance, plan.config, plan.placement), instance, plan.config, plan.placement)
    if changed:
        slower = found.iteration_time_s / plan.estimate.iteration_time_s - 1
        changed.append(
            f"An iteration took {three_digits(found.expected_s / (1 + slower))} s when the plan was made, and takes "
            f"{three_digits(found.expected_s)} s now ({percent(slower, '+')})."
        )
    return Current(
        instance=instance,
        config=plan.config,
        placement=plan.placement,
        hosts=tuple(plan.hosts[node] for node in plan.placement.nodes_used),
        estimate=found,
        memory=stage_memory(
            instance, plan.config, plan.placement, load_predictor(max_oom_risk, instance), max_oom_risk
        ),
        max_oom_risk=max_oom_risk,
        title="the plan",
        not_modelled=plan.not_modelled,
        changed=tuple(changed),
    )
