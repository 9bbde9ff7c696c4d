"""Programs that users start: by themselves, in several processes, and again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "examples" / "fit.py"


def printed(*command):
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_processes_print_the_same_numbers(tmp_path):
    """Those of one process, of two, and of one that reads what two have kept."""
    several = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", PROGRAM, tmp_path / "run.pt")
    single = printed(PROGRAM, tmp_path / "single.pt")
    assert printed(*several) == single
    assert len(single) == 6 and printed(PROGRAM, tmp_path / "run.pt") == single[-1:]
