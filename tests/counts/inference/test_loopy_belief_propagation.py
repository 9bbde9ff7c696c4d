"""Weights of scores learned from assignments: by the gradient of Bethe's log Z, and by random optima."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO

from pyro_structured.distributions import GeneralizedMatching, RandOM
from pyro_structured.distributions.cardinality_potentials import at_most, exactly
from pyro_structured.inference import MCEM, LoopyBP
from pyro_structured.structures import BipartiteAssignment

pytestmark = pytest.mark.statistical

TRUTH = torch.tensor([1.5, 1.0], dtype=torch.double)
ROWS, COLUMNS = 6, 5


def random_features(*batch):
    near = 1 - 2 * torch.rand(*batch, ROWS, COLUMNS, dtype=torch.double)
    return torch.stack([near, (torch.rand_like(near) < 0.3).double()], -1)


def assignments(features, weights):
    laws = exactly(COLUMNS, 2).expand(ROWS, -1), at_most(ROWS, 3).expand(COLUMNS, -1)
    return GeneralizedMatching(features @ weights, *laws)


def test_weights_by_bethes_gradient():
    """In an SVI of a model whose factor has Bethe's log Z; standard errors from the curvature."""
    pyro.set_rng_seed(0)
    features = random_features(150)
    observed = assignments(features, TRUTH).sample()

    def model():
        weights = pyro.param("weights", torch.zeros(2, dtype=torch.double))
        with pyro.plate("areas", len(features)):
            d = assignments(features, weights)
            log_z = d.approximate_marginals(LoopyBP(1e-6)).log_partition
            pyro.factor("likelihood", d.unnormalized_log_prob(observed) - log_z)

    pyro.clear_param_store()
    svi = SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.2}), Trace_ELBO())
    for _ in range(60):
        svi.step()
    learned = pyro.param("weights").detach()

    def expected(weights):
        marginals = assignments(features, weights).approximate_marginals(LoopyBP()).marginals
        return (marginals.unsqueeze(-1) * features).sum((0, 1, 2))

    errors = torch.linalg.inv(torch.autograd.functional.jacobian(expected, learned)).diagonal().sqrt()
    assert bool(((learned - TRUTH).abs() < 3 * errors).all()) and bool((errors < 0.15).all())


@pytest.mark.slow
def test_weights_by_random_optima():
    """The weights of ten copies of four assignments each, in one run: their mean within three standard errors."""
    pyro.set_rng_seed(1)
    features = random_features(10, 4)
    problem = BipartiteAssignment(2, 3, num_rows=ROWS, num_columns=COLUMNS, maximize=True)

    def model(observed=None):
        weights = pyro.param("weights", TRUTH.expand(10, 2).clone())
        scores = (features @ weights[:, None, None, :, None]).squeeze(-1)
        with pyro.plate("copies", 10, dim=-2), pyro.plate("areas", 4, dim=-1):
            return pyro.sample("assignment", RandOM(dist.Normal(scores, 1.0).to_event(2), problem), obs=observed)

    pyro.clear_param_store()
    observed = model().detach()
    pyro.get_param_store()["weights"] = torch.zeros(10, 2, dtype=torch.double)
    learner = MCEM(model, lambda observed: None, pyro.optim.Adam({"lr": 0.1}))
    total = torch.zeros(10, 2, dtype=torch.double)
    for step in range(160):
        learner.step(observed)
        total += pyro.param("weights").detach() * (step >= 80) / 80
    error = total.std(0) / 10**0.5
    assert bool(((total.mean(0) - TRUTH).abs() < 3 * error).all()) and bool((error < 0.3).all())
