"""Fixtures of tests and doctests alike; at the root because doctests lie in the package."""

import gc
import os

import hypothesis
import pyro
import pytest
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="module")
def settle_garbage():
    """Objects of thousands of tests and of their packages stay; a collection need not look at them every time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def reset_pyro():
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    pyro.enable_validation(True)
