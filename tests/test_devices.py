"""Distributions and kernels stay on the device of their parameters and data."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.foreign_device import SET_UP

PROGRAM = Path(__file__).with_name("device_runs.py")


@pytest.mark.skipif(SET_UP is None and not torch.cuda.is_available(), reason="torch has no devices made of Python")
def test_all_tensors_are_on_one_device():
    """On a GPU, or, where there is none, on a device that is none."""
    devices = ["cuda"] if torch.cuda.is_available() else []
    done = subprocess.run([sys.executable, PROGRAM, *devices], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
