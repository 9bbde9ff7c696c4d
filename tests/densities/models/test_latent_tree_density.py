"""Latent trees as a density estimator."""

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.densities.models import latent_tree_density
from pyro_structured.densities.models.latent_tree_density import mixture_log_probs, stacking_weights
from pyro_structured.distributions import LatentTree, MixtureOfDensities
from pyro_structured.junction_trees.models import tree_fitting
from pyro_structured.models import LatentTreeDensity
from pyro_structured.structures import HiddenTree


@parametrize_with_checks([LatentTreeDensity(n_states=2, n_iter_no_change=1)])
def test_sklearn_checks(estimator, check):
    check(estimator)


def known_tree(number=10, states=3):
    """A latent tree with clear states."""
    generator = torch.Generator().manual_seed(0)
    tree = HiddenTree([max(d - 1, 0) // 2 for d in range(number)], states, 2)
    stay = 3.0 * torch.eye(states).expand(number, -1, -1) + torch.randn(number, states, states, generator=generator)
    emissions = 3 * torch.randn(number, states, 2, generator=generator)
    return LatentTree(stay.double(), emissions.double(), tree)


def test_a_known_density():
    """The likelihood of the true distribution, up to what its parameters cost."""
    d = known_tree()
    torch.manual_seed(0)
    X, held_out = d.sample((20_000,)).numpy(), d.sample((20_000,))
    truth = float(d.log_prob(held_out).mean())
    model = LatentTreeDensity(n_states=4, random_state=0).fit(X)
    assert truth - 0.02 < model.score(held_out.numpy()) < truth + 0.02
    # A tree of the columns alone is worse.
    assert LatentTreeDensity(n_states=1, random_state=0).fit(X).score(held_out.numpy()) < truth - 0.3


def test_missing_values_and_categories():
    d = known_tree()
    torch.manual_seed(0)
    X = d.sample((3000,)).numpy().astype(object)
    X[:, 3] = np.array(["no", "yes"])[X[:, 3].astype(int)]
    X[:, 5] = X[:, 5] + 2 * X[:, 4]  # four categories
    rng = np.random.default_rng(0)
    X[rng.random(X.shape) < 0.2] = None
    model = LatentTreeDensity(n_states=3, random_state=0).fit(X)
    scores = model.score_samples(X)
    assert np.isfinite(scores).all()
    assert model.score_samples([[None] * 10])[0] == pytest.approx(0.0, abs=1e-9)
    assert scores.mean() > LatentTreeDensity(n_states=1, random_state=0).fit(X).score_samples(X).mean() + 0.2
    # The reserve state of a column of four categories is possible, and never drawn.
    strange = X[:1].copy()
    strange[0, 5] = 17
    assert -np.inf < model.score_samples(strange)[0] < scores.mean()
    drawn = model.sample(50, random_state=1)
    assert set(drawn[:, 5]) <= {0, 1, 2, 3} and set(drawn[:, 3]) <= {"no", "yes"}
    assert (model.sample(50, random_state=1) == drawn).all()


def test_several_trees_are_a_mixture():
    torch.manual_seed(0)
    X = known_tree().sample((1000,)).numpy()
    model = LatentTreeDensity(n_states=2, n_trees=3, n_iter_no_change=1, random_state=0).fit(X[:800], X_val=X[800:])
    d = model.to_pyro()
    assert isinstance(d, MixtureOfDensities) and len(d.members) == 3
    assert model.weights_.sum() == pytest.approx(1.0)
    values = torch.from_numpy(X[:50])
    assert torch.allclose(d.log_prob(values), torch.from_numpy(model.score_samples(X[:50])))
    alone = [each.log_prob(torch.from_numpy(X[800:])).mean() for each in d.members]
    assert model.score(X[800:]) >= float(max(alone)) - 1e-6


def test_pieces():
    """Every row once, in pieces, is better than the first piece alone; several times, nearly as good as ``fit``."""
    d = known_tree()
    torch.manual_seed(0)
    X, held_out = d.sample((30_000,)).numpy(), d.sample((5000,)).numpy()
    options = {"n_states": 4, "categories": 2, "random_state": 0}
    model = LatentTreeDensity(**options)
    assert model.partial_fit(X[:3000]) is model
    first = model.score(held_out)
    for piece in np.array_split(X[3000:], 9):
        model.partial_fit(piece)
    assert model.score(held_out) > first + 0.01
    for piece in np.array_split(X, 10) * 5:
        model.partial_fit(piece)
    whole = LatentTreeDensity(**options).fit(X)
    assert model.score(held_out) > whole.score(held_out) - 0.05
    # After whole passes, further rows change little, and the counts stand for all rows.
    before = whole.score(held_out)
    whole.partial_fit(X[:1000])
    assert abs(whole.score(held_out) - before) < 0.02
    for piece in (X[:, :9], np.full((3, 10), 7)):
        with pytest.raises(ValueError, match="features|X: expected categories of column 0"):
            model.partial_fit(piece)


def test_pieces_of_weights_and_trees():
    d = known_tree()
    torch.manual_seed(0)
    X = d.sample((1200,)).numpy()
    twice, weighted = (LatentTreeDensity(n_states=2, n_trees=2, random_state=0) for _ in range(2))
    for piece in np.split(X, 3):
        twice.partial_fit(piece.repeat(2, axis=0))
        weighted.partial_fit(piece, sample_weight=np.full(len(piece), 2.0))
    np.testing.assert_allclose(twice.score_samples(X), weighted.score_samples(X), rtol=1e-4)
    assert len(weighted.to_pyro().members) == 2
    again = LatentTreeDensity(n_states=2, n_trees=2, random_state=0)
    for piece in np.split(X, 3):
        again.partial_fit(piece, sample_weight=np.full(len(piece), 2.0))
    np.testing.assert_array_equal(again.score_samples(X), weighted.score_samples(X))


def test_pieces_of_very_different_weights():
    torch.manual_seed(0)
    X = known_tree().sample((400,)).numpy()
    model = LatentTreeDensity(n_states=2, categories=2, random_state=0).partial_fit(X)
    # Heavy rows are dealt relative to their own piece, in the memory of a piece.
    model.partial_fit(X, sample_weight=np.full(400, 1e15))
    model.partial_fit(X, sample_weight=np.full(400, 1e-15))
    assert np.isfinite(model.score(X)) and model.score(X) > -7
    for size in (1e-200, 1e200):
        with pytest.raises(ValueError, match="^sample_weight: expected a mean from 1e-20 to 1e"):
            model.partial_fit(X, sample_weight=np.full(400, size))


def test_settings_are_chosen_on_validation_rows():
    torch.manual_seed(0)
    X = known_tree().sample((1500,)).numpy()
    options = {"n_iter_no_change": 1, "random_state": 0}
    model = LatentTreeDensity(n_states=[1, 3], smoothing=[1.0, 1e4], **options).fit(X)
    assert (model.n_states_, model.smoothing_) == (3, 1.0)


def test_weights_of_any_size():
    torch.manual_seed(0)
    X = known_tree().sample((300,)).numpy()
    options = {"n_states": 2, "n_iter_no_change": 1, "random_state": 0}
    scores = [
        LatentTreeDensity(**options).fit(X, X_val=X, sample_weight=np.full(300, size)).score(X)
        for size in (1e-250, 1.0, 1e250)
    ]
    assert np.isfinite(scores).all() and scores[2] > scores[0] - 1e-3


@pytest.mark.parametrize("size", [127, 128, 129, 300])
def test_many_categories(size):
    """Whatever type the codes have, missing values have a code of their own."""
    X = np.arange(2 * size).reshape(-1, 1) % size + np.array([[0, 0]])
    X = X.astype(float)
    X[0, 1] = np.nan
    model = LatentTreeDensity(n_states=2, n_iter_no_change=1, random_state=0).fit(X)
    scores = model.score_samples([[np.nan, np.nan], [3.0, np.nan], [3.0, 3.0]])
    assert scores[0] == pytest.approx(0.0, abs=1e-6) and scores[1] == pytest.approx(-np.log(size), abs=0.5)
    assert np.isfinite(scores[2])


def test_rows_with_gaps_and_many_categories_come_in_batches(monkeypatch):
    """Evidence about a row is a number for each category, not only for each latent state."""
    X = np.arange(300).reshape(-1, 1) % 100 + np.array([[0.0, 0.0]])
    X[0, 1] = np.nan
    model = LatentTreeDensity(n_states=2, n_iter_no_change=1, random_state=0).fit(X)
    scores, found, sizes = model.score_samples(X), LatentTree.marginal_log_prob, []

    def spy(distribution, value, observed):
        sizes.append(len(value))
        return found(distribution, value, observed)

    monkeypatch.setattr(LatentTree, "marginal_log_prob", spy)
    monkeypatch.setattr(tree_fitting, "HELD_AT_ONCE", 10_000)
    np.testing.assert_allclose(model.score_samples(X)[1:], scores[1:])
    assert sizes and 2 * 101 * max(sizes) <= 10_000


def test_clusters_are_found_among_as_many_rows_as_fit_into_memory(monkeypatch):
    sizes = []

    class Spy(MiniBatchKMeans):
        def fit(self, X, y=None, sample_weight=None):
            sizes.append(X.size)
            return super().fit(X, y, sample_weight)

    monkeypatch.setattr(latent_tree_density, "MiniBatchKMeans", Spy)
    monkeypatch.setattr(latent_tree_density, "MOST_FEATURES", 2000)
    X = np.arange(300).reshape(-1, 1) % [20, 30]
    model = LatentTreeDensity(n_states=3, n_iter_no_change=1, random_state=0).fit(X)
    assert len(sizes) == 1 and 1000 < sizes[0] <= 2000 and np.isfinite(model.score(X))


def test_constant_columns_and_few_rows():
    X = np.ones((5, 3), dtype=int)
    X[0, 2] = 0
    model = LatentTreeDensity(n_states=8, n_iter_no_change=1, random_state=0).fit(X)
    assert model.score_samples(X).mean() > -2
    assert LatentTreeDensity(n_states=2, n_iter_no_change=1).fit([[1, 0]]).score_samples([[1, 0]])[0] > -2
    assert model.score_samples(np.zeros((1, 3)))[0] < model.score_samples(np.ones((1, 3)))[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_states": 0}, "n_states: expected an integer of at least 1, got 0"),
        ({"n_states": [2, 5000]}, "n_states: expected an integer of at most 4096, got 5000"),
        ({"n_states": []}, r"n_states: expected an integer of at least 1, got \[\]"),
        ({"smoothing": 0.0}, "smoothing: expected more than 0, got 0.0"),
        ({"n_trees": 0}, "n_trees: expected an integer of at least 1, got 0"),
        *(
            ({"device": name}, f"device: expected a device of torch that this machine has, got '{name}'")
            for name in ("nowhere", "meta", "hpu", "privateuseone")
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match="^" + message):
        LatentTreeDensity(**options).fit([[0, 1], [1, 0]])


def test_warning():
    torch.manual_seed(0)
    with pytest.warns(ConvergenceWarning, match="no convergence in 1 passes"):
        LatentTreeDensity(n_states=2, max_iter=1, random_state=0).fit(known_tree().sample((300,)))


def test_mixture_with_subnormal_weights():
    """The member of the largest probability has the smallest weight."""
    log_probs = np.array([[0.0, -5.0], [-np.inf, -5.0], [-np.inf, -np.inf]])
    found = mixture_log_probs(log_probs, np.array([1e-310, 1.0]))
    assert found.tolist() == [-5.0, -5.0, -np.inf]
    assert mixture_log_probs(np.array([[np.nan, -5.0]]), np.array([0.0, 1.0])).tolist() == [-5.0]


def test_stacking_weights():
    """The best weights of a grid."""
    rng = np.random.default_rng(0)
    log_probs, shares = 3 * rng.normal(size=(50, 2)), rng.dirichlet(np.ones(50))
    found = stacking_weights(log_probs, shares)
    grid = np.linspace(0, 1, 1001)
    best = max(grid, key=lambda w: shares @ np.log(np.exp(log_probs) @ [w, 1 - w]))
    assert found[0] == pytest.approx(best, abs=0.01)
    # A member that excludes a row has the others beside it.
    log_probs[:, 1] = -np.inf
    assert stacking_weights(log_probs, shares)[0] == pytest.approx(1.0)
