"""Log-probabilities of other sites, for each row of costs."""

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine

from pyro_structured.optima.inference.cost_dependents import row_log_prob


def test_plates_on_both_sides_of_the_rows():
    """All that is not a row is summed, wherever it is, and axes stay where the costs have them."""

    def model(number):
        with pyro.plate("rows", number, dim=-2):
            costs = pyro.sample("costs", dist.Normal(torch.zeros(5), 1.0).to_event(1))
            with pyro.plate("outer", 2, dim=-3), pyro.plate("inner", 4, dim=-1):
                pyro.sample("x", dist.Normal(costs.sum(-1), 1.0))

    pyro.set_rng_seed(0)
    for number in (1, 3):
        trace = poutine.trace(model).get_trace(number)
        trace.compute_log_prob()
        found = row_log_prob(trace, "x", "costs")
        assert found.shape == trace.nodes["costs"]["value"].shape[:-1] == (number, 1)
        torch.testing.assert_close(found, trace.nodes["x"]["log_prob"].sum((0, 2)).unsqueeze(-1))
