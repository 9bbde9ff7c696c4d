"""Descriptors of pairs of pixels."""

import math

import numpy as np
import pytest

from pyro_structured.fields.models.edge_features import gradient_magnitudes
from pyro_structured.models import edge_features
from pyro_structured.structures import Grid


def pictures(number, height, width, seed=0):
    return np.random.default_rng(seed).random((number, height, width, 3))


def test_gradient_equals_that_of_scikit_image():
    filters = pytest.importorskip("skimage.filters")
    grey = pictures(3, 9, 7)[..., 0]
    found = gradient_magnitudes(grey)
    for picture, magnitudes in zip(grey, found, strict=True):
        np.testing.assert_allclose(magnitudes, filters.scharr(picture), atol=1e-12)


def _brute_force(image, sigma=None):
    """Pair by pair, in the documented order of Grid."""
    color, filters = pytest.importorskip("skimage.color"), pytest.importorskip("skimage.filters")
    height, width = image.shape[:2]
    pairs = [((r, c), (r + 1, c)) for r in range(height - 1) for c in range(width)]
    pairs += [((r, c), (r, c + 1)) for r in range(height) for c in range(width - 1)]
    squares = [sum((image[one] - image[other]) ** 2) for one, other in pairs]
    variance = sum(squares) / len(squares) if sigma is None else sigma**2
    lab = color.rgb2lab(image)
    gradient = sum(filters.scharr(lab[..., channel]) ** 2 for channel in range(3))
    edge = np.maximum(1 - np.exp(-gradient / gradient.mean()), 0.01)
    return [
        [1.0, math.exp(-square / (2 * variance)), -max(math.log(edge[one]), math.log(edge[other]))]
        for (one, other), square in zip(pairs, squares, strict=True)
    ]


@pytest.mark.parametrize("sigma", [None, 0.3])
@pytest.mark.parametrize("height, width", [(4, 6), (5, 1), (1, 3)])
def test_brute_force(height, width, sigma):
    images = pictures(3, height, width)
    found = edge_features(images, Grid(height, width), sigma=sigma)
    assert found.shape == (3, Grid(height, width).num_edges, 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [_brute_force(image, sigma) for image in images], atol=1e-4)


def test_single_picture_equals_batch():
    images, grid = (255 * pictures(4, 6, 5)).astype(np.uint8), Grid(6, 5)
    alone = np.concatenate([edge_features(images[i : i + 1], grid) for i in range(4)])
    np.testing.assert_array_equal(edge_features(images, grid), alone)
    np.testing.assert_allclose(edge_features(images / 255, grid), alone, atol=1e-6)


def test_grey_and_transparent_pictures():
    images, grid = pictures(2, 6, 5), Grid(6, 5)
    grey, opaque = images[..., 0], np.concatenate([images, np.ones((2, 6, 5, 1))], -1)
    np.testing.assert_array_equal(edge_features(grey, grid), edge_features(np.stack([grey] * 3, -1), grid))
    np.testing.assert_allclose(edge_features(opaque, grid), edge_features(images, grid), atol=1e-6)
    with pytest.raises(ValueError, match=r"channels come last: images.transpose\(0, 2, 3, 1\)"):
        edge_features(images.transpose(0, 3, 1, 2), grid)


def test_boundary_of_a_square_is_cheapest():
    images = np.zeros((1, 16, 16, 3))
    images[:, 5:11, 5:11] = [1.0, 0.5, 0.0]
    grid = Grid(16, 16)
    inside = (images[0, ..., 0] > 0).ravel()
    one, other = grid.edges.numpy().T
    crossed = inside[one] != inside[other]
    found = edge_features(images, grid)[0]
    assert found[crossed, 1].max() < 0.01 < 0.99 < found[~crossed, 1].min()
    assert found[crossed, 2].max() < 0.2
    assert found[:, 2].max() == pytest.approx(-math.log(0.01), rel=1e-6)
    assert (found >= 0).all()


def test_picture_of_one_colour():
    images = np.broadcast_to(np.random.default_rng(0).random((50, 1, 1, 3)), (50, 3, 3, 3))
    found = edge_features(images, Grid(3, 3))
    np.testing.assert_allclose(found, np.broadcast_to([1.0, 1.0, -math.log(0.01)], (50, 12, 3)), rtol=1e-6)
    assert edge_features(np.zeros((2, 1, 1, 3)), Grid(1, 1)).shape == (2, 0, 3)
    assert edge_features(np.zeros((0, 2, 2, 3)), Grid(2, 2)).shape == (0, 4, 3)


@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, "wide"])
def test_bad_scale(sigma):
    with pytest.raises(ValueError, match=f"sigma: expected a positive number or None, got {sigma!r}"):
        edge_features(pictures(1, 2, 2), Grid(2, 2), sigma=sigma)


@pytest.mark.parametrize("grid", [Grid(3, 2), None])
def test_bad_grid(grid):
    with pytest.raises(ValueError, match=r"grid: expected Grid\(2, 3\), as the images, got"):
        edge_features(pictures(1, 2, 3), grid)


def test_bad_pictures():
    with pytest.raises(ValueError, match=r"images: expected shape \(N, H, W, 3\), got \(2, 3\)"):
        edge_features(np.zeros((2, 3)), Grid(2, 3))
