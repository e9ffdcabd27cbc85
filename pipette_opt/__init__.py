"""
Parallel degrees, micro-batch and GPU placement for large-model training, as one constraint-optimisation problem.

::

    import pipette_opt as po

    plan = po.solve("cluster.yaml", "llama-3-8b", global_batch_size=256, seq_length=8192, time_limit_s=60)
    plan.verdict, plan.estimate.iteration_time_s, plan.certificate.gap
    plan.stage_table()
    po.write_plan(plan, "plan.json")
    po.write_report(plan, "report.html")

What is here loads when it is first asked for, so that importing the package takes no time. Types hold base units:
bytes, seconds, FLOP/s; tables of a plan are in GiB.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipette_opt.base.version import __version__ as __version__

if TYPE_CHECKING:
    from pipette_opt.base.errors import InfeasibleError as InfeasibleError
    from pipette_opt.base.errors import InputError as InputError
    from pipette_opt.base.errors import PipetteError as PipetteError
    from pipette_opt.candidates import SearchSpace as SearchSpace
    from pipette_opt.job.file import read_job as read_job
    from pipette_opt.library.calibrate import calibrate as calibrate
    from pipette_opt.library.estimate import estimate as estimate
    from pipette_opt.library.explain import explain as explain
    from pipette_opt.library.export import export as export
    from pipette_opt.library.pack import pack as pack
    from pipette_opt.library.recommend import recommend as recommend
    from pipette_opt.library.replan import replan as replan
    from pipette_opt.library.solve import solve as solve
    from pipette_opt.library.solve import write_report as write_report
    from pipette_opt.library.tune import tune as tune
    from pipette_opt.library.whatif import whatif as whatif
    from pipette_opt.parallel import ParallelConfig as ParallelConfig
    from pipette_opt.plans.plan import Plan as Plan
    from pipette_opt.read.cluster import read_cluster as read_cluster
    from pipette_opt.read.cluster import write_cluster as write_cluster
    from pipette_opt.read.model import read_model as read_model
    from pipette_opt.report.plan_file import read_plan as read_plan
    from pipette_opt.report.plan_file import write_plan as write_plan
    from pipette_opt.specs import ClusterSpec as ClusterSpec
    from pipette_opt.specs import GpuSpec as GpuSpec
    from pipette_opt.specs import LinkMatrix as LinkMatrix
    from pipette_opt.specs import ModelSpec as ModelSpec
    from pipette_opt.specs import NodeSpec as NodeSpec
    from pipette_opt.specs import TrainingSpec as TrainingSpec

_HOMES = {
    "base.errors": ("InfeasibleError", "InputError", "PipetteError"),
    "candidates": ("SearchSpace",),
    "job.file": ("read_job",),
    "library.calibrate": ("calibrate",),
    "library.estimate": ("estimate",),
    "library.explain": ("explain",),
    "library.export": ("export",),
    "library.pack": ("pack",),
    "library.recommend": ("recommend",),
    "library.replan": ("replan",),
    "library.tune": ("tune",),
    "library.whatif": ("whatif",),
    "library.solve": ("solve", "write_report"),
    "parallel": ("ParallelConfig",),
    "plans.plan": ("Plan",),
    "read.cluster": ("read_cluster", "write_cluster"),
    "read.model": ("read_model",),
    "report.plan_file": ("read_plan", "write_plan"),
    "specs": ("ClusterSpec", "GpuSpec", "LinkMatrix", "ModelSpec", "NodeSpec", "TrainingSpec"),
}
"""Public names by the module that has them."""

_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """A public name, from its module."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Package(ModuleType):
    """
    The package, in which ``calibrate``, ``export`` and ``replan`` stay functions beside rooms of these names.

    Importing a room would put it in the function's place; rooms are imported by their whole name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
