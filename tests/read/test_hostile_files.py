"""Small files that would take a reader's time or memory, or be read otherwise than they look."""

import os
import time
from pathlib import Path

import pytest

from pipette_opt.base import files
from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import write_atomically
from pipette_opt.base.units import whole_number
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import parse_json, read_text, read_yaml, sha256_of
from pipette_opt.read.hosts import expand_hosts


def aliases(levels: int) -> str:
    """Lists of ten aliases of the list before: ten to the power of the levels when written out."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (aliases(12), "aliases that repeat more than"),
        ("a: &a [1, *a]", "a value that contains itself"),
        ("a: &a {b: *a}", "a value that contains itself"),
        ('a: "x\\e[31m"', "a control character"),
        ("a: 1\na: 2", "is given twice"),
    ],
)
def test_yaml_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    """At once, whatever it would be when written out."""
    path = tmp_path / "file.yaml"
    path.write_text(text)
    begun = time.process_time()
    with pytest.raises(InputError, match=said) as found:
        read_yaml(path)
    assert time.process_time() - begun < 1.0
    assert len(str(found.value)) < 400 + len(str(path))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", "010"),
        ("8:30", "8:30"),
        ("0x10", "0x10"),
        ("12_3", "12_3"),
        ("1_000", 1000),
        ("0", 0),
        ("-3", -3),
        ("1e5", 1e5),
        (".5", 0.5),
        ("0.0", 0.0),
        ("true", True),
    ],
)
def test_numbers_of_yaml_are_decimal(text: str, value: object, tmp_path: Path) -> None:
    """What YAML 1.1 reads in other bases is a text, which no field for a number takes."""
    path = tmp_path / "file.yaml"
    path.write_text(f"a: {text}")
    assert read_yaml(path) == {"a": value}


def test_aliases_that_repeat_little_are_read(tmp_path: Path) -> None:
    """As people write them."""
    path = tmp_path / "file.yaml"
    path.write_text("base: &base {a: 1}\nhosts: [*base, *base]")
    assert read_yaml(path) == {"base": {"a": 1}, "hosts": [{"a": 1}, {"a": 1}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "too deep"),
        ('{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
    ],
)
def test_json_is_as_strict_as_yaml(text: str, said: str) -> None:
    """Nothing is the last of two, infinite, or a command of a terminal."""
    with pytest.raises(InputError, match=said):
        parse_json(text, "f")


def test_escaped_backslashes_are_no_control_characters() -> None:
    """A backslash before a b is two characters."""
    assert parse_json('{"a": "C:\\\\\\\\bin \\\\n \\\\u0041"}'.replace("\\\\", "\\"), "f") == {"a": "C:\\bin \n A"}


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_pipes_and_devices_are_refused(kind: str, tmp_path: Path) -> None:
    """Without waiting for a writer."""
    path = tmp_path / "fifo"
    if kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(InputError, match="is a device or a pipe"):
        read_text(path if kind == "fifo" else "/dev/zero")


def test_a_pipe_of_the_process_itself_is_read() -> None:
    """As of ``<(command)``."""
    reading, writing = os.pipe()
    os.write(writing, b"a: 1")
    os.close(writing)
    assert read_yaml(f"/dev/fd/{reading}") == {"a": 1}
    os.close(reading)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more than the most."""
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    path = tmp_path / "file"
    path.write_text("x" * 10)
    assert read_text(path) == "x" * 10
    path.write_text("x" * 11)
    with pytest.raises(InputError, match="is larger than"):
        read_text(path)


@pytest.mark.parametrize(
    "text", ["n[0-99999][0-99999]", "n[0-9][0-9][0-9][0-9][0-9][0-9]", "n[1-100001]", "n[1-2", "n]1["]
)
def test_ranges_of_hosts_are_counted_first(text: str) -> None:
    """Their numbers are multiplied before any name is made."""
    begun = time.process_time()
    with pytest.raises(InputError, match="hosts"):
        expand_hosts(text)
    assert time.process_time() - begun < 0.5


def test_ranges_of_hosts_in_order() -> None:
    """The last bracket runs fastest, widths stay."""
    assert expand_hosts("a[1-2]b[08-10],c") == ("a1b08", "a1b09", "a1b10", "a2b08", "a2b09", "a2b10", "c")


@pytest.mark.parametrize("name", ["evil\n#SBATCH", "a\x1b[31m", "a\u202eb", "tab\there"])
def test_a_name_is_one_line_of_printable_text(name: str) -> None:
    """It reaches terminals, scripts and tables."""
    with pytest.raises(InputError, match="one line of printable text"):
        Fields("f", {"name": name}, ["name"]).text("name")


def test_a_gpus_name_with_a_line_end(tmp_path: Path) -> None:
    """Of a cluster file, refused when it is read."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        'nodes: [{hosts: "n[1-2]", gpu: {name: "evil\\n#SBATCH", memory_mib: 80000, memory_bandwidth_gb_per_s: 3000, '
        "peak_tflops: {bf16: 900}, source: x, like: h100-80gb}}]\nintra_node: {bandwidth_gb_per_s: 300}\n"
        "inter_node: {bandwidth_gb_per_s: 40}\n"
    )
    with pytest.raises(InputError, match="one line of printable text"):
        read_cluster(path)


def test_values_in_errors_are_short_and_cost_nothing() -> None:
    """Lists inside each other are not written out."""
    value: object = "x"
    for _ in range(40):
        value = [value] * 10
    begun = time.process_time()
    assert len(shown(value)) <= 60
    assert time.process_time() - begun < 0.1
    assert shown({"b": 1, "a": [2]}) == "{'b': 1, 'a': [2]}"
    assert shown(10**5000) == "a number of thousands of digits"


def test_digits_are_those_of_ascii() -> None:
    """Arabic digits are none."""
    assert whole_number("٣") is None
    assert whole_number("12") == 12


@pytest.mark.parametrize("text", ["a" * 254, "a" * 1_000_000 + "[1-100000]"])
def test_names_of_hosts_are_short(text: str) -> None:
    """A name that is long would be made a hundred thousand times."""
    begun = time.process_time()
    with pytest.raises(InputError, match="more than 253 characters"):
        expand_hosts(text)
    assert time.process_time() - begun < 0.5


def test_messages_are_short() -> None:
    """Whatever of the file is in them."""
    error = InputError("f" * 5000, "x" * 100_000)
    assert len(str(error)) < 4100
    assert error.problem.startswith("xxx")


def test_a_pipe_is_refused_by_readers_that_say_what_a_file_looks_like(tmp_path: Path) -> None:
    """A hint does not open the pipe again, which would wait for a writer."""
    from pipette_opt.report.plan_file import read_plan

    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(InputError, match="is a device or a pipe"):
        read_plan(tmp_path / "plan.json")


def test_a_file_that_changes_while_a_command_reads_it(tmp_path: Path) -> None:
    """A plan would record the hash of another file than it was made from."""
    path = tmp_path / "c.yaml"
    path.write_text("a: 1")
    with files.files_of_run():
        assert read_text(path) == "a: 1"
        assert sha256_of(path) == sha256_of(path)
        path.write_text("a: 2")
        with pytest.raises(InputError, match="was changed while this command read the file"):
            sha256_of(path)
        write_atomically(tmp_path / "o.txt", "old")
        write_atomically(tmp_path / "o.txt", "new")
        assert read_text(tmp_path / "o.txt") == "new"  # its own output
    assert read_text(path) == "a: 2"
