"""Compiled loops and what replaces them; fields with their hidden units that can be enumerated."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch

from pyro_structured.ops.compiled_function import compiled_function
from pyro_structured.ops.joint_field import JointField, edges_of
from pyro_structured.ops.labelings import all_labelings
from pyro_structured.ops.pattern_potential import pattern_potential
from pyro_structured.testing.goodness_of_fit import discrete_goodness_of_fit


@pytest.fixture
def hide_numba(monkeypatch):
    """Call it to go on as if numba were not installed."""

    def hide():
        monkeypatch.setitem(sys.modules, "numba", None)
        for name in ("compiled", "compiled_draw", "compiled_quantile", "matching_sweep", "path_search", "path_sweep"):
            monkeypatch.delitem(sys.modules, f"pyro_structured.ops.{name}", raising=False)
        compiled_function.cache_clear()

    yield hide
    compiled_function.cache_clear()


@pytest.fixture(scope="session")
def joint_fields():
    """Functions ``make(...)``, ``probabilities(field)`` of all labelings, and ``p_values(probabilities, labels)``."""
    return SimpleNamespace(make=_random_field, probabilities=_probabilities, p_values=_p_values)


def _random_field(composition="sum", replicas=1, shape=(2, 3), rows=2, paired=True, units=3, seed=0):
    torch.manual_seed(seed)
    size, edges = shape[0] * shape[1], len(edges_of(shape, torch.device("cpu"))) if paired else 0
    odds = torch.randn(rows, 1, size).double()
    odds[0, 0, 1], odds[-1, 0, 2] = math.inf, -math.inf
    biases = torch.randn(rows, 1, units).double()
    biases[:, :, :1] = -math.inf
    table = torch.tensor([0.5, 1.0, -math.inf, 2.0]).double().expand(1, 1, 4)
    return JointField(
        odds=odds,
        penalties=torch.randn(1, 1, edges).double(),
        weights=2 * torch.randn(rows, units, size).double(),
        biases=biases,
        composition=table if composition == "table" else composition,
        replicas=replicas,
        shape=shape,
    )


def _probabilities(field):
    """Of all labelings, shape ``(rows, 2 ** D)``."""
    y = all_labelings(field.num_pixels, field.odds)
    possible = ~((field.odds == math.inf) & (y == 0)).any(-1)
    score = (field.odds.masked_fill(field.odds == math.inf, 0.0).where(y == 1, 0.0)).sum(-1)
    score = score.masked_fill(~possible, -math.inf)
    ends = y[:, edges_of(field.shape, torch.device("cpu"))[: field.penalties.shape[-1]]]
    score = score - (field.penalties * (ends[..., 0] != ends[..., 1])).sum(-1)
    activations = y @ field.weights.mT + field.biases
    return (score + pattern_potential(activations, field.composition, field.replicas)).softmax(-1)


def _p_values(probs, labels):
    codes = labels.long() @ 2 ** torch.arange(labels.shape[-1] - 1, -1, -1)
    counts = [torch.bincount(each, minlength=probs.shape[1]) for each in codes]
    return [discrete_goodness_of_fit(*pair) for pair in zip(probs, counts, strict=True)]
