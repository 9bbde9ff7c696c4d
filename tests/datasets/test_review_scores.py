"""Local files and downloads of a few scores; the true ones, if the data are there."""

import io
import os

import numpy as np
import pytest

from pyro_structured.datasets import load_review_scores, review_scores

SCORES, REVIEWS, MOST = (
    np.array([[0.5, -1.0], [0.25, 1.0], [0.0, 0.1]]),
    np.array([2.0, 1.0]),
    np.array([1.0, 2.0, 1.0]),
)


def check(found):
    for numbers, expected in zip(found, (SCORES, REVIEWS, MOST), strict=True):
        np.testing.assert_array_equal(numbers, expected)
    assert [numbers.dtype for numbers in found] == [np.float64, np.int64, np.int64]


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "matching").mkdir()
    archive = {"scores": SCORES, "covs": REVIEWS.astype(np.int16), "loads": MOST.astype(np.int16)}
    np.savez_compressed(tmp_path / "matching" / "reviewer_midl2018.npz", **archive)
    check(load_review_scores())


def test_download(serve, monkeypatch):
    for name, numbers in {"scores": SCORES, "covs": REVIEWS, "loads": MOST}.items():
        content = io.BytesIO()
        np.save(content, numbers)
        monkeypatch.setitem(review_scores.FILES, name, serve(review_scores.FILES[name], content.getvalue()))
    check(load_review_scores())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="reviewer_midl2018.npz: .* iesl/fair-matching at commit d91d9"):
        load_review_scores()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_scores():
    conference = load_review_scores()
    assert conference.scores.shape == (177, 118) and np.abs(conference.scores).max() < 1.01
    assert set(conference.reviews) == {3} and set(conference.most_papers) == {4}
