"""Counting live storages: every storage once, from its creation to its last reference."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from models.memory.live_storages import LiveStorages


@pytest.mark.search
def test_counts_storages_once_and_until_the_last_reference() -> None:
    """A view adds nothing, keeps the storage alive, and the peak remembers what is gone."""
    with FakeTensorMode(), LiveStorages() as storages:
        a = torch.empty(1024, dtype=torch.float32)
        view = a[:10].view(2, 5)
        assert storages.live_bytes == 4096
        b = a + 1
        assert storages.live_bytes == 8192
        del a
        assert storages.live_bytes == 8192
        del view
        assert storages.live_bytes == 4096
        del b
        assert storages.live_bytes == 0
        assert storages.peak_bytes == 8192


def test_rounds_to_the_allocators_granularity() -> None:
    """One byte costs 512, 513 cost 1024; without rounding they cost themselves."""
    for rounding, expected in ((512, 512 + 1024), (1, 514)):
        with FakeTensorMode(), LiveStorages(rounding) as storages:
            kept = [torch.empty(1, dtype=torch.uint8), torch.empty(513, dtype=torch.uint8)]
            assert storages.live_bytes == expected
            del kept


def test_in_place_operations_cost_nothing() -> None:
    """An in-place operation returns the same storage."""
    with FakeTensorMode(), LiveStorages() as storages:
        a = torch.empty(1024)
        a.add_(1)
        a.mul_(2)
        assert storages.peak_bytes == 4096


def test_events_tell_what_came_and_went_in_order() -> None:
    """Every storage once, unrounded, under a number of its own, with its end; what stands apart is not told."""
    weight = torch.empty(100, device="meta")
    with torch.device("meta"), LiveStorages(apart=[weight]) as storages:
        view = weight.t()
        a = torch.empty(100, dtype=torch.uint8)
        b = a.to(torch.float32)
        del a
        c = torch.empty(7, dtype=torch.uint8)
        del view
    assert storages.events == [(0, 100), (1, 400), (0, -1), (2, 7)]
    del b, c
    assert storages.events[4:] == [(1, -1), (2, -1)]
