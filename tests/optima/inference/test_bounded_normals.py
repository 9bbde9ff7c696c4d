"""Normal and uniform variables between bounds, against scipy."""

import numpy as np
import pytest
import scipy.stats
import torch

from pyro_structured.optima.inference.matching_shells import BoundedNormals
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE

pytestmark = pytest.mark.statistical

NUM = 2000
# Location, scale, bounds; an infinite scale is a uniform variable.
CASES = {
    "normal": (1.0, 2.0, -np.inf, np.inf),
    "truncated": (1.0, 2.0, 0.0, 2.5),
    "below a bound": (1.0, 2.0, -np.inf, 0.0),
    "upper tail": (0.0, 0.1, 5.0, 7.0),
    "lower tail": (0.0, 0.1, -np.inf, -3.0),
    "uniform": (0.0, np.inf, -1.0, 3.0),
}


def make(name):
    """The variables, and scipy's."""
    loc, scale, low, high = CASES[name]
    tensors = (torch.full((NUM,), number, dtype=torch.double) for number in CASES[name])
    if scale == np.inf:
        return BoundedNormals.between(*tensors), scipy.stats.uniform(low, high - low)
    peer = scipy.stats.truncnorm((low - loc) / scale, (high - loc) / scale, loc, scale)
    return BoundedNormals.between(*tensors), peer


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_against_scipy(name, sign):
    variables, peer = make(name)
    variables = variables if sign > 0 else variables.negated()
    places = torch.linspace(0.01, 0.99, NUM, dtype=torch.double)
    x = sign * torch.from_numpy(peer.ppf(places.numpy()))
    expected = torch.from_numpy(peer.logpdf(sign * x))
    torch.testing.assert_close(variables.log_density(x), expected, rtol=1e-9, atol=1e-9)
    log_tail = torch.from_numpy(peer.logsf(x) if sign > 0 else peer.logcdf(-x))
    torch.testing.assert_close(variables.log_above(x), log_tail, rtol=1e-8, atol=1e-8)
    outside = torch.tensor([-1e6, 1e6], dtype=torch.double).unsqueeze(-1)
    if name != "normal" and name not in ("below a bound", "lower tail"):
        assert (variables.log_density(outside) == IMPOSSIBLE).all()
        assert (variables.log_above(outside)[1] == IMPOSSIBLE).all()
    assert (variables.log_above(outside)[0] == 0).all()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_draws(name, sign):
    torch.manual_seed(0)
    variables, peer = make(name)
    variables = variables if sign > 0 else variables.negated()
    assert scipy.stats.ks_1samp((sign * variables.draw()).numpy(), peer.cdf).pvalue > 2e-9
    bound = sign * float(peer.ppf(0.6))
    above = variables.draw_above(torch.full((NUM,), bound, dtype=torch.double))
    assert (above >= bound).all()
    ends = (peer.cdf(bound), 1.0) if sign > 0 else (0.0, peer.cdf(-bound))
    shares = (peer.cdf(sign * above.numpy()) - ends[0]) / (ends[1] - ends[0])
    assert scipy.stats.kstest(shares, "uniform").pvalue > 2e-9


@pytest.mark.parametrize("name", CASES)
def test_reach(name):
    """Hardly anything is outside, and the reach is not much longer than it has to be."""
    variables, peer = make(name)
    low, high = (float(end[0]) for end in variables.reach)
    assert peer.cdf(low) + peer.sf(high) < 1e-15
    assert high - low < 15 * (peer.ppf(0.999) - peer.ppf(0.001))
