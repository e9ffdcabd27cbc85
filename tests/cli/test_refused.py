"""Command lines that are refused, before anything is searched or written, each with one message."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tables import table

RUNS = """gpu,gpus_per_node,model,num_layers,hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,num_gpus,iter_time_s,oom
a100-80gb,8,gpt,24,2048,16,50257,2048,64,1,1,1,8,8,2.5,false
"""


@pytest.mark.parametrize("row", table(__file__, "refused"), ids=lambda row: row[0])
def test_refused(command: Callable[..., tuple[int, str, str]], row: list[Any]) -> None:
    """
    Exit code 2, a message that names what is wrong and what would be right, no traceback, no new file.

    A row has the command, a part or parts of the message, and what is in ``job.yaml``, if the command reads it.
    """
    words, named, *job = row
    Path("runs.csv").write_text(RUNS)
    Path("job.yaml").write_text(json.dumps(job[0] if job else {"model": "llama-2-7b"}))
    code, out, err = command(*shlex.split(words))
    assert code == 2
    for part in ("error: ", *([named] if isinstance(named, str) else named)):
        assert part in err
    for part in ("Traceback", "╭"):  # no box of the parser
        assert part not in err
    assert not err.endswith("..")
    assert not out or words.startswith(("capture", "import model"))
    assert {path.name for path in Path().iterdir()} <= {
        "job.yaml",
        "runs.csv",
        "tuning" if "--parallel" in words else "",
    }
