"""Segmentation: its fields against their formula, what is learned, and bad input."""

import numpy as np
import pyro
import pytest
import torch
from sklearn.base import clone

from pyro_structured.datasets import noisy_observations
from pyro_structured.distributions import PatternCRF
from pyro_structured.fields.models.segmentation_crf import _calibrating_temperature
from pyro_structured.fields.models.segmentation_field import SegmentationData, SegmentationField
from pyro_structured.models import PixelClassifier, SegmentationCRF, edge_features
from pyro_structured.structures import Grid


def random_data(number=6, height=5, width=4, features=3):
    grid = Grid(height, width)
    odds, edges = torch.randn(number, height, width), torch.rand(number, grid.num_edges, features)
    return SegmentationData(odds, edges, (torch.rand(number, height, width) < 0.5).float())


@pytest.mark.parametrize("composition", ["sum", "min", "counts"])
@pytest.mark.parametrize("positioned", [False, True])
@pytest.mark.parametrize("image_dependent", [False, True])
def test_fields_follow_their_formula(composition, positioned, image_dependent):
    torch.manual_seed(0)
    data = random_data()
    field = SegmentationField(data, 3, composition, image_dependent, positioned)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.add_(torch.randn(parameter.shape))
    d = field(data.odds, data.edges)
    mean = (data.masks.sum(0) + 0.5) / 7
    share = 1 / 3 if composition == "min" else 0.5
    unary = field.scale * data.odds + field.shift - share * field.weights.sum(0)
    unary = unary + (field.visible_logits if positioned else 0)
    biases = field.pattern_logits - torch.einsum("jhw,hw->j", field.weights, mean)
    if image_dependent:
        padded = torch.nn.functional.pad((data.odds / 2).tanh(), (0, 0, 0, 1), value=torch.nan)
        # Three rows of five pixels overlap in adaptive pooling.
        first, second, third = padded[:, 0:2], padded[:, 1:4], padded[:, 3:5]
        means = [part.unflatten(-1, (2, 2)).mean((1, 3)) for part in (first, second, third)]
        overview = torch.cat(means, 1)
        biases = biases + (overview - overview.mean(0)) @ field.gates
    torch.testing.assert_close(d.unary_logits, unary)
    torch.testing.assert_close(d.pairwise, (data.edges * field.log_penalties.exp()).sum(-1))
    torch.testing.assert_close(d.pattern_logits, biases.expand(d.pattern_logits.shape))
    if composition == "counts":
        torch.testing.assert_close(d.composition, field.count_logits)
    else:
        assert d._scheme == composition


def test_patterns_without_weight_change_nothing():
    data = random_data()
    with_patterns = SegmentationField(data, 4, "sum", True, True)
    without = SegmentationField(data, 0, "sum", False, True)
    torch.nn.init.zeros_(with_patterns.weights)
    one, other = (field(data.odds, data.edges) for field in (with_patterns, without))
    difference = one.unnormalized_log_prob(data.masks) - other.unnormalized_log_prob(data.masks)
    torch.testing.assert_close(difference, difference[:1].expand(6))


def test_pictures_move_as_a_whole():
    """Labels, log-odds and edges of a picture that is moved are those of the picture."""
    torch.manual_seed(1)
    images = np.random.default_rng(0).random((4, 9, 8, 3)).astype(np.float32)
    grid = Grid(9, 8)
    edges = torch.from_numpy(edge_features(images, grid, sigma=0.5))[..., :2]
    brightness = torch.from_numpy(images.mean(-1))
    data = SegmentationData(brightness, edges, (brightness > 0.5).float())
    rows = torch.tensor([2, 0, 0, 3, 1])
    moved = data.shifted(rows, 2)
    assert torch.equal(moved.masks, (moved.odds > 0.5).float())
    offsets = set()
    for number, row in enumerate(rows.tolist()):
        fits = []
        for down in range(-2, 3):
            for across in range(-2, 3):
                y, x = (torch.arange(9) + down).clamp(0, 8), (torch.arange(8) + across).clamp(0, 7)
                if torch.equal(moved.odds[number], brightness[row][y][:, x]):
                    fits.append((down, across))
        assert len(fits) == 1
        down, across = fits[0]
        offsets.add(fits[0])
        # Away from repeated pixels, edges are those of the moved picture.
        y, x = (torch.arange(9) + down).clamp(0, 8).numpy(), (torch.arange(8) + across).clamp(0, 7).numpy()
        again = torch.from_numpy(edge_features(images[row : row + 1][:, y][:, :, x], grid, sigma=0.5))[0, :, :2]
        for found, expected in zip(grid.split(moved.edges[number].T), grid.split(again.T), strict=True):
            torch.testing.assert_close(found[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2])
    assert len(offsets) > 2
    still = data.shifted(rows, 0)
    assert all(torch.equal(part, whole[rows]) for part, whole in zip(still, data, strict=True))


@pytest.fixture(scope="module")
def figures():
    """Squares on the left or on the right, in a great deal of noise."""
    masks = np.zeros((160, 10, 12), dtype=np.uint8)
    masks[:80, 2:8, 1:6] = masks[80:, 2:8, 6:11] = 1
    order = np.random.default_rng(0).permutation(160)
    return noisy_observations(masks[order], noise=2.0, num_discs=0, seed=1), masks[order]


def test_temperatures():
    """Temperatures are the factors of the log-odds, up to chance; finite log-odds where all labels are right."""
    logits = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    masks = (torch.rand(100_000, generator=torch.Generator().manual_seed(1)) < logits.sigmoid()).float()
    for factor in (0.2, 1.0, 30.0):
        assert _calibrating_temperature(factor * logits, masks) == pytest.approx(factor, rel=0.05)
    sure = torch.tensor([-300.0, 300.0]).repeat(50)
    assert 40 < _calibrating_temperature(sure, (sure > 0).float()) < 100
    assert _calibrating_temperature(logits, (logits < 0).float()) > 500
    assert _calibrating_temperature(sure, torch.ones(100)) > 500


def log_loss(logits, masks):
    return np.logaddexp(0, np.where(masks > 0, -logits, logits)).mean()


@pytest.mark.slow
def test_probabilities_are_calibrated(figures):
    """Probabilities of a field, worse than the classifier's alone, are better after calibration; labels stay."""
    images, masks = figures
    tests, truth = images[100:], masks[100:]
    model = SegmentationCRF(n_patterns=0, max_iter=150, random_state=0, learning_rate=0.03)
    model.fit(images[:100], masks[:100])
    logits = model.to_pyro(tests).mean_field_logits().numpy()
    alone, probs = model.classifier_.decision_function(tests[..., None]), model.predict_proba(tests).astype(float)
    calibrated = log_loss(np.log(probs / (1 - probs)), truth)
    assert calibrated < log_loss(logits, truth) - 0.05 and calibrated < log_loss(alone, truth) + 0.005
    np.testing.assert_array_equal(probs > 0.5, model.predict(tests))
    np.testing.assert_array_equal(logits > 0, model.predict(tests))


@pytest.mark.slow
def test_patterns_help(figures):
    images, masks = figures
    options = {"max_iter": 75, "random_state": 0, "shifts": 0, "learning_rate": 0.03}
    state, params = torch.get_rng_state(), set(pyro.get_param_store())
    scores, models = {}, {}
    for name, changes in {
        "pairs": {"n_patterns": 0, "positioned": False},
        "positions": {"n_patterns": 0},
        "patterns": {"n_patterns": 16},
        "one": {"n_patterns": 16, "composition": "min"},
        "counts": {"n_patterns": 16, "composition": "counts"},
        "depends": {"n_patterns": 16, "image_dependent": True},
    }.items():
        models[name] = SegmentationCRF(**options, **changes).fit(images[:100], masks[:100])
        scores[name] = models[name].score(images[100:], masks[100:])
    assert torch.equal(state, torch.get_rng_state()) and params == set(pyro.get_param_store())
    assert scores["pairs"] < scores["positions"] - 0.02
    assert all(scores[name] > scores["positions"] + 0.1 for name in ("patterns", "one", "counts", "depends")), scores
    assert bool((models["counts"].field_.count_logits != 0).any())
    model, tests = models["patterns"], images[100:]
    d = model.to_pyro(tests)
    assert isinstance(d, PatternCRF) and d.batch_shape == (60,) and d.event_shape == (10, 12)
    np.testing.assert_array_equal(model.predict(tests), d.mean_field_logits() > 0)
    np.testing.assert_allclose(model.predict_proba(tests), (d.mean_field_logits() / model.temperature_).sigmoid())
    assert model.predict(tests).dtype == np.uint8
    # One start in four ends in a poor local optimum.
    starts = [SegmentationCRF(**{**options, "random_state": seed}, inference="map") for seed in range(3)]
    found = [start.fit(images[:100], masks[:100]).score(tests, masks[100:]) for start in starts]
    expected = starts[0].to_pyro(tests).map("em", num_switches=0)[0]
    np.testing.assert_array_equal(starts[0].predict(tests), expected)
    assert np.median(found) > scores["positions"] + 0.1
    again = clone(model).fit(images[:100], masks[:100])
    np.testing.assert_array_equal(again.predict(tests), model.predict(tests))


def test_colours_and_validation_pictures(figures):
    _, masks = figures
    masks = masks[:40]
    colours = np.where(masks[..., None], [200, 60, 60], [60, 60, 200]) + np.random.default_rng(0).integers(
        -55, 56, (*masks.shape, 3)
    )
    images = colours.astype(np.uint8)
    model = SegmentationCRF(n_patterns=2, max_iter=25, random_state=0, loss="logistic")
    model.fit(images[:20], masks[:20], X_val=images[20:30], y_val=masks[20:30])
    assert model.score(images[30:], masks[30:]) > 0.9
    assert model.validation_score_ == pytest.approx(model.score(images[20:30], masks[20:30]), abs=1e-6)
    assert model.field_.log_penalties.shape == (3,)
    assert model.to_pyro(images[:1]).batch_shape == (1,)


def small_pictures(masks):
    """Red on blue, in noise, uint8."""
    colours = np.where(masks[..., None], [200, 60, 60], [60, 60, 200]).astype(float)
    return (colours + np.random.default_rng(1).integers(-55, 56, colours.shape)).astype(np.uint8)


@pytest.mark.slow
def test_grey_and_transparent_pictures(figures):
    """Have what colour pictures have: grey ones are three equal colours, opaque ones the colours."""
    masks = figures[1][:12]
    images = small_pictures(masks)
    grey = images.mean(-1).astype(np.uint8)
    model = SegmentationCRF(n_patterns=1, max_iter=3, random_state=0)

    def probabilities(pictures):
        fitted = clone(model).fit(pictures, masks)
        assert fitted.classifier_.n_features_in_ == 107 and fitted.field_.log_penalties.shape == (3,)
        return fitted.predict_proba(pictures)

    expected = probabilities(np.stack([grey] * 3, -1))
    for pictures in (grey, grey[..., None], grey / 255, 257 * grey.astype(np.uint16), torch.from_numpy(grey)):
        np.testing.assert_allclose(probabilities(pictures), expected, atol=1e-5)
    opaque = np.concatenate([images, np.full((*masks.shape, 1), 255, dtype=np.uint8)], -1)
    np.testing.assert_allclose(probabilities(opaque), probabilities(images), atol=1e-5)
    fitted = clone(model).fit(grey, masks)
    with pytest.raises(ValueError, match="X: expected floats from 0 to 1, got"):
        fitted.predict(2.0 * grey)
    # Numbers that are no pictures stay as they are.
    for numbers in (2.0 * grey, grey.astype(int), np.stack([grey, grey], -1), np.stack([2.0 * grey] * 4, -1)):
        fitted = clone(model).fit(numbers, masks)
        assert fitted.classifier_.n_features_in_ == (*numbers.shape, 1)[3]
        assert fitted.predict(numbers / 1000).shape == masks.shape


def test_usual_mistakes_are_named(figures):
    masks = figures[1][:12]
    images = small_pictures(masks)
    model = SegmentationCRF(n_patterns=1, max_iter=1, random_state=0)
    single, last = r"a single picture has to be X\[None\]", r"channels come last: X.transpose\(0, 2, 3, 1\)"
    for pictures, truth, message in (
        (images[0], masks[0], single),
        (images[0, ..., 0], masks[0], single),
        (images.transpose(0, 3, 1, 2), masks, last),
        (images, 255 * masks, "y: expected zeros and ones, got others; those of 0 and 255 are y > 0"),
        (images, masks[..., None], r"without its last axis: y\[..., 0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(pictures, truth)
    model.fit(images, masks)
    for pictures, message in (
        (images[0], single),
        (images.transpose(0, 3, 1, 2), last),
        (images[:, :8], r"X: expected pictures of shape \(10, 12\), as in fit, got \(8, 12, 3\)"),
        (images[:, :8, :, 0], r"X: expected pictures of shape \(10, 12\), as in fit, got \(8, 12\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(pictures)
    assert model.predict(images[..., 0]).shape == masks.shape


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("inference", ["mean_field", "map"])
def test_where_gradients_are_off_or_numbers_are_long(figures, inference, capfd):
    images, masks = figures[0][:30], figures[1][:30]
    model = SegmentationCRF(n_patterns=2, inference=inference, max_iter=5, random_state=0)
    expected = model.fit(images, masks).predict_proba(images)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            np.testing.assert_array_equal(clone(model).fit(images, masks).predict_proba(images), expected)
            assert model.predict(images).shape == masks.shape
    torch.set_default_dtype(torch.float64)
    try:
        found = clone(model).fit(images, masks)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(found.predict_proba(images), expected, atol=1e-4)
    # Bars are for terminals.
    assert capfd.readouterr() == ("", "")


def test_other_numbers_of_pixels(figures):
    """A classifier of one's own, on two numbers for each pixel."""
    images, masks = figures
    both = np.stack([images, images**2], -1)[:60]
    classifier = PixelClassifier(n_hidden=3, max_iter=2)
    model = SegmentationCRF(n_patterns=0, classifier=classifier, max_iter=25, random_state=0).fit(both, masks[:60])
    assert model.classifier_.n_features_in_ == 2 and not hasattr(classifier, "n_features_in_")
    assert model.score(both, masks[:60]) > 0.4


@pytest.mark.parametrize("max_iter", [1, 2])
def test_penalties_that_diverge(max_iter):
    """After the first step, the field is looked at; with another one, it is learned from."""
    masks, images = np.zeros((20, 10, 12)), np.random.default_rng(0).random((20, 10, 12, 3))
    masks[:, 2:8, 3:9] = 1
    model = SegmentationCRF(n_patterns=1, learning_rate=1e6, max_iter=max_iter, random_state=0)
    with pytest.raises(ValueError, match="learning_rate: expected one with which penalties stay finite, got 1000000.0"):
        model.fit(images, masks)


def test_bad_input(figures):
    images, masks = figures
    images, masks = images[:20], masks[:20]
    cases = [
        ({"n_patterns": -1}, "n_patterns: expected an integer of at least 0, got -1"),
        ({"n_patterns": 0, "composition": "min"}, "n_patterns: expected an integer of at least 1, got 0"),
        ({"composition": "max"}, "composition: expected 'sum', 'min' or 'counts', got 'max'"),
        ({"inference": "cut"}, "inference: expected 'mean_field' or 'map', got 'cut'"),
        ({"shifts": 1.5}, "shifts: expected an integer of at least 0, got 1.5"),
        ({"max_iter": 0}, "max_iter: expected an integer of at least 1, got 0"),
        ({"learning_rate": 0}, "learning_rate: expected a number between 0 and inf, got 0"),
        ({"validation_fraction": 1.0}, "validation_fraction: expected a number between 0 and 1, got 1.0"),
        ({"validation_fraction": 0.01}, "X: expected enough to keep some for validation, got 20"),
        ({"weight_decay": -1}, "weight_decay: expected a number of at least 0, got -1"),
        ({"positioned": "no"}, "positioned: expected True or False, got 'no'"),
        ({"image_dependent": 1}, "image_dependent: expected True or False, got 1"),
        ({"classifier": "linear"}, "classifier: expected one like PixelClassifier, or None, got 'linear'"),
        ({"classifier": PixelClassifier}, "classifier: expected one like PixelClassifier, or None, got <class"),
        ({"loss": "dice"}, "loss: expected one of"),
        ({"loss": object}, "loss: expected one of .*, got <class 'object'>"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            SegmentationCRF(**{"max_iter": 1, "n_patterns": 1, "random_state": 0, **options}).fit(images, masks)
    model = SegmentationCRF(n_patterns=1, max_iter=1, random_state=0)
    with pytest.raises(ValueError, match=r"y: expected shape \(20, 10, 12\)"):
        model.fit(images, masks[:, :8])
    with pytest.raises(ValueError, match=r"X: expected numbers of shape \(N, H, W, F\)"):
        model.fit(images[0], masks)
    with pytest.raises(ValueError, match="y_val: expected both"):
        model.fit(images, masks, X_val=images)
    with pytest.raises(ValueError, match="X_val: expected pictures like X"):
        model.fit(images, masks, X_val=images[:, :8], y_val=masks[:, :8])
    for wrong, message in (
        ((images, masks * 255), "y_val: expected zeros and ones, got others; those of 0 and 255 are y_val > 0"),
        ((images, 254 * masks), "y_val: expected zeros and ones, got others$"),
        (
            (images, masks[..., None]),
            r"y_val: .* \(20, 10, 12, 1\); without its last axis: y_val\[..., 0\]",
        ),
        ((images, masks[:, :8]), r"y_val: expected shape \(20, 10, 12\)"),
        ((images * np.nan, masks), "Input X_val contains NaN"),
        ((images[0], masks), r"X_val: expected numbers of shape \(N, H, W, F\)"),
        ((np.stack([images] * 3, -1), masks), "X_val: expected floats from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(images, masks, X_val=wrong[0], y_val=wrong[1])
    for number, message in (
        (np.nan, "Input X contains NaN"),
        (1e300, "X: expected finite numbers in single precision"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(images * number, masks)
    with pytest.raises(ValueError, match="X: expected an array, of pictures of one size"):
        model.fit([*images, images[0, :8]], masks)
    with pytest.raises(ValueError, match="y: expected an array, of pictures of one size"):
        model.fit(images, [*masks[1:], masks[0, :8]])
    with pytest.raises(ValueError, match="y: expected zeros and ones in the pictures outside every fold"):
        model.fit(images, np.zeros_like(masks))
    model.fit(images, masks)
    with pytest.raises(ValueError, match=r"X: expected pictures of shape \(10, 12, 1\), as in fit"):
        model.predict(images[:, :8])
    with pytest.raises(ValueError, match=r"y: expected shape \(20, 10, 12\)"):
        model.score(images, masks[:5])
