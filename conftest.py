"""Fixtures of tests and doctests alike; at the root because doctests lie in the package."""

import gc
import os

import hypothesis
import numpy as np
import pyro
import pytest
import torch

# Of all random numbers of tests; 0 are the seeds as they stand there.
SEED = int(os.environ.get("PYRO_STRUCTURED_SEED", "0"))
STRIDE = 1_000_003
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
def other_seeds(request):
    """Seeds that tests name are others where the environment asks for that; those of doctests print certain numbers."""
    if SEED == 0 or isinstance(request.node, pytest.DoctestItem):
        yield
        return

    def shift(seed):
        # Larger ones follow from one that is moved already, as do those of Pyro's worker processes.
        return seed + STRIDE * SEED if isinstance(seed, int) and seed < STRIDE else seed

    class Generator(torch.Generator):
        def manual_seed(self, seed):
            return super().manual_seed(shift(seed))

    # Not the fixture of that name, which a test may undo.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", Generator)
        for module, name in ((torch, "manual_seed"), (pyro, "set_rng_seed"), (np.random, "default_rng")):
            function = getattr(module, name)
            patch.setattr(module, name, lambda seed=None, function=function: function(shift(seed)))
        yield


@pytest.fixture(autouse=True)
def reset_pyro(other_seeds):
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    pyro.enable_validation(True)
