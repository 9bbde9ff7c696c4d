"""Log-odds of pixels from descriptors."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from pyro_structured.models import PixelClassifier


def task(number=30, size=12, seed=0):
    """Three features, of which the labels depend on a circle in the first two; one of the features is constant."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(number, size, size, 4))
    features[..., 3] = 7.0
    masks = (features[..., 0] ** 2 + features[..., 1] ** 2 < 1.0).astype(np.uint8)
    return features * [10.0, 0.1, 1.0, 1.0] + [100.0, 0.0, -3.0, 0.0], masks


def loss(odds, masks):
    return np.logaddexp(0, -(2.0 * masks - 1) * odds).mean()


def test_learns_what_no_linear_classifier_does():
    features, masks = task()
    test_features, test_masks = task(seed=1)
    classifier = PixelClassifier(max_iter=20, random_state=0).fit(features, masks)
    odds = classifier.decision_function(test_features)
    assert odds.shape == test_masks.shape
    assert odds.dtype == np.float32
    assert ((odds > 0) == test_masks).mean() > 0.97
    linear = LogisticRegression().fit(features.reshape(-1, 4), masks.ravel())
    assert loss(odds, test_masks) < 0.3 * loss(
        linear.decision_function(test_features.reshape(-1, 4)), test_masks.ravel()
    )


def test_log_odds_are_calibrated():
    """Two values of one feature: the log-odds are those of the frequencies."""
    generator = np.random.default_rng(0)
    bit = generator.integers(2, size=(40, 16, 16))
    masks = generator.random(bit.shape) < np.where(bit == 1, 0.6, 0.1)
    odds = PixelClassifier(random_state=0).fit(bit[..., None], masks).decision_function(np.array([[[[0.0], [1.0]]]]))
    expected = [np.log(p / (1 - p)) for p in (masks[bit == 0].mean(), masks[bit == 1].mean())]
    np.testing.assert_allclose(odds[0, 0], expected, atol=0.1)


def test_scale_of_features_does_not_matter():
    features, masks = task()
    scaled = features * [1e-3, 1e3, 5.0, 1.0] + [0.0, 4.0, 0.0, 0.0]
    first, second = (PixelClassifier(random_state=3).fit(x, masks).decision_function(x) for x in (features, scaled))
    np.testing.assert_allclose(first, second, atol=0.05)


def test_arrays_of_any_kind():
    """Axes that go backwards, read-only arrays, and numbers too small to be told apart."""
    features, masks = task(number=6)
    features = np.ascontiguousarray(features, dtype=np.float32)
    expected = PixelClassifier(random_state=0).fit(features, masks).decision_function(features)
    backwards, mirrored = np.ascontiguousarray(features[..., ::-1]), np.ascontiguousarray(features[:, :, ::-1])
    features.setflags(write=False)
    classifier = PixelClassifier(random_state=0).fit(features, masks)
    for found in (classifier.decision_function(each) for each in (features, backwards[..., ::-1])):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(classifier.decision_function(mirrored[:, :, ::-1]), expected)
    tiny = np.concatenate([features, 1e-43 * features[..., :1]], -1)
    assert np.isfinite(PixelClassifier(random_state=0).fit(tiny, masks).decision_function(tiny)).all()


def test_seed_decides_and_generators_stay():
    features, masks = task(number=6)
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, same, other = (PixelClassifier(random_state=seed).fit(features, masks) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.decision_function(features), same.decision_function(features))
    assert (one.decision_function(features) != other.decision_function(features)).any()
    assert torch.equal(before, torch.get_rng_state())
    assert (before_numpy == np.random.get_state()[1]).all()
    first, second = (PixelClassifier(random_state=0).cross_decision_function(features, masks) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_works_where_gradients_are_switched_off():
    features, masks = task(number=6)
    expected = PixelClassifier(random_state=0).fit(features, masks).decision_function(features)
    with torch.no_grad():
        np.testing.assert_array_equal(
            PixelClassifier(random_state=0).fit(features, masks).decision_function(features), expected
        )
    with torch.inference_mode():
        np.testing.assert_array_equal(
            PixelClassifier(random_state=0).fit(features, masks).decision_function(features), expected
        )


def test_pictures_alone_equal_pictures_together():
    features, masks = task(number=6)
    classifier = PixelClassifier(random_state=0).fit(features, masks)
    alone = np.concatenate([classifier.decision_function(features[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(classifier.decision_function(features), alone, atol=1e-4)
    corner = classifier.decision_function(features[:, :3, :5])  # of another size
    np.testing.assert_allclose(corner, classifier.decision_function(features)[:, :3, :5], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("n_splits", [2, 5, 8])
def test_cross_fitted_log_odds_have_not_seen_the_picture(n_splits):
    """Labels are noise that one feature tells for each picture: only who has seen the picture knows them."""
    generator = np.random.default_rng(0)
    masks = generator.random((8, 10, 10)) < 0.5
    features = np.eye(800).reshape(8, 10, 10, 800)
    classifier = PixelClassifier(weight_decay=0.0, max_iter=30, random_state=0)
    cross = classifier.cross_decision_function(features, masks, n_splits)
    seen = clone(classifier).fit(features, masks).decision_function(features)
    assert ((seen > 0) == masks).mean() > 0.95
    assert abs(((cross > 0) == masks).mean() - 0.5) < 0.1
    with pytest.raises(NotFittedError):
        classifier.decision_function(features)


def test_cross_fitted_log_odds_are_about_as_good():
    features, masks = task()
    classifier = PixelClassifier(max_iter=20, random_state=0)
    assert ((classifier.cross_decision_function(features, masks) > 0) == masks).mean() > 0.95


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"n_hidden": 0}, "n_hidden: expected an integer of at least 1, got 0"),
        ({"max_iter": 1.5}, "max_iter: expected an integer of at least 1, got 1.5"),
        ({"weight_decay": -1.0}, "weight_decay: expected a number of at least 0, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay: expected a number of at least 0, got nan"),
        ({"learning_rate": 0}, "learning_rate: expected a number of more than 0, got 0"),
        ({"learning_rate": "fast"}, "learning_rate: expected a number of more than 0, got 'fast'"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        PixelClassifier(**parameters).fit(*task(number=2))


@pytest.mark.parametrize(
    "features, masks, message",
    [
        (
            np.zeros((2, 3, 4)),
            np.zeros((2, 3, 4)),
            r"X: expected shape \(N, H, W, F\), not empty, got \(2, 3, 4\)",
        ),
        (np.zeros((0, 3, 4, 1)), np.zeros((0, 3, 4)), r"X: expected .* not empty, got \(0, 3, 4, 1\)"),
        (np.full((1, 1, 2, 1), np.nan), np.array([[[0, 1]]]), "Input X contains NaN"),
        ([[[["a"]]]], np.array([[[1]]]), "X: expected numbers, got others"),
        (np.zeros((1, 2, 2, 1)), np.zeros((1, 2, 3)), r"y: expected shape \(1, 2, 2\), .* got \(1, 2, 3\)"),
        (np.zeros((1, 1, 2, 1)), np.array([[[0, 2]]]), "y: expected zeros and ones, got others"),
        (np.zeros((1, 1, 2, 1)), np.array([[["a", "b"]]]), "y: expected zeros and ones, got others"),
        (np.zeros((1, 1, 2, 1)), np.array([[[0, 0]]]), "y: expected zeros and ones, got only one of them"),
    ],
)
def test_bad_data(features, masks, message):
    with pytest.raises(ValueError, match=message):
        PixelClassifier().fit(features, masks)


@pytest.mark.parametrize("n_splits", [1, 5])
def test_bad_number_of_folds(n_splits):
    with pytest.raises(ValueError, match=f"n_splits: expected 2 to 4, the number of pictures, got {n_splits}"):
        PixelClassifier().cross_decision_function(*task(number=4), n_splits=n_splits)


def test_other_number_of_features():
    features, masks = task(number=3)
    classifier = PixelClassifier().fit(features, masks)
    with pytest.raises(ValueError, match="X: expected 4 for each pixel, got 3"):
        classifier.decision_function(features[..., :3])
