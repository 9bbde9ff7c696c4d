"""Small logistic regressions against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from pyro_structured.junction_trees.ops.logistic_regression import logistic_likelihood


def draws(num_classes, scale=1.0, batch=3, number=400):
    features = scale * torch.randn(batch, number, 4, dtype=torch.double)
    features[..., 0] = 1.0
    target = torch.distributions.Categorical(logits=features[0] @ torch.randn(4, num_classes).double()).sample()
    return features, target, torch.rand(batch, number).double()


@pytest.mark.parametrize("ridge", [0.1, 5.0])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_two_classes(ridge, scale):
    """Regressions with two classes are those of scikit-learn, with other weights in each."""
    features, target, weights = draws(2, scale)
    found = logistic_likelihood(features, target, 2, weights, ridge)
    for row, x, w in zip(found, features.numpy(), weights.numpy(), strict=True):
        peer = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, target, w)
        expected = -log_loss(target, peer.predict_proba(x), sample_weight=w, normalize=False)
        assert float(row) == pytest.approx(expected, rel=1e-6)


def test_several_classes():
    features, target, weights = draws(4)
    found = logistic_likelihood(features, target, 4, weights, 1e-8)
    for row, x, w in zip(found, features.numpy(), weights.numpy(), strict=True):
        peer = LogisticRegression(C=1e8, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, target, w)
        expected = -log_loss(target, peer.predict_proba(x), sample_weight=w, normalize=False)
        assert float(row) == pytest.approx(expected, rel=1e-6)


def test_steps_that_overshoot():
    """A few large features: with whole steps, Newton's method would not converge here."""
    torch.manual_seed(26)
    features = 5 * torch.randn(1, 30, 4).double() ** 3
    features[..., 0] = 1.0
    target = torch.distributions.Categorical(logits=features[0] @ torch.randn(4, 2).double()).sample()
    weights = torch.rand(1, 30).double()
    found = float(logistic_likelihood(features, target, 2, weights, 1e-3))
    peer = LogisticRegression(C=1e3, fit_intercept=False, tol=1e-10, max_iter=100_000, solver="newton-cholesky")
    logits = features[0].numpy() @ peer.fit(features[0], target, weights[0]).coef_[0]
    expected = -weights[0].numpy() @ np.logaddexp(0.0, np.where(target == 1, -logits, logits))
    assert found == pytest.approx(expected, rel=1e-4)


def test_rows_without_weight_do_not_count():
    features, target, weights = draws(3)
    weights[:, 100:] = 0
    found = logistic_likelihood(features, target, 3, weights, 1.0)
    expected = logistic_likelihood(features[:, :100], target[:100], 3, weights[:, :100], 1.0)
    torch.testing.assert_close(found, expected)


def test_separable_classes():
    x = torch.from_numpy(np.linspace(-100, 100, 50))
    features = torch.stack([torch.ones(50), x], -1).double().unsqueeze(0)
    found = logistic_likelihood(features, (x > 0).long(), 2, torch.ones(1, 50), 1e-6)
    assert -1e-2 < float(found) < 0
