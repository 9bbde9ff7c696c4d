"""Numbers some of which have bounds."""

import math

import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from scipy.stats import kstest
from torch.distributions import biject_to, constraints

from pyro_structured.distributions import TruncatedNormal
from pyro_structured.optima.distributions.truncated_normal import PartialInterval
from pyro_structured.testing.standard_errors import FAILURE_RATE

pytestmark = pytest.mark.statistical

LOW = torch.tensor([-math.inf, 0.0, -1.0, -math.inf]).double()
HIGH = torch.tensor([0.0, math.inf, 1.0, math.inf]).double()


def truncated_normal():
    return TruncatedNormal(torch.tensor([0.5, -0.5, 0.3, 2.0]).double(), 1.0, LOW, HIGH)


def test_the_transform_is_a_bijection():
    support = truncated_normal().support
    assert isinstance(support, PartialInterval) and "inf" in repr(support)
    x = torch.linspace(-3, 3, 7, dtype=torch.double).unsqueeze(-1).expand(7, 4)
    transform = biject_to(support)
    y = transform(x)
    assert support.check(y).all() and (y.diff(dim=0) != 0).all()
    torch.testing.assert_close(transform.inv(y), x)
    slopes = torch.autograd.functional.jacobian(lambda row: transform(row), x[2]).diagonal()
    torch.testing.assert_close(transform.log_abs_det_jacobian(x[2], y[2]), slopes.abs().log())
    far = torch.tensor([0.0, 0.0, 0.0, 800.0]).double().requires_grad_()  # whose exponential is infinite
    (slope,) = torch.autograd.grad(transform(far)[3], far)
    assert slope.tolist() == [0, 0, 0, 1]
    assert support.check(torch.tensor([1.0, -1.0, 2.0, 0.0])).tolist() == [False, False, False, True]


def test_bounds_of_one_kind():
    for low, high, expected in (
        (-math.inf, math.inf, constraints.real),
        (0.0, math.inf, constraints.greater_than_eq(0.0)),
        # Torch's less_than has no bound.
        (-math.inf, 0.0, PartialInterval(torch.tensor(-math.inf), torch.tensor(0.0))),
        (0.0, 1.0, constraints.interval(0.0, 1.0)),
    ):
        assert type(TruncatedNormal(torch.zeros(2), 1.0, low, high).support) is type(expected)


def model():
    pyro.sample("x", truncated_normal().to_event(1))


def test_as_a_latent_site():
    """Chains that start at exact draws, as rows of a plate, stay exact."""
    pyro.set_rng_seed(0)
    exact, num_copies = truncated_normal(), 2_000

    def copies():
        with pyro.plate("copies", num_copies):
            model()

    start = exact.sample((num_copies,))
    kernel = NUTS(copies, step_size=0.1, adapt_step_size=False, max_tree_depth=4)
    params = {"x": biject_to(exact.support).inv(start)}
    mcmc = MCMC(kernel, num_samples=5, warmup_steps=0, initial_params=params, disable_progbar=True)
    mcmc.run()
    samples = mcmc.get_samples()["x"][-1]
    assert exact.support.check(samples).all() and (samples != start).double().mean() > 0.9
    for place in range(4):
        assert kstest(exact.cdf(samples)[:, place], "uniform").pvalue > FAILURE_RATE


def test_automatic_guides():
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(100):
        assert math.isfinite(svi.step())
    assert truncated_normal().support.check(guide.median()["x"]).all()
