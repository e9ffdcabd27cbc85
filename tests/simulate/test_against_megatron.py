"""
The critical path against Megatron-Core's own schedule code.

Its functions run in one thread per stage, with a communicator and compute steps that only move virtual clocks.
"""

import importlib
import threading
import warnings
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pipelines import random_pipeline

from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel.schedule import build_schedule
from pipette_opt.simulate.critical_path import walk

pytestmark = pytest.mark.client("megatron.core")


@pytest.fixture(scope="module")
def schedules() -> Any:
    """``megatron.core.pipeline_parallel.schedules``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("megatron.core.pipeline_parallel.schedules")


class Message:
    """Starts when both sides have posted it."""

    def __init__(self) -> None:
        self.posted: list[float] = []
        self.ready = threading.Event()

    def post(self, clock: float) -> None:
        """One side is there."""
        self.posted.append(clock)
        if len(self.posted) == 2:
            self.ready.set()


class Stage:
    """Virtual clock of one stage and its side of all messages."""

    def __init__(self, rank: int, times: PlacedTimes, wires: "Wires") -> None:
        self.rank, self.times, self.wires = rank, times, wires
        self.clock = self.finish = 0.0
        self.launched: dict[int, float] = {}
        self.gathers: dict[int, int] = {}
        self.forwards = 0
        self.counts: dict[tuple[str, int, str], int] = defaultdict(int)

    def post(self, direction: str, border: int, side: str) -> "Handle":
        """Post the next message over a border as sender or receiver."""
        number = self.counts[direction, border, side]
        self.counts[direction, border, side] += 1
        message = self.wires.message(direction, border, number)
        with self.wires.lock:
            message.post(self.clock)
        sends = self.times.send_forward_s if direction == "F" else self.times.send_backward_s
        return Handle(self, message, float(sends[border, 0]))


class Handle:
    """What Megatron waits for."""

    def __init__(self, stage: Stage, message: Message, transfer: float) -> None:
        self.stage, self.message, self.transfer = stage, message, transfer

    def wait(self) -> None:
        """Let the stage's clock pass the end of the transfer."""
        if not self.message.ready.wait(timeout=20):
            raise RuntimeError(f"deadlock at stage {self.stage.rank}")
        self.stage.clock = max(self.stage.clock, max(self.message.posted) + self.transfer)


class Wires:
    """All messages; the n-th sent over a border is the n-th received."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[tuple[str, int, int], Message] = {}

    def message(self, direction: str, border: int, number: int) -> Message:
        """Message ``number`` over ``border`` (from stage ``border`` to the next, or back)."""
        with self.lock:
            return self.messages.setdefault((direction, border, number), Message())


class Group:
    """A process group that knows rank and size only."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        """Rank in the group."""
        return self._rank

    def size(self) -> int:
        """Ranks in the group."""
        return self._size


class Communicator:
    """Stands in for Megatron's ``P2PCommunicator``."""

    def __init__(self, stage: Stage, size: int, config: Any, num_chunks: int | None) -> None:
        self.stage, self.pp_group, self.config = stage, Group(stage.rank, size), config
        self.virtual_pipeline_model_parallel_size = num_chunks

    def _communicate(
        self, send_next: Any = None, send_prev: Any = None, *, recv_prev: bool = False, recv_next: bool = False
    ) -> dict[str, Handle]:
        right, left = self.stage.rank, (self.stage.rank - 1) % self.pp_group.size()
        handles = {}
        if send_next is not None:
            handles["send_next"] = self.stage.post("F", right, "send")
        if send_prev is not None:
            handles["send_prev"] = self.stage.post("B", left, "send")
        if recv_prev:
            handles["recv_prev"] = self.stage.post("F", left, "recv")
        if recv_next:
            handles["recv_next"] = self.stage.post("B", right, "recv")
        return handles

    def _wait(self, handles: dict[str, Handle]) -> None:
        for handle in handles.values():
            handle.wait()

    def recv_forward(self, shapes: Any, is_first_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(recv_prev=not is_first_stage))

    def recv_backward(self, shapes: Any, is_last_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(recv_next=not is_last_stage))

    def send_forward(self, output: Any, is_last_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(None if is_last_stage else output))

    def send_backward(self, gradient: Any, is_first_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(None, None if is_first_stage else gradient))

    def send_forward_recv_backward(self, output: Any, shapes: Any, is_last_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(None if is_last_stage else output, recv_next=not is_last_stage))

    def send_backward_recv_forward(self, gradient: Any, shapes: Any, is_first_stage: bool) -> None:
        """Blocking."""
        self._wait(self._communicate(None, None if is_first_stage else gradient, recv_prev=not is_first_stage))

    def send_forward_backward_recv_forward_backward(
        self, output_tensor: Any, input_tensor_grad: Any, recv_prev: bool, recv_next: bool, tensor_shape: Any
    ) -> tuple[None, None]:
        """Blocking."""
        self._wait(self._communicate(output_tensor, input_tensor_grad, recv_prev=recv_prev, recv_next=recv_next))
        return None, None

    def send_forward_recv_forward(
        self, output_tensor: Any, recv_prev: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        """Blocking unless overlapped."""
        handles = self._communicate(output_tensor, recv_prev=recv_prev)
        if overlap_p2p_comm:
            return None, handles
        return self._wait(handles)

    def send_backward_recv_backward(
        self, input_tensor_grad: Any, recv_next: bool, tensor_shape: Any, overlap_p2p_comm: bool = False
    ) -> Any:
        """Blocking unless overlapped."""
        handles = self._communicate(None, input_tensor_grad, recv_next=recv_next)
        if overlap_p2p_comm:
            return None, handles
        return self._wait(handles)


LOCAL = threading.local()


def _forward_step(*_: Any, current_microbatch: int, vp_stage: int = 0, **__: Any) -> tuple[tuple[int, int], int]:
    stage: Stage = LOCAL.stage
    stage.clock += float(stage.times.forward_s[vp_stage, stage.rank, 0])
    stage.forwards += 1
    return (vp_stage, current_microbatch), 0


def _backward_step(_input: Any, output: tuple[int, int], *_: Any) -> tuple[int, int]:
    stage: Stage = LOCAL.stage
    stage.clock += float(stage.times.backward_s[output[0], stage.rank, 0])
    stage.finish = stage.clock
    return output


def _grad_syncs(num_chunks: int) -> Any:
    """What Megatron-LM sets with ``--overlap-grad-reduce``: one call for each chunk, when it may be reduced."""

    def sync(chunk: int) -> Any:
        return lambda _: LOCAL.stage.launched.setdefault(chunk, LOCAL.stage.clock)

    syncs = [sync(chunk) for chunk in range(num_chunks)]
    return syncs if num_chunks > 1 else syncs[0]


def _param_syncs(num_chunks: int | None) -> Any:
    """What Megatron-LM sets with ``--overlap-param-gather``: one call for each chunk, when its gather is launched."""

    def sync(chunk: int) -> Any:
        return lambda _: LOCAL.stage.gathers.setdefault(chunk, LOCAL.stage.forwards)

    return None if num_chunks is None else [sync(chunk) for chunk in range(num_chunks)]


def _config(group_size: int, num_chunks: int | None, overlap_p2p: bool) -> Any:
    """The settings the schedules read, at the values Megatron-LM gives them."""
    return SimpleNamespace(
        overlap_p2p_comm=num_chunks is not None and overlap_p2p,
        batch_p2p_comm=num_chunks is None or not overlap_p2p,
        overlap_p2p_comm_warmup_flush=False,
        microbatch_group_size_per_vp_stage=group_size,
        virtual_pipeline_model_parallel_size=num_chunks,
        finalize_model_grads_func=None,
        timers=None,
        no_sync_func=None,
        grad_sync_func=_grad_syncs(num_chunks or 1),
        param_sync_func=_param_syncs(num_chunks),
        num_microbatches_with_partial_activation_checkpoints=None,
        deallocate_pipeline_outputs=False,
        overlap_moe_expert_parallel_comm=False,
        fine_grained_activation_offloading=False,
        calculate_per_token_loss=False,
        sequence_parallel=False,
        hidden_size=1,
        cuda_graph_impl="none",
    )


def megatron_stages(
    schedules: Any,
    monkeypatch: pytest.MonkeyPatch,
    times: PlacedTimes,
    num_microbatches: int,
    group_size: int | None = None,
) -> list[Stage]:
    """Stages whose virtual clocks Megatron's code has driven through one iteration."""
    chunks, pp, _ = times.forward_s.shape
    num_chunks = chunks if chunks > 1 else None
    config = _config(group_size or pp, num_chunks, times.overlap_p2p)
    torch = schedules.torch
    monkeypatch.setattr(schedules, "forward_step", _forward_step)
    monkeypatch.setattr(schedules, "backward_step", _backward_step)
    monkeypatch.setattr(schedules, "get_tensor_shapes", lambda **_: [(1,)])
    monkeypatch.setattr(schedules, "get_model_config", lambda _: config)
    monkeypatch.setattr(schedules, "get_model_type", lambda _: None)
    monkeypatch.setattr(schedules, "is_pp_first_stage", lambda group: group.rank() == 0)
    monkeypatch.setattr(schedules, "is_pp_last_stage", lambda group: group.rank() == group.size() - 1)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: 0)
    wires = Wires()
    stages = [Stage(rank, times, wires) for rank in range(pp)]
    errors: list[BaseException] = []

    def work(stage: Stage) -> None:
        LOCAL.stage = stage
        one = Group(0, 1)
        groups = SimpleNamespace(
            tp=one, cp=one, embd=None, pos_embd=None, pp=Group(stage.rank, pp), dp_cp=one, tp_cp=one
        )
        models = [torch.nn.Module() for _ in range(chunks)]
        run = (
            schedules.forward_backward_pipelining_with_interleaving
            if num_chunks
            else schedules.forward_backward_pipelining_without_interleaving
        )
        try:
            run(
                forward_step_func=None,
                data_iterator=[None] * chunks,
                model=models,
                num_microbatches=num_microbatches,
                seq_length=1,
                micro_batch_size=1,
                p2p_communicator=Communicator(stage, pp, config, num_chunks),
                pg_collection=groups,
            )
        except BaseException as error:  # noqa: BLE001, RUF100 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=work, args=(stage,), daemon=True) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not errors, errors[0]
    return stages


def check_like_megatron(
    schedules: Any,
    monkeypatch: pytest.MonkeyPatch,
    times: PlacedTimes,
    num_microbatches: int,
    group_size: int | None = None,
) -> None:
    """Last backwards end, and reductions may start, when they do with Megatron-Core's code."""
    stages = megatron_stages(schedules, monkeypatch, times, num_microbatches, group_size)
    chunks, pp, _ = times.forward_s.shape
    schedule = None if group_size is None else build_schedule(pp, num_microbatches, chunks, group_size)
    found = walk(times, num_microbatches, "blocking", schedule)
    np.testing.assert_allclose(found.finish_s[:, 0], [stage.finish for stage in stages], rtol=1e-12)
    for chunk, launch_s in enumerate(found.launch_s[:, :, 0]):
        # The last chunk may be reduced when its last backward is done; later stages still wait for their last send.
        expected = np.array([stage.finish if chunk == 0 else stage.launched[chunk] for stage in stages])
        np.testing.assert_allclose(launch_s, expected, rtol=1e-12)
        assert all(
            stage.launched.get(chunk, stage.finish) >= at - 1e-9 for stage, at in zip(stages, launch_s, strict=True)
        )


@pytest.mark.parametrize("seed", range(12))
def test_1f1b_blocking_is_megatrons(seed: int, schedules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking 1F1B takes exactly what Megatron-Core's own code takes on the same times."""
    rng = np.random.default_rng(seed)
    times = random_pipeline(rng, ["near", "uneven", "wild", "binary"][seed % 4], int(rng.integers(2, 7)))
    num_microbatches = int(rng.integers(1, 12))
    check_like_megatron(schedules, monkeypatch, times, num_microbatches)


@pytest.mark.parametrize("seed", range(16))
def test_interleaved_is_megatrons(seed: int, schedules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interleaved schedule, overlapped as Megatron-LM does by default, takes exactly what Megatron-Core takes."""
    rng = np.random.default_rng(seed)
    pp = int(rng.integers(2, 6))
    kind = ["near", "uneven", "wild", "binary"][seed % 4]
    times = random_pipeline(rng, kind, pp, num_chunks=int(rng.integers(2, 5)))
    num_microbatches = pp * int(rng.integers(1, 5))
    check_like_megatron(schedules, monkeypatch, times, num_microbatches)


@pytest.mark.parametrize("overlap_p2p", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_groups_are_megatrons(seed: int, overlap_p2p: bool, schedules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of more micro-batches than stages, the last one smaller: what Megatron-Core takes."""
    rng = np.random.default_rng(seed)
    pp, chunks = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    kind = ["near", "uneven", "wild", "binary"][seed % 4]
    times = replace(random_pipeline(rng, kind, pp, num_chunks=chunks), overlap_p2p=overlap_p2p)
    group_size = pp + int(rng.integers(0, 4))
    last = int(rng.choice([0, *range(pp, group_size)]))
    check_like_megatron(schedules, monkeypatch, times, int(rng.integers(1, 4)) * group_size + last, group_size)


@pytest.mark.parametrize(("pp", "chunks"), [(2, 2), (2, 4), (3, 3), (4, 5)])
def test_gathers_are_launched_as_megatron_does(
    pp: int, chunks: int, schedules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After how many forwards each stage asks for the parameters of each chunk: what ``costs/overlap.py`` counts."""
    times = random_pipeline(np.random.default_rng(pp), "near", pp, num_chunks=chunks)
    for stage in megatron_stages(schedules, monkeypatch, times, 2 * pp):
        expected = {chunk: max((chunk - 1) * pp - stage.rank, 0) if chunk > 1 else 0 for chunk in range(chunks)}
        assert stage.gathers == expected


@pytest.mark.parametrize("seed", range(16))
def test_interleaved_without_overlap_is_megatrons(seed: int, schedules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with ``--no-overlap-p2p-communication``, where every send is waited for; never faster."""
    rng = np.random.default_rng(100 + seed)
    pp = int(rng.integers(2, 6))
    kind = ["near", "uneven", "wild", "binary"][seed % 4]
    beside = random_pipeline(rng, kind, pp, num_chunks=int(rng.integers(2, 5)))
    times = replace(beside, overlap_p2p=False)
    num_microbatches = pp * int(rng.integers(1, 5))
    check_like_megatron(schedules, monkeypatch, times, num_microbatches)
    waiting, hidden = (walk(one, num_microbatches, "blocking").finish_s for one in (times, beside))
    assert (waiting >= hidden - 1e-9).all()
