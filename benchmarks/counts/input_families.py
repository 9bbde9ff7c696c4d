"""Inputs that are hard for floating point: logits and one table of count potentials, float64."""

import torch

from pyro_structured.counts.ops.poisson_binomial import log_mass
from pyro_structured.distributions import cardinality_potentials as potentials
from pyro_structured.structures import NestedSubsets


def _normal(num_variables, mean=0.0):
    return mean + torch.randn(num_variables, dtype=torch.float64)


def _uniform(num_variables, bound=50.0):
    return bound * (2 * torch.rand(num_variables, dtype=torch.float64) - 1)


def _log_binomials(n):
    counts = torch.arange(n + 1, dtype=torch.float64)
    whole = torch.tensor(n + 1.0, dtype=torch.float64)
    return torch.lgamma(whole) - torch.lgamma(counts + 1) - torch.lgamma(n - counts + 1)


def _all_or_none(n):
    middle = torch.full((n - 1,), -torch.inf, dtype=torch.float64)
    return torch.cat([torch.zeros(1, dtype=torch.float64), middle, torch.zeros(1, dtype=torch.float64)])


def _bimodal(n):
    scale = torch.tensor(0.02, dtype=torch.float64)
    low, high = (potentials.normal_fraction(n, fraction, scale) for fraction in (1 / 3, 2 / 3))
    return torch.logaddexp(low, high)


def single_potentials(n):
    """One potential over n variables: pairs of logits and a table, by name."""
    normal = _normal(n)
    uniform = _uniform(n)
    strength = torch.tensor(float(n), dtype=torch.float64)
    return {
        "N(0,1) logits, random f": (normal, torch.randn(n + 1, dtype=torch.float64)),
        "U(-50,50) logits, random f": (uniform, torch.randn(n + 1, dtype=torch.float64)),
        "N(-8,1) logits, exactly k = 0.9 D": (_normal(n, -8.0), potentials.exactly(n, 9 * n // 10).double()),
        "all or none": (normal, _all_or_none(n)),
        "parity": (normal, potentials.parity(n).double()),
        "bimodal at D/3 and 2D/3": (normal, _bimodal(n)),
        "f = -log C(D, k)": (normal, -_log_binomials(n)),
        "convex f": (normal, potentials.smoothness(n, strength)),
        "U(-50,50) logits, f = -log P(k)": (uniform, -log_mass(uniform.unsqueeze(0)).squeeze(0)),
    }


def nested_potentials(n, scale=1.0, impossible=0.2):
    """Potentials at every node of a balanced tree, of which a share of the entries is -inf.

    The counts of one random vector stay possible.
    """
    subsets = NestedSubsets.balanced(n)
    vector = torch.rand(n) < 0.5
    tables = []
    for members, length in zip(subsets.subsets, subsets.sizes, strict=True):
        table = scale * torch.randn(length + 1, dtype=torch.float64)
        removed = torch.rand(length + 1) < impossible
        removed[int(vector[torch.tensor(members)].sum())] = False
        tables.append(table.masked_fill(removed, -torch.inf))
    return _normal(n), subsets.pack(tables), subsets
