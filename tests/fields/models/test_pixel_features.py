"""Descriptors of pixels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_structured.fields.models.pixel_features import grey_pictures, lab_pictures
from pyro_structured.models import pixel_features, position_features


def pictures(number, height, width, seed=0):
    return np.random.default_rng(seed).integers(256, size=(number, height, width, 3)).astype(np.uint8)


def test_lab_equals_that_of_scikit_image():
    color = pytest.importorskip("skimage.color")
    levels = np.linspace(0, 1, 18)  # dark ones also, where the cube root is replaced by a line
    colours = np.stack(np.meshgrid(levels, levels, levels), -1)
    np.testing.assert_allclose(lab_pictures(colours), color.rgb2lab(colours), atol=1e-3)
    np.testing.assert_allclose(grey_pictures(colours), color.rgb2gray(colours), atol=1e-12)


def test_order_of_colours():
    images = pictures(2, 5, 4)
    found = pixel_features(images)
    assert found.shape == (2, 5, 4, 107)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[..., :3], images / 255, atol=1e-6)
    np.testing.assert_allclose(found[..., 3:6], lab_pictures(images / 255), atol=1e-4)
    np.testing.assert_array_equal(found, pixel_features(images / 255))


def test_kinds_of_pictures():
    """Grey ones are three equal colours, transparent ones are in front of white, as in scikit-image."""
    color = pytest.importorskip("skimage.color")
    images = pictures(2, 6, 5)
    grey, alpha = images[..., 0], images[..., 1:2]
    expected = pixel_features(np.stack([grey] * 3, -1))
    np.testing.assert_array_equal(pixel_features(grey), expected)
    np.testing.assert_array_equal(pixel_features(grey[..., None]), expected)
    np.testing.assert_array_equal(pixel_features(grey / 255), expected)
    np.testing.assert_array_equal(pixel_features(257 * grey.astype(np.uint16)), expected)
    np.testing.assert_allclose(pixel_features((grey / 255).astype(np.float16)), expected, atol=0.1)
    sharp = grey > 100
    np.testing.assert_array_equal(pixel_features(sharp), pixel_features(255 * sharp.astype(np.uint8)))
    transparent = np.concatenate([images, alpha], -1)
    in_front = pixel_features(color.rgba2rgb(transparent))
    np.testing.assert_allclose(pixel_features(transparent), in_front, atol=1e-5)
    np.testing.assert_allclose(pixel_features(transparent / 255), in_front, atol=1e-5)
    opaque = np.concatenate([images, np.full_like(alpha, 255)], -1)
    np.testing.assert_allclose(pixel_features(opaque), pixel_features(images), atol=1e-5)
    assert pixel_features(np.zeros((1, 4, 3, 1))).shape == (1, 4, 3, 107)


def test_translation_shifts_responses():
    """Responses move with the picture, at pixels that the largest filter does not reach from the border."""
    small = np.full((1, 120, 120, 3), 77, dtype=np.uint8)
    small[:, 50:60, 52:61] = pictures(1, 10, 9)
    down, right = 4, -3
    moved = np.roll(small, (down, right), axis=(1, 2))
    found, expected = pixel_features(moved), np.roll(pixel_features(small), (down, right), axis=(1, 2))
    np.testing.assert_allclose(found[:, 42:78, 42:78], expected[:, 42:78, 42:78], atol=1e-5)
    assert np.abs(found[..., 6:]).max() > 0.1


def test_mirrored_picture_mirrors_rings():
    """Spots, blurs and rings (the last 25) do not change with the orientation, at the borders neither."""
    images = pictures(1, 12, 9)
    expected = pixel_features(images)[:, ::-1, :, -25:]
    np.testing.assert_allclose(pixel_features(images[:, ::-1])[..., -25:], expected, atol=1e-5)


def test_picture_of_one_colour():
    found = pixel_features(np.full((1, 6, 7, 3), 0.25))
    # But for colours, the real parts of the Gabor filters, whose means are not quite zero, and the blurs.
    rest = np.r_[7:46:2, 46:90, 94:107]
    np.testing.assert_allclose(found[..., rest], 0.0, atol=1e-6)
    np.testing.assert_allclose(found[..., 90:94], 0.25, atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 40))
def test_single_picture_equals_batch(number, height, width):
    images = pictures(number, height, width, seed=number)
    together = pixel_features(images)
    alone = np.concatenate([pixel_features(images[i : i + 1]) for i in range(number)])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_more_pictures_than_are_transformed_at_a_time():
    images = pictures(40, 32, 32)
    np.testing.assert_allclose(
        pixel_features(images)[[0, 31, 32, 39]], pixel_features(images[[0, 31, 32, 39]]), atol=1e-6
    )


def test_no_pictures():
    assert pixel_features(np.zeros((0, 4, 5, 3))).shape == (0, 4, 5, 107)


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros((4, 4, 3)), r"images: expected shape \(N, H, W, 3\), got \(4, 4, 3\)"),
        (np.zeros((4, 4, 3)), r"if grey, .* with transparency; a single picture has to be images\[None\]$"),
        (np.zeros((4, 4)), r"got \(4, 4\), .*; a single picture has to be images\[None\]$"),
        (np.zeros((2, 3, 5, 6)), r"got \(2, 3, 5, 6\), .*; channels come last: images.transpose\(0, 2, 3, 1\)$"),
        (np.zeros((2, 6, 4, 5)), r"images: expected shape \(N, H, W, 3\), got \(2, 6, 4, 5\), .* transparency$"),
        (np.zeros((2, 0, 4, 3)), r"images: expected shape \(N, H, W, 3\), got \(2, 0, 4, 3\)"),
        (
            np.zeros((1, 4, 4, 3), dtype=int),
            "images: expected uint8, uint16, booleans or floats from 0 to 1, got int64",
        ),
        (np.full((1, 4, 4, 3), 255.0), "images: expected floats from 0 to 1, got 255.0 to 255.0"),
        (np.full((1, 4, 4, 3), -0.1), "images: expected floats from 0 to 1, got -0.1"),
        (np.full((1, 4, 4, 3), np.nan), "images: expected floats from 0 to 1, got nan"),
        ("horse", r"images: expected shape \(N, H, W, 3\), got \(\)"),
    ],
)
def test_bad_pictures(images, message):
    with pytest.raises(ValueError, match=message):
        pixel_features(images)


def test_positions():
    found = position_features(3, 5)
    row, column, *products = np.moveaxis(found, -1, 0)
    np.testing.assert_array_equal(row[:, 2], [-1, 0, 1])
    np.testing.assert_array_equal(column[0], [-1, -0.5, 0, 0.5, 1])
    for expected, got in zip((row**2, column**2, row * column), products, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert position_features(1, 1).tolist() == [[[0.0] * 5]]
    with pytest.raises(ValueError, match="width: expected an integer of at least 1, got 0"):
        position_features(2, 0)
    with pytest.raises(ValueError, match="height: expected an integer of at least 1, got 2.0"):
        position_features(2.0, 2)
