"""Log-probabilities of many rows as products of matrices against those of the distribution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_structured.densities.models import network_scores
from pyro_structured.densities.models.network_scores import NetworkScores
from pyro_structured.distributions import SumProductNetwork
from tests.densities.distributions.test_sum_product_network import draw_network


@given(
    st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9),
    st.sampled_from([0.0, 0.4]),
)  # fmt: skip
def test_equal_to_the_distribution(seed, networks, regions, states, n, lost):
    """Empty regions, blocks of all sizes, and weights of zero among them."""
    d, generator = draw_network(seed, networks, regions, states, n, lost=lost)
    values = torch.randint(2, (20, n), generator=generator).double()
    torch.testing.assert_close(NetworkScores(d)(values), d.log_prob(values), rtol=1e-12, atol=1e-12)


def with_logits(d, **logits):
    names = ("network_logits", "transition_logits", "leaf_logits", "conditional_logits", "statistic_logits")
    return SumProductNetwork(*(logits.get(name, getattr(d, name)) for name in names), d.structure)


@pytest.mark.parametrize("kind", ["odds", "transitions", "blocks", "weights"])
def test_extreme_numbers(kind, monkeypatch):
    """Log-weights that cancel, or are too small for exponentials, are left to the distribution, or looked up."""
    d, generator = draw_network(1, 2, 3, 2, 8)
    if kind == "odds":
        d = with_logits(d, conditional_logits=1e6 * d.conditional_logits)
    elif kind == "transitions":
        d = with_logits(d, transition_logits=1e3 * d.transition_logits)
    elif kind == "blocks":
        d = with_logits(d, statistic_logits=1e6 * d.statistic_logits)
    else:
        monkeypatch.setattr(network_scores, "MOST_WEIGHTS", 10)
    values = torch.randint(2, (30, 8), generator=generator).double()
    scores = NetworkScores(d)
    assert scores._is_fast == (kind == "blocks")
    torch.testing.assert_close(scores(values), d.log_prob(values), rtol=1e-12, atol=1e-12)


def test_parts_of_many_rows(monkeypatch):
    monkeypatch.setattr(network_scores, "ROWS", 7)
    d, generator = draw_network(2, 2, 2, 2, 5)
    values = torch.randint(2, (30, 5), generator=generator).double()
    torch.testing.assert_close(NetworkScores(d)(values), d.log_prob(values), rtol=1e-12, atol=1e-12)
