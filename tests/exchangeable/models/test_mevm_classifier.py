"""Classes against naive Bayes, closed forms, and Boolean functions."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.naive_bayes import BernoulliNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.datasets import conjunction_task, disjunction_task, symmetric_task
from pyro_structured.distributions import ExchangeableMixture
from pyro_structured.exchangeable.models.structural_em import STRUCTURES, StructuralEM
from pyro_structured.models import MEVMClassifier


def blobs(number, seed=0):
    """Three classes with means of their own; in the last two, some variables are always equal."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=number)
    X = (rng.random((number, 6)) < np.array([[0.2] * 6, [0.5] * 6, [0.8, 0.2] * 3])[y]).astype(float)
    X[y > 0, 5] = X[y > 0, 0]
    return X, np.array(["a", "c", "b"])[y]


@parametrize_with_checks([MEVMClassifier(), MEVMClassifier(structure="merge")])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_independent_variables_are_naive_bayes():
    X, y = blobs(200)
    weights = np.random.default_rng(0).random(200)
    found = MEVMClassifier(structure="independent", smoothing=0.3).fit(X, y, weights)
    expected = BernoulliNB(alpha=0.3).fit(X, y, weights)
    np.testing.assert_allclose(found.predict_log_proba(X), expected.predict_log_proba(X), rtol=1e-9)
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_equals_the_pyro_distribution(structure):
    X, y = blobs(200)
    classifier = MEVMClassifier(structure=structure, smoothing=0.2).fit(X, y)
    values = torch.from_numpy(X)
    memberships = torch.from_numpy(np.equal.outer(y, classifier.classes_).astype(float))
    closed = ExchangeableMixture.from_data(values, memberships, classifier.partition_, 0.2)
    for density in (closed, classifier.to_pyro()):
        np.testing.assert_allclose(classifier.predict_proba(X), density.posterior(values).probs, rtol=1e-6, atol=1e-12)
    observed = torch.rand(values.shape) < 0.5
    found = classifier.predict_proba(np.where(observed, X, np.nan))
    np.testing.assert_allclose(found, closed.posterior(values, observed).probs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["parity", "counting", "m_of_n", "exact"])
def test_symmetric_functions(name):
    """Theorem 4.4: structure and parameters are learned."""
    X, y = symmetric_task(name, 4000, 50, seed=0)
    held_out, truth = symmetric_task(name, 1000, 50, seed=1)
    assert MEVMClassifier().fit(X, y).score(held_out, truth) == 1.0
    assert BernoulliNB().fit(X, y).score(held_out, truth) < 0.95


@pytest.mark.parametrize("task", [conjunction_task, disjunction_task])
def test_conjunctions_and_disjunctions(task):
    X, y = task([0, 3, 5], 4000, 20, seed=0)
    held_out, truth = task([0, 3, 5], 1000, 20, seed=1)
    assert MEVMClassifier().fit(X, y).score(held_out, truth) == 1.0


@pytest.mark.parametrize("unlabeled", [-1, 7])
def test_missing_labels(unlabeled):
    X, y = symmetric_task("parity", 3000, 10, seed=0)
    held_out, truth = symmetric_task("parity", 1000, 10, seed=1)
    few = np.where(np.arange(3000) < 30, y, unlabeled)
    alone = MEVMClassifier().fit(X[:30], y[:30]).score(held_out, truth)
    classifier = MEVMClassifier(unlabeled=unlabeled).fit(X, few)
    assert classifier.classes_.tolist() == [0, 1]
    assert classifier.score(held_out, truth) >= alone
    assert classifier.n_iter_ > MEVMClassifier().fit(X, y).n_iter_
    with pytest.raises(ValueError, match=f"y: expected at least one label other than {unlabeled}, got none"):
        classifier.fit(X, np.full(3000, unlabeled))


def test_labels_that_are_missing_help():
    """Few labels, many rows: the clusters are found without labels, which only have to name them."""
    rng = np.random.default_rng(0)
    y = np.array(["a", "b", "c"])[rng.integers(3, size=2000)]
    means = rng.choice([0.3, 0.7], size=(3, 30))
    X = rng.random((2000, 30)) < means[np.searchsorted(["a", "b", "c"], y)]
    few = y.astype(object)
    few[12:] = "?"
    alone = MEVMClassifier(structure="independent").fit(X[:12], y[:12]).score(X, y)
    both = MEVMClassifier(structure="independent", unlabeled="?").fit(X, few).score(X, y)
    assert both > alone + 0.05


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_sparse_data(missing):
    X, y = blobs(300)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    classifier = MEVMClassifier(random_state=0)
    expected = clone(classifier).fit(X, y).predict_proba(X)
    found = classifier.fit(csr_matrix(X), y).predict_proba(csr_matrix(X))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_counts_that_training_has_not_seen():
    X = np.zeros((10, 4))
    X[5:, :2] = 1
    classifier = MEVMClassifier().fit(X, [0] * 5 + [1] * 5)
    assert np.isfinite(classifier.predict_log_proba(1 - X)).all()


def test_wrong_arguments():
    X, y = blobs(20)
    with pytest.raises(ValueError, match="structure: expected one of"):
        MEVMClassifier(structure="none").fit(X, y)
    with pytest.raises(ValueError, match="X: expected zeros, ones and NaN"):
        MEVMClassifier(binarize=None).fit(2 * X, y)
    for weights in (np.zeros(20), -np.ones(20), np.full(20, np.nan), np.full(20, 1e305), np.full(20, np.inf)):
        with pytest.raises(ValueError, match=r"sample_weight: expected numbers from 0 to 1e\+290, not all zero"):
            MEVMClassifier().fit(X, y, weights)
    with pytest.raises(ValueError, match=r"sample_weight: expected shape \(20,\), got \(3,\)"):
        MEVMClassifier().fit(X, y, np.ones(3))
    for weights in (["a"] * 20, [[1.0], [1.0, 2.0]] * 10, [{}] * 20):
        with pytest.raises(ValueError, match="sample_weight: expected numbers, got others"):
            MEVMClassifier().fit(X, y, weights)
    with pytest.raises(ValueError, match=r"unlabeled: expected a label or None, got \[0, 1\]"):
        MEVMClassifier(unlabeled=[0, 1]).fit(X, y)
    with pytest.raises(ValueError, match="continuous"):
        MEVMClassifier().fit(X, np.random.default_rng(0).random(20))


def test_variables_that_are_never_ones_are_one_block():
    X, y = blobs(300)
    X = np.hstack([X, np.zeros((300, 3))])
    X[:, 7] = np.nan
    for structure in ("welch", "welch+merge"):
        classifier = MEVMClassifier(structure=structure).fit(X, y)
        assert all([6, 7, 8] in partition.blocks() for partition in classifier.partition_)
        assert MEVMClassifier(structure=structure).fit(X[:, 6:], y).partition_[0].blocks() == [[0, 1, 2]]


def test_an_interrupt_keeps_the_last_mixture(monkeypatch):
    X, y = blobs(200)
    y = np.where(np.arange(200) % 3, y, "?")
    advance, allowed = StructuralEM._advance, 2

    def interrupted(self, *arguments):
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(StructuralEM, "_advance", interrupted)
    classifier = MEVMClassifier(unlabeled="?", tol=1e-9, random_state=0)
    with pytest.warns(UserWarning, match="fit was interrupted: the last mixture is kept") as caught:
        classifier.fit(X, y)
    assert caught[0].filename == __file__ and classifier.n_iter_ == 2 and classifier.score(X, blobs(200)[1]) > 0.6
    monkeypatch.setattr(StructuralEM, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(X, y)


def test_numbers_that_are_binarised_are_named():
    X, y = blobs(50)
    with pytest.warns(UserWarning, match="X: numbers other than 0 and 1 .* in columns 0, 1, 2, 3, 4, 5; binarize=0.0"):
        MEVMClassifier().fit(2 * X, y)


def test_labels_that_are_none():
    X, y = blobs(20)
    for labels in (np.where(y == "a", None, y), np.where(y == "a", np.nan, 1.0)):
        with pytest.raises(ValueError, match="y: expected labels, got missing ones; the parameter unlabeled says"):
            MEVMClassifier().fit(X, labels)
    for unlabeled in (np.nan, ["?"]):
        with pytest.raises(ValueError, match="unlabeled: expected a label or None, got"):
            MEVMClassifier(unlabeled=unlabeled).fit(X, y)
