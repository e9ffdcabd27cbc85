"""The shipped examples, and the generator that made their clusters."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.example import list_examples, read_example

GENERATOR = Path(__file__).resolve().parents[2] / "benchmarks" / "generate_examples.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("generate_examples", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_generator_gives_the_shipped_files(generator: ModuleType, tmp_path: Path) -> None:
    """Byte for byte, and no file more or less."""
    generator.write_examples(tmp_path)
    shipped = {path.name: path.read_bytes() for path in shipped_path("data", "clusters").iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped


@pytest.mark.parametrize("name", list_examples())
def test_examples_read(name: str) -> None:
    """Every example is complete, and its job fits its cluster."""
    example = read_example(name)
    assert example.name == name
    assert example.cluster_path.is_file()
    assert len(example.description) > 20
    assert example.training.seq_length <= example.model.max_position_embeddings
    num_gpus = example.num_gpus or example.cluster.num_nodes * example.cluster.gpus_per_node
    assert num_gpus <= example.cluster.num_nodes * example.cluster.gpus_per_node
    assert example.training.global_batch_size % 8 == 0


def test_the_examples_that_others_name() -> None:
    """The README and the benchmarks rely on these."""
    assert {"lab-2x8", "lab-16x8", "spares-10x8", "mixed-4x8"} <= set(list_examples())
    assert read_example("spares-10x8").num_gpus == 64
    assert len(read_example("mixed-4x8").cluster.gpu_kinds) == 2
    with pytest.raises(InputError, match=r"unknown example 'lab-16x9'. Did you mean lab-16x8"):
        read_example("lab-16x9")


def test_statistics_of_the_generated_links() -> None:
    """Two hosts of lab-16x8 have 0.6 of the others' links; the rest differ by a few percent; racks show."""
    links = read_example("lab-16x8").cluster.link_matrices[0].bytes_per_s / 1e9
    by_host = np.nanmedian(links, axis=1)
    assert sorted(np.argsort(by_host)[:2]) == [5, 10]
    fast = [host for host in range(16) if host not in (5, 10)]
    same_rack = [links[i, j] for i in fast for j in fast if i != j and i // 4 == j // 4]
    across = [links[i, j] for i in fast for j in fast if i // 4 != j // 4]
    assert np.median(same_rack) == pytest.approx(21, rel=0.03)
    assert np.median(across) == pytest.approx(0.95 * np.median(same_rack), rel=0.03)
    assert 0.02 < np.std(across) / np.mean(across) < 0.04
