"""Kernels before a search: none is missing afterwards, and a machine that starts no processes has them too."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster
from instances import one_candidate_cluster

from pipette_opt.base.backends import Work
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify import compiling
from pipette_opt.certify.compiling import PARTS, Sample, compile_kernels
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Progress, Watcher
from pipette_opt.prepare import Prepared, Question, prepare
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.specs import Instance, TrainingSpec

pytestmark = pytest.mark.search


def small() -> Prepared:
    """Candidates of two hosts, with and without interleaving."""
    training = TrainingSpec(global_batch_size=16, seq_length=1024)
    given = Instance(model=LLAMA_8B, cluster=make_cluster(2), training=training)
    return prepare(Question(given, SearchSpace(tensor_parallel=(4, 8)), 0.01))


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """See :func:`small`."""
    return small()


def test_a_machine_without_processes(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be compiled beside is compiled here."""
    called = []

    class Fails:
        num_workers = 2

        def __init__(self, workers: int) -> None:
            pass

        def run(self, work: Work, pieces: Sequence[object], stop: threading.Event) -> Iterator[tuple[int, object]]:
            called.append(len(pieces))
            raise OSError("no semaphores")
            yield

    monkeypatch.setattr(compiling, "is_cached", lambda compiled: False)
    monkeypatch.setattr(compiling, "JoblibBackend", Fails)
    seen: list[Progress] = []
    compile_kernels(prepared, Clock(watcher=Watcher(on_progress=seen.append)))
    assert called == [len(PARTS)]
    assert [one.step for one in seen] == ["compiling kernels, once per installation"]


def test_compiled_kernels_need_no_processes(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search whose kernels are in the cache starts no process, whatever kernels other searches have."""
    compile_kernels(prepared, Clock())
    monkeypatch.setattr(compiling, "JoblibBackend", lambda workers: pytest.fail("a process was started"))
    seen: list[Progress] = []
    clock = Clock(watcher=Watcher(on_progress=seen.append))
    with clock.loading():
        compile_kernels(prepared, clock)
    assert not seen


def test_a_stop(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun after it."""
    tried: list[Sample] = []
    monkeypatch.setattr(compiling, "PARTS", (tried.append,))
    clock = Clock()
    compile_kernels(prepared, clock)
    assert tried
    tried.clear()
    clock.stop.set()
    compile_kernels(prepared, clock)
    assert not tried


def test_hosts_without_links(prepared: Prepared) -> None:
    """A candidate whose first hosts are not connected is passed over."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))
    one = data.candidates[0]
    apart = replace(one, p2p_ticks=np.full_like(one.p2p_ticks, UNUSABLE_TICKS))
    sample = Sample(instance=prepared.instance, given=prepared.given, data=replace(data, candidates=(apart,)))
    PARTS[0](sample)


CODE = """
from types import SimpleNamespace
import numpy as np
import numba.core.event as event
from pipette_opt.certify import compiling
from pipette_opt.plans.clock import Clock
from instances import one_candidate_cluster
data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))
prepared = SimpleNamespace(instance=None, given=None, problem=data)
compiling.PARTS = compiling.PARTS[-1:] * 2
with event.install_recorder("numba:compile") as compiled:
    compiling.compile_kernels(prepared, Clock())
print(len(compiled.buffer))
"""


def test_processes_side_by_side_leave_nothing_to_compile(tmp_path: Path) -> None:
    """With an empty cache two processes compile the kernel of the bounds, which takes least, and this one loads it."""
    here = Path(__file__)
    folders = os.pathsep.join([str(here.parent), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": folders, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, check=True, capture_output=True)
    assert any(tmp_path.rglob("*.nbi"))
    assert int(done.stdout) == 0 or os.cpu_count() == 1
