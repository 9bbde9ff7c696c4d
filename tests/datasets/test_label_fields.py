"""Silhouettes, their noise and their variability; the true pictures, if the data are there."""

import os

import numpy as np
import pytest

from pyro_structured.datasets import (
    ellipse_figures,
    label_variability,
    load_horses,
    load_silhouettes,
    noisy_observations,
)


def test_figures_vary_more_from_level_to_level():
    found = [label_variability(ellipse_figures(level, 400, seed=0), 16, seed=0) for level in range(6)]
    assert (np.diff(found) > 0).all()
    masks = ellipse_figures(2, 50, seed=1)
    assert masks.dtype == np.uint8 and set(np.unique(masks)) == {0, 1}
    np.testing.assert_array_equal(masks, ellipse_figures(2, 50, seed=1))
    # Level 0 hardly moves: a figure is a body and a head with no, one or two arms.
    arms = ellipse_figures(0, 900, seed=2)[:, 17, [5, 27]]
    assert abs(np.bincount(arms.sum(1), minlength=3) - 300).max() < 60


def test_variability():
    """Clusters of equal fields have none; one cluster has the entropy of the shares."""
    fields = np.repeat(np.array([[0, 0, 0], [1, 1, 1]]), 10, 0)
    assert label_variability(fields, 2, seed=0) == 0
    assert label_variability(fields, 1, seed=0) == pytest.approx(np.log(2))


def test_noise():
    labels = ellipse_figures(0, 2000, seed=0)
    plain = noisy_observations(labels, num_discs=0, seed=1)
    errors = plain - labels
    assert abs(errors.mean()) < 2e-3 and abs(errors.std() - 0.5) < 2e-3
    discs = noisy_observations(np.zeros((3000, 32, 32)), noise=0.0, num_discs=1, seed=2)
    sizes = (discs != 0).sum((1, 2))
    assert set(np.unique(discs)) == {-1.5, 0.0, 1.5} and sizes.max() == 21
    assert abs((discs > 0).any((1, 2)).mean() - 0.5) < 0.03


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ellipse_figures(6, 1, seed=0), "level: expected an integer from 0 to 5, got 6"),
        (lambda: ellipse_figures(0, 0, seed=0), "num_images: expected .* got 0"),
        (lambda: ellipse_figures(0, 1, seed=-1), "seed: expected"),
        (lambda: noisy_observations(np.zeros((2, 2)), seed=0), r"labels: expected shape \(N, H, W\), got \(2, 2\)"),
        (lambda: noisy_observations(np.zeros((1, 2, 2)), noise=-1.0, seed=0), "noise: expected"),
        (lambda: noisy_observations(np.zeros((1, 2, 2)), num_discs=1.5, seed=0), "num_discs: expected"),
        (lambda: noisy_observations(np.zeros((1, 2, 2)), contrast=-1.0, seed=0), "contrast: expected"),
        (lambda: label_variability(np.zeros((3, 4)), 4, seed=0), "num_clusters: expected at most 3, .* got 4"),
        (lambda: label_variability(np.zeros((3, 4)), 2, seed=-1), "seed: expected an integer of at least 0, got -1"),
        (
            lambda: label_variability(np.zeros((3, 4)), 2, seed=None),
            "seed: expected an integer of at least 0, got None",
        ),
        (lambda: label_variability(np.full((3, 4), 255), 2, seed=0), "labels: expected zeros and ones, got others"),
        (lambda: label_variability(np.zeros((0, 4)), 2, seed=0), r"labels: expected shape .* got \(0, 4\)"),
        (lambda: noisy_observations(np.full((1, 2, 2), 255), seed=0), "labels: expected zeros and ones, got others"),
        (lambda: noisy_observations(np.zeros((1, 0, 2)), seed=0), r"labels: expected shape .* got \(1, 0, 2\)"),
        (lambda: load_silhouettes("cat"), r"name: expected one of \('bird', 'person'\), got 'cat'"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_missing_files(tmp_path, monkeypatch):
    monkeypatch.delenv("PYRO_STRUCTURED_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="PYRO_STRUCTURED_DATA .* at commit .*; put it there, or export PYRO_"):
        load_silhouettes("bird")
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="weizmann_horses32.npz: .* at commit .*; unset PYRO_STRUCTURED_DATA"):
        load_horses()


def test_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "images").mkdir()
    masks = ellipse_figures(0, 3, seed=0)
    packed = np.packbits(masks.reshape(3, -1), axis=1)
    rgb = np.zeros((3, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "images" / "weizmann_horses32.npz", rgb=rgb, mask=packed)
    names = np.array(["a", "a", "b"])
    np.savez(tmp_path / "images" / "voc_silhouettes32.npz", bird=packed, bird_image=names)
    for found, expected in zip((*load_horses(), *load_silhouettes("bird")), (rgb, masks, masks, names), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_pictures():
    images, masks = load_horses()
    assert images.shape == (328, 32, 32, 3) and masks.shape == (328, 32, 32)
    for name, number in (("bird", 909), ("person", 5727)):
        masks, pictures = load_silhouettes(name)
        assert masks.shape == (number, 32, 32) and pictures.shape == (number,)
