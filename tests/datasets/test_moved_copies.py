"""Copies of pictures that are moved alike."""

import numpy as np
import pytest

from pyro_structured.datasets import moved_copies


def shift(picture, down, across):
    """Picture moved by numbers of pixels; new pixels repeat the border."""
    padded = np.pad(picture, [(3, 3), (3, 3)] + [(0, 0)] * (picture.ndim - 2), mode="edge")
    height, width = picture.shape[:2]
    return padded[3 - down : 3 - down + height, 3 - across : 3 - across + width]


def test_copies_are_moved_alike():
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(40, 7, 6, 3)).astype(np.uint8)
    masks = (images[..., 0] > 128).astype(np.int8)
    copies, labels = moved_copies(images, masks, num_copies=4, farthest=3, seed=1)
    assert copies.shape == (400, 7, 6, 3) and copies.dtype == np.uint8 and labels.dtype == np.int8
    np.testing.assert_array_equal(labels, copies[..., 0] > 128)
    np.testing.assert_array_equal(copies[:40], images)
    np.testing.assert_array_equal(copies[200:], copies[:200, :, ::-1])
    seen = set()
    for number in range(40, 200):
        moves = [(d, a) for d in range(-3, 4) for a in range(-3, 4)]
        found = [move for move in moves if (shift(images[number % 40], *move) == copies[number]).all()]
        assert len(found) == 1
        seen.update(found)
    assert len(seen) > 40
    (again,) = moved_copies(masks, num_copies=4, farthest=3, seed=1)
    np.testing.assert_array_equal(again, labels)
    (plain,) = moved_copies(masks, num_copies=0, mirrored=False, seed=0)
    np.testing.assert_array_equal(plain, masks)


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        ([], {}, "arrays: expected at least one, got none"),
        ([np.zeros((2, 3))], {}, r"arrays: expected shapes \(N, H, W, ...\) that agree in N, H and W, got \(2, 3\)"),
        ([np.zeros((2, 3, 3)), np.zeros((2, 3, 4))], {}, r"arrays: expected .*, got \(2, 3, 3\), \(2, 3, 4\)"),
        ([np.zeros((2, 3, 3))], {"num_copies": -1}, "num_copies: expected an integer of at least 0, got -1"),
        ([np.zeros((2, 3, 3))], {"farthest": 0.5}, "farthest: expected an integer of at least 0, got 0.5"),
        ([np.zeros((2, 3, 3))], {"mirrored": np.ones(2)}, "mirrored: expected True or False, got array"),
        ([np.zeros((2, 3, 3))], {"seed": -1}, "seed: expected"),
    ],
)
def test_bad_arguments(arrays, changes, message):
    with pytest.raises(ValueError, match=message):
        moved_copies(*arrays, **({"seed": 0} | changes))
