"""Values that a reader would take for others than they look, and what each reader does instead: refuse them."""

import json
import time
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import number_of
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.link_formats.link_log import parse_link_log
from pipette_opt.read.links import import_links
from pipette_opt.read.matrices import read_matrix_csv
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.nominal import is_number_of_hosts
from pipette_opt.read.prices import check_price
from pipette_opt.read.runs import read_rows
from pipette_opt.read.speeds import check_speed

ARABIC = "\u0664\u0665"
"""45 in Arabic digits."""

HEADER = {"pipette_opt_links": 1, "hosts": ["a", "b"], "gpus_per_node": 8, "device_name": "H100", "together": False}
MEASURED = {"flows": 1, "sender": "a", "receiver": "b", "bytes_per_s": {"67108864": 4e10}, "latency_s": 1e-5}
LINES = (HEADER, MEASURED)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1_0", "1e999", ARABIC, "", "0x10"])
def test_no_numbers(text: str) -> None:
    """Python takes most of them."""
    with pytest.raises(ValueError, match="is no number"):
        number_of(text)


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), (" 1.5 ", 1.5), (".5", 0.5), ("-2.", -2.0), ("1e-3", 1e-3)])
def test_numbers(text: str, value: float) -> None:
    """As files have them."""
    assert number_of(text) == value


@pytest.mark.parametrize("rate", ["0.00003", "40000000000000"])
def test_rates_of_other_programs_have_limits_on_import(rate: str, tmp_path: Path) -> None:
    """The cluster file would be written, and refused by the next command."""
    path = tmp_path / "osu_bw_n1_n2.txt"
    path.write_text(f"# OSU MPI Bandwidth Test v7.0\n# Size      Bandwidth (MB/s)\n4194304      {rate}\n")
    with pytest.raises(InputError, match="a rate must be from 1e-06 to"):
        import_links(path, gpu="h100", gpus_per_node=8)


@pytest.mark.parametrize("cell", ["nan", "inf", "1_0", ARABIC])
def test_cells_of_matrices(cell: str, tmp_path: Path) -> None:
    """A cell is a decimal number."""
    path = tmp_path / "m.csv"
    path.write_text(f"x,a,b\na,,{cell}\nb,1,\n")
    with pytest.raises(InputError, match="row a, column b: must be a bandwidth"):
        read_matrix_csv(path)


@pytest.mark.parametrize("check", [check_speed, check_price])
def test_speeds_and_prices(check: object) -> None:
    """0.9 in Arabic digits is no speed."""
    assert callable(check)
    for value in ("\u0660.\u0669", "nan", "1_0"):
        with pytest.raises(InputError):
            check(value, "here")


def test_numbers_of_hosts() -> None:
    """Other texts are names, which are refused where they are no names."""
    assert is_number_of_hosts("8")
    assert not is_number_of_hosts(ARABIC)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "too deep"),
        ('{"flows": ' + "[" * 50_000 + "]" * 50_000 + "}", "too deep"),
        ('{"flows": ' + "9" * 5_000 + "}", "is not valid JSON"),
    ],
)
def test_lines_of_link_logs_are_strict_json(line: str, said: str) -> None:
    """As other files of JSON are."""
    with pytest.raises(InputError, match=said):
        parse_link_log(f"{json.dumps(HEADER)}\n{line}\n", "l.log")


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("bandwidth_gb_per_s: 400", "is a rate in Gbit/s taken for GB/s"),
        ("bandwidth_gb_per_s: 0.045", "is a rate in GB/s taken for MB/s"),
        ("bandwidth_gb_per_s: 45, latency_us: 0.000012", "is a number of seconds taken for microseconds"),
        ("bandwidth_gb_per_s: 45, latency_us: 12000", "is it in milliseconds or seconds"),
        ("bandwidth_gb_per_s: 45, latency_us: 12", ""),
    ],
)
def test_slips_of_units_in_cluster_files_are_noted(link: str, said: str, tmp_path: Path) -> None:
    """A flow between hosts of H100 has a card of 50 GB/s."""
    path = tmp_path / "c.yaml"
    path.write_text(f"nodes: [{{hosts: 'n[1-2]', gpu: h100-80gb}}]\ninter_node: {{{link}}}\n")
    notes = [note for note in read_cluster(path).assumed if note.startswith("Check the units")]
    assert [said in note for note in notes] == ([True] if said else [])


def test_a_latency_in_seconds_is_noted_on_import(tmp_path: Path) -> None:
    """Half a second is within the limits of a file."""
    path, there = tmp_path / "l.log", MEASURED | {"latency_s": 0.5}
    back = there | {"sender": "b", "receiver": "a"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, there, back)))
    assert any("is it in milliseconds or seconds" in note for note in import_links(path, gpu="h100").notes)


def test_numbers_of_scripts_have_ascii_digits(tmp_path: Path) -> None:
    """Python takes digits of all scripts for numbers."""
    with pytest.raises(InputError, match="--num-layers must be a whole number"):
        parse_megatron_args(f"--num-layers {ARABIC} --hidden-size 2048 --num-attention-heads 16", "f", "f")


def test_a_table_of_many_columns_takes_time_in_proportion(tmp_path: Path) -> None:
    """Columns given twice are counted once, not once for each column."""
    path = tmp_path / "runs.csv"
    path.write_text("gpus" + ",a" * 50_000 + "\n")
    begun = time.process_time()
    with pytest.raises(InputError, match="the column 'a' more than once"):
        read_rows(path)
    assert time.process_time() - begun < 1.0
