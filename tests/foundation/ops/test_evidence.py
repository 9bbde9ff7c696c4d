import math

import pytest
import torch

from pyro_structured.foundation.ops.evidence import log_odds, merge_evidence, no_evidence, reweight


@pytest.mark.parametrize("logit", [-math.inf, -2.0, math.inf])
@pytest.mark.parametrize("off", [-math.inf, 0.5])
@pytest.mark.parametrize("on", [-math.inf, 1.5])
def test_weights_of_both_values_are_multiplied(logit, off, on):
    def weights(x):
        if math.isinf(x):
            return (0.0, -math.inf) if x < 0 else (-math.inf, 0.0)
        return 0.0, x

    before = weights(logit)
    found, constant = reweight(*(torch.tensor([x], dtype=torch.float64) for x in (logit, off, on)))
    after = weights(found.item())
    expected = (before[0] + off, before[1] + on)
    if max(expected) == -math.inf:
        assert constant.item() == -math.inf
    else:
        assert tuple(w + constant.item() for w in after) == pytest.approx(expected)


def test_derivatives_are_finite():
    logits = torch.tensor([math.inf, -math.inf, 1.0, 1.0, 1.0], requires_grad=True)
    off = torch.tensor([0.0, 0.0, -math.inf, 0.0, 0.5], requires_grad=True)
    on = torch.tensor([0.0, 0.0, 0.0, -math.inf, 0.5], requires_grad=True)
    found, constant = reweight(logits, off, on)
    grads = torch.autograd.grad(found[4] + constant, (logits, off, on))
    assert all(grad.isfinite().all() for grad in grads)


def test_log_odds():
    off = torch.tensor([1.0, -math.inf, 2.0, -math.inf], requires_grad=True)
    on = torch.tensor([3.0, 0.0, -math.inf, -math.inf])
    found = log_odds(off, on)
    assert found[:3].tolist() == [2.0, math.inf, -math.inf] and found[3].isnan()
    assert torch.autograd.grad(found[:3].clamp(-9, 9).sum(), off)[0].isfinite().all()
    with torch.no_grad():
        assert torch.equal(log_odds(off, on).nan_to_num(5.0), found.nan_to_num(5.0))


def test_observations_add_up():
    known = torch.tensor([1, 0, 0]), torch.tensor([True, False, True]), torch.tensor(True)
    value, observed, consistent = merge_evidence(known, torch.tensor([0, 1, 0]), torch.tensor([False, True, True]))
    assert value.tolist() == [1, 1, 0] and observed.all() and consistent
    assert not merge_evidence(known, torch.tensor([0, 0, 0]), torch.tensor([True, False, False]))[2]


def test_nothing_is_known_at_first():
    nothing = no_evidence(3, torch.device("cpu"))
    assert not nothing[1].any() and nothing[2]
    value, observed, consistent = merge_evidence(nothing, torch.tensor([1, 1, 0]), torch.tensor([True, False, True]))
    assert value.tolist() == [1, 0, 0] and observed.tolist() == [True, False, True] and consistent
