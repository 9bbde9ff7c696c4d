"""Distances of partners and of others by their distributions, and the log-probabilities that the docstring states."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from pyro_structured.datasets import matching_task

pytestmark = pytest.mark.statistical

NOISE = {"position_noise": 0.3, "size_noise": 0.2, "color_noise": 0.1}
# Of the features: standard deviations of the noise and dimensions.
SCALES, DIMENSIONS = (0.3, 0.2, 0.1), (2, 1, 3)


def of_partners(features, matchings):
    """Features of matched points, shape ``(num_pairs, J, 3)``."""
    return np.take_along_axis(features, matchings[:, :, None, None], axis=2)[:, :, 0]


def test_shapes():
    features, matchings = matching_task("unimodal", 7, seed=1)
    assert features.shape == (7, 5, 5, 3) and features.dtype == np.float64
    assert matchings.shape == (7, 5) and matchings.dtype == np.int64
    np.testing.assert_array_equal(np.sort(matchings), np.tile(np.arange(5), (7, 1)))


def test_partners():
    """Noise of the given size in position and size; a color of no relation."""
    near = of_partners(*matching_task("unimodal", 1000, 3, seed=2, **NOISE))
    for column in (0, 1):
        distances = near[..., column].ravel() / SCALES[column] ** 2
        assert stats.kstest(distances, stats.chi2(DIMENSIONS[column]).cdf).pvalue > 2e-9
    unrelated = np.random.default_rng(0).uniform(size=(2, 10000, 3))
    assert stats.ks_2samp(near[..., 2].ravel(), ((unrelated[0] - unrelated[1]) ** 2).sum(-1)).pvalue > 2e-9


def test_others():
    """Points that are no partners, and so those of A and B alike, have positions in the square and sizes up to one."""
    features, matchings = matching_task("unimodal", 5000, 2, seed=3, position_noise=0, size_noise=0)
    far = of_partners(features, 1 - matchings)[:, 0]
    unrelated = np.random.default_rng(0).uniform(size=(2, 5000, 3))
    squares = (unrelated[0] - unrelated[1]) ** 2
    for column, expected in enumerate((4 * squares[:, :2].sum(-1), squares[:, 2], squares.sum(-1))):
        assert stats.ks_2samp(far[:, column], expected).pvalue > 2e-9


def test_multimodal():
    """Of a pair of sets, the positions or the colors of all partners agree, never both, and never the sizes."""
    noises = {"position_noise": 1e-3, "size_noise": 1e-3, "color_noise": 1e-3}
    near = of_partners(*matching_task("multimodal", 2000, seed=4, **noises))
    position, size, color = (near[..., column].max(1) < 1e-3 for column in range(3))
    assert (position ^ color).all() and not size.any()
    assert stats.binomtest(int(position.sum()), 2000).pvalue > 2e-9
    for chosen, column in ((position, 0), (color, 2)):
        distances = near[chosen][..., column].ravel() / 1e-3**2
        assert stats.kstest(distances, stats.chi2(DIMENSIONS[column]).cdf).pvalue > 2e-9


def test_matchings_are_uniform():
    _, matchings = matching_task("unimodal", 6000, 3, seed=5)
    observed = [int((matchings == order).all(1).sum()) for order in permutations(range(3))]
    assert stats.chisquare(observed).pvalue > 2e-9


def log_posterior(name, features, matchings, scale):
    """Of the true matchings, by Bayes' rule; the properties' ranges are ignored."""
    orders = np.array(list(permutations(range(5))))
    distances = features[:, np.arange(5), orders].sum(2)
    peaks = np.array([4, 1, 1]) / (scale * np.sqrt(2 * np.pi)) ** np.array(DIMENSIONS)
    log_ratios = 5 * np.log(peaks) - distances / (2 * scale**2)
    if name == "unimodal":
        logits = log_ratios[..., 0] + log_ratios[..., 1]
    else:
        logits = np.logaddexp(log_ratios[..., 0], log_ratios[..., 2])
    logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return logits[(orders == matchings[:, None]).all(-1)]


@pytest.mark.parametrize(("name", "expected"), [("unimodal", -0.49), ("multimodal", -1.32)])
def test_stated_log_probability(name, expected):
    """Two places are stated."""
    found = log_posterior(name, *matching_task(name, 8000, seed=6), 0.25)
    assert abs(found.mean() - expected) < 0.005 + 6 * found.std() / np.sqrt(len(found))


def test_seed():
    first, second, other = (matching_task("multimodal", 5, seed=seed) for seed in (1, 1, 2))
    for one, same, different in zip(first, second, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert (one != different).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "bimodal"}, r"name: expected one of \('unimodal', 'multimodal'\), got 'bimodal'"),
        ({"num_pairs": 0}, "num_pairs: expected an integer of at least 1, got 0"),
        ({"num_points": 2.5}, "num_points: expected an integer of at least 1, got 2.5"),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1"),
        ({"position_noise": -0.1}, "position_noise: expected a finite number of at least 0, got -0.1"),
        ({"size_noise": float("nan")}, "size_noise: expected a finite number of at least 0, got nan"),
        ({"color_noise": "a"}, "color_noise: expected a finite number of at least 0, got 'a'"),
        ({"color_noise": float("inf")}, "color_noise: expected a finite number of at least 0, got inf"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        matching_task(**{"name": "unimodal", "num_pairs": 3, "seed": 0, **arguments})
