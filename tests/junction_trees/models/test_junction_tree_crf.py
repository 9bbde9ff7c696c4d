"""A classifier of several labels against sums over all of them, and its graphs."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.distributions import JunctionTree
from pyro_structured.junction_trees.models.conditional_information import ConditionalScore
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField
from pyro_structured.models import JunctionTreeCRF
from pyro_structured.structures import CliqueTree


def chain_rows(number=400, num_labels=5, seed=0, strength=3.0):
    """Each label depends on the one before, and on a feature."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(number, 3))
    y = np.zeros((number, num_labels), dtype=int)
    for d in range(num_labels):
        logits = X[:, d % 3] + (strength * (y[:, d - 1] - 0.5) if d else 0)
        y[:, d] = rng.random(number) < 1 / (1 + np.exp(-logits))
    return X, y


def named(y):
    """The same labels as names of several types."""
    columns = [["no", "yes"], [0.0, 2.0], [False, True], [-1, 1], ["a", "b"]]
    return [[column[label] for column, label in zip(columns, row, strict=True)] for row in y.tolist()]


class Module(torch.nn.Module):
    """A function of the inputs."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.slow(keep=40)
@parametrize_with_checks([JunctionTreeCRF(), JunctionTreeCRF(l1=0.5, edge_features=True, method="pairwise")])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("edge_features", [False, True])
def test_equals_brute_force(edge_features):
    """Probabilities and the best labels by the weights that the estimator shows."""
    X, y = chain_rows()
    y[:, 3] += (X[:, 0] > 1) * y[:, 3]
    crf = JunctionTreeCRF(treewidth=2, edge_features=edge_features).fit(X[:200], y[:200])
    values = np.array(list(itertools.product(*map(range, map(len, crf.classes_)))))
    scores = np.zeros((200, len(values)))
    for d in range(5):
        scores += (X[200:] @ crf.coef_[d].T + crf.intercept_[d])[:, values[:, d]]
    for edge, (i, j) in enumerate(crf.edges_):
        table = crf.edge_intercept_[edge] + np.zeros((200, 1, 1))
        if edge_features:
            table = table + np.einsum("np,stp->nst", X[200:], crf.edge_coef_[edge])
        scores += table[:, values[:, i], values[:, j]]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_array_equal(crf.predict(X[200:]), values[probabilities.argmax(1)])
    for d, found in enumerate(crf.predict_proba(X[200:])):
        expected = np.stack([probabilities[:, values[:, d] == k].sum(1) for k in range(found.shape[1])], 1)
        np.testing.assert_allclose(found, expected, atol=1e-10)
    agrees = (values == y[200:, None]).all(2)
    np.testing.assert_allclose(crf.log_prob(X[200:], y[200:]), np.log(probabilities[agrees]), atol=1e-10)
    gaps = y[200:].astype(float)
    gaps[:, 1] = np.nan
    agrees |= (np.delete(values, 1, 1) == np.delete(y[200:, None], 1, 2)).all(2)
    expected = np.log((probabilities * agrees).sum(1))
    np.testing.assert_allclose(crf.log_prob(X[200:], gaps), expected, atol=1e-10)


def test_labels_of_several_types():
    X, y = chain_rows()
    plain, crf = JunctionTreeCRF().fit(X, y), JunctionTreeCRF().fit(X, named(y))
    assert [each.tolist() for each in crf.classes_] == [["no", "yes"], [0.0, 2.0], [False, True], [-1, 1], ["a", "b"]]
    assert crf.predict(X).tolist() == named(plain.predict(X))
    assert crf.score(X, named(y)) == plain.score(X, y) == (plain.predict(X) == y).all(1).mean()
    assert plain.predict(X).dtype == y.dtype


def test_unseen_and_missing_labels():
    X, y = chain_rows(100)
    crf = JunctionTreeCRF().fit(X, y)
    other = y.astype(float)
    other[0, 0], other[1] = 7, np.nan
    found = crf.log_prob(X, other)
    assert found[0] == -np.inf and found[1] == pytest.approx(0, abs=1e-12) and np.isfinite(found[1:]).all()
    np.testing.assert_allclose(found[2:], crf.log_prob(X, y)[2:])
    right = (crf.predict(X) == y).all(1)
    right[0], right[1] = False, True
    assert crf.score(X, other) == right.mean()


@pytest.mark.parametrize("method", ["chordal", "pairwise", "graph_cut"])
def test_the_chain_is_found(method):
    X, y = chain_rows(2000)
    crf = JunctionTreeCRF(treewidth=1, method=method).fit(X, y)
    assert crf.edges_ == ((0, 1), (1, 2), (2, 3), (3, 4))
    if method == "chordal":
        assert JunctionTreeCRF(treewidth=3).fit(X, y).edges_ == crf.edges_


def test_features_explain_dependence():
    X, y = chain_rows(2000, strength=0.0)
    assert abs(np.corrcoef(y[:, 0], y[:, 3])[0, 1]) > 0.1
    assert JunctionTreeCRF(penalty=1.0).fit(X, y).edges_ == ()


@pytest.mark.parametrize("method", ["chordal", "pairwise", "graph_cut"])
@pytest.mark.parametrize("treewidth", [1, 2, 3])
def test_treewidth_is_never_exceeded(treewidth, method):
    rng = np.random.default_rng(0)
    y = (rng.normal(size=(300, 8)) + rng.normal(size=(300, 1)) > 0).astype(int)
    crf = JunctionTreeCRF(treewidth=treewidth, method=method, penalty=0.0).fit(rng.normal(size=(300, 1)), y)
    assert crf.tree_.treewidth == treewidth
    assert crf.edges_ == crf.tree_.edges


def test_wider_graphs_fit_better():
    rng = np.random.default_rng(0)
    y = (rng.normal(size=(500, 8)) + rng.normal(size=(500, 1)) > 0).astype(int)
    X = np.zeros((500, 1))
    scores = [JunctionTreeCRF(treewidth=k, l2=0.1).fit(X, y).log_prob(X, y).mean() for k in (1, 2, 4)]
    assert scores == sorted(scores)


def test_own_graph():
    X, y = chain_rows()
    cycle = [(1, 0), (1, 2), (2, 3), (3, 4), (4, 0), (0, 1)]
    crf = JunctionTreeCRF(edges=cycle).fit(X, y)
    assert crf.edges_ == ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))
    assert crf.tree_ == CliqueTree.from_edges(cycle, [2] * 5) and crf.tree_.treewidth == 2
    independent = JunctionTreeCRF(edges=[], l2=0.5).fit(X, y)
    peers = [LogisticRegression(C=2.0, tol=1e-8).fit(X, column) for column in y.T]
    for found, peer in zip(independent.predict_proba(X), peers, strict=True):
        np.testing.assert_allclose(found, peer.predict_proba(X), atol=1e-3)


def test_pyro_distribution():
    X, y = chain_rows()
    crf = JunctionTreeCRF().fit(X, y)
    labels = crf.to_pyro(X[:7])
    assert isinstance(labels, JunctionTree) and labels.tree == crf.tree_
    assert labels.batch_shape == (7,) and labels.event_shape == (5,)
    np.testing.assert_allclose(labels.log_prob(torch.from_numpy(y[:7])), crf.log_prob(X[:7], y[:7]))


@pytest.mark.slow
def test_feature_map():
    """Labels that no linear function of the columns tells."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    first = (X[:, 0] * X[:, 1] > 0).astype(int)
    y = np.stack([first, 1 - first], 1)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh())
    before = copy.deepcopy(module.state_dict())
    crf = JunctionTreeCRF(feature_map=module, l2=0.01).fit(X[:400], y[:400])
    assert crf.score(X[400:], y[400:]) > 0.9
    assert JunctionTreeCRF(l2=0.01).fit(X[:400], y[:400]).score(X[400:], y[400:]) < 0.7
    assert crf.coef_[0].shape == (2, 16)
    for name, each in module.state_dict().items():
        assert each.dtype == before[name].dtype and torch.equal(each, before[name])


def test_parts_of_a_feature_map_that_stay():
    X, y = chain_rows(100)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4).requires_grad_(False), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    crf = JunctionTreeCRF(edges=[(0, 1)], feature_map=module).fit(X, y)
    assert torch.equal(crf.feature_map_[0].weight, module[0].weight.double())
    assert not torch.allclose(crf.feature_map_[2].weight, module[2].weight.double())
    with torch.no_grad():
        features = module.double()[:2](torch.from_numpy(X))
    alone = JunctionTreeCRF(edges=[(0, 1)], feature_map=module[2]).fit(features.numpy(), y)
    np.testing.assert_allclose(crf.log_prob(X, y), alone.log_prob(features.numpy(), y))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fit_where_gradients_are_off(mode):
    X, y = chain_rows(50)
    with mode():
        crf = JunctionTreeCRF().fit(X, y)
    np.testing.assert_array_equal(crf.log_prob(X, y), JunctionTreeCRF().fit(X, y).log_prob(X, y))


def test_chosen_by_cross_validation():
    X, y = chain_rows(150)

    def log_likelihood(crf, X, y):
        return crf.log_prob(X, y).mean()

    search = GridSearchCV(JunctionTreeCRF(treewidth=1), {"l2": [1.0, 1e6]}, scoring=log_likelihood, cv=3).fit(X, y)
    assert search.best_params_ == {"l2": 1.0}


def test_constant_labels():
    X, y = chain_rows(100)
    y[:, 1] = 3
    crf = JunctionTreeCRF().fit(X, y)
    assert (crf.predict(X)[:, 1] == 3).all()
    assert crf.predict_proba(X)[1].tolist() == [[1.0]] * 100
    assert all(1 not in edge for edge in crf.edges_)


def test_copies_are_equal():
    X, y = chain_rows(100)
    crf = JunctionTreeCRF(feature_map=torch.nn.Linear(3, 3)).fit(X, y)
    expected = crf.log_prob(X, y)
    for other in (pickle.loads(pickle.dumps(crf)), copy.deepcopy(crf), clone(crf).fit(X, y)):
        np.testing.assert_array_equal(other.log_prob(X, y), expected)


def test_interrupted_training(monkeypatch):
    X, y = chain_rows(100)
    calls = itertools.count()
    clique_logits = ConditionalField.clique_logits

    def interrupt(*arguments):
        if next(calls) == 8:
            raise KeyboardInterrupt
        return clique_logits(*arguments)

    monkeypatch.setattr(ConditionalField, "clique_logits", interrupt)
    with pytest.warns(ConvergenceWarning, match=r"it was interrupted after \d iterations"):
        crf = JunctionTreeCRF(edges=[(0, 1)]).fit(X, y)
    assert crf.log_prob(X, y).mean() > -5 * np.log(2)


def test_interrupted_search(monkeypatch):
    """The edges so far are kept; without any, there is nothing to keep."""
    X, y = chain_rows(1000)
    gain = ConditionalScore.gain

    def interrupt(self, pair, separator):
        if pair == (2, 4):
            raise KeyboardInterrupt
        return gain(self, pair, separator)

    monkeypatch.setattr(ConditionalScore, "gain", interrupt)
    with pytest.raises(KeyboardInterrupt):
        JunctionTreeCRF().fit(X, y)
    monkeypatch.setattr(
        ConditionalScore,
        "gain",
        lambda self, pair, separator: (interrupt if separator else gain)(self, pair, separator),
    )
    with pytest.warns(ConvergenceWarning, match="the search was interrupted: edges so far are kept") as caught:
        crf = JunctionTreeCRF().fit(X, y)
    assert caught[0].filename == __file__
    assert 2 <= len(crf.edges_) < 4 and set(crf.edges_) < {(0, 1), (1, 2), (2, 3), (3, 4)}
    assert crf.log_prob(X, y).mean() > JunctionTreeCRF(edges=[]).fit(X, y).log_prob(X, y).mean()


def test_no_convergence():
    X, y = chain_rows(100)
    with pytest.warns(ConvergenceWarning, match=r"there is no convergence after \d+ iterations"):
        JunctionTreeCRF(edges=[(0, 1)]).fit(X * 1e10, y)
    with pytest.warns(ConvergenceWarning, match="there is no convergence after 2 iterations") as caught:
        JunctionTreeCRF(max_iter=2).fit(X, y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"treewidth": 0}, "treewidth: expected an integer of at least 1, got 0"),
        ({"treewidth": 1.5}, "treewidth: expected an integer of at least 1, got 1.5"),
        ({"max_iter": 0}, "max_iter: expected an integer of at least 1, got 0"),
        ({"l2": -1}, "l2: expected a number of at least 0, got -1"),
        ({"l1": "much"}, "l1: expected a number of at least 0, got 'much'"),
        ({"penalty": np.nan}, "penalty: expected a number of at least 0, got nan"),
        ({"tol": np.inf}, "tol: expected a number of at least 0, got inf"),
        ({"method": "magic"}, r"method: expected one of \('chordal', 'pairwise', 'graph_cut'\), got 'magic'"),
        ({"feature_map": abs}, r"feature_map: expected a torch.nn.Module or None, got builtin_function_or_method"),
        (
            {"feature_map": torch.nn.Flatten(0)},
            r"feature_map: expected an output in float64 of shape \(2, p\), got torch.float64 of shape \(6,\)",
        ),
        (
            {"feature_map": torch.nn.Linear(4, 2)},
            r"feature_map: expected a module for inputs of shape \(N, 3\), got one that fails: .*2x3 and 4x2",
        ),
        ({"feature_map": torch.nn.LSTM(3, 2)}, r"feature_map: expected an output .* of shape \(2, p\), got tuple"),
        (
            {"feature_map": Module(torch.Tensor.float)},
            r"feature_map: expected .* in float64 .* got torch.float32 of shape",
        ),
        ({"feature_map": Module(torch.Tensor.sum)}, r"feature_map: expected .* got torch.float64 of shape \(\)"),
        ({"feature_map": Module(lambda x: x[:1])}, r"feature_map: expected .* shape \(2, p\), got .* shape \(1, 3\)"),
        ({"feature_map": Module(torch.Tensor.log)}, "feature_map: expected finite features, got others"),
        ({"edge_features": 2}, "edge_features: expected True or False, got 2"),
        ({"edges": [(0, 9)]}, r"edges: expected pairs of different variables in range\(5\), got \[0, 9\]"),
        ({"edges": 3}, "edges: expected sequences of integers, got 3"),
    ],
)
def test_wrong_parameters(parameters, message):
    X, y = chain_rows(20)
    with pytest.raises(ValueError, match=message):
        JunctionTreeCRF(**parameters).fit(X, y)


@pytest.mark.parametrize("scale", [1e20, 1e150, 1e306])
def test_features_that_are_too_large(scale):
    X, y = chain_rows(100)
    for edges in (None, [(0, 1)]):
        with pytest.raises(
            ValueError, match=r"X: expected features with which .* got numbers up to 3\.\d+e\+\d+; stand"
        ):
            JunctionTreeCRF(edges=edges).fit(X * scale, y)
    crf = JunctionTreeCRF().fit(X, y)
    assert np.isfinite(crf.log_prob(X * scale, crf.predict(X * scale))).all()
    with pytest.raises(ValueError, match="X: expected features of finite log-weights, got larger ones"):
        crf.predict(np.full((2, 3), 1.7e308))


def test_na_among_features():
    pandas = pytest.importorskip("pandas")
    X, y = chain_rows(20)
    gaps = np.where(X < 0, pandas.NA, X)
    with pytest.raises(ValueError, match="X: expected numbers, got missing ones"):
        JunctionTreeCRF().fit(gaps, y)
    with pytest.raises(ValueError, match="X: expected numbers, got missing ones"):
        JunctionTreeCRF().fit(X, y).predict(gaps)


def test_wrong_data():
    X, y = chain_rows(20)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        JunctionTreeCRF().fit(X, y[:10])
    with pytest.raises(ValueError, match="y: expected at least one label in every column, got none in column 1"):
        JunctionTreeCRF().fit(X, np.where(np.arange(5) == 1, np.nan, y))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        JunctionTreeCRF().fit(X * np.nan, y)
    with pytest.raises(ValueError, match=r"sample_weight: expected shape \(20,\), got \(3,\)"):
        JunctionTreeCRF().fit(X, y, np.ones(3))
    crf = JunctionTreeCRF().fit(X, y)
    with pytest.raises(ValueError, match="y: expected 5 columns, got 4"):
        crf.log_prob(X, y[:, :4])
    with pytest.raises(ValueError, match="X has 2 features, but JunctionTreeCRF is expecting 3"):
        crf.predict(X[:, :2])
