"""Sum-product networks learned from data whose distribution is known."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.densities.models.exchangeable_spn import hold_out
from pyro_structured.densities.models.region_network import RegionNetwork
from pyro_structured.models import ExchangeableSPN

# Mean log-probability of the data of the next function.
TRUTH = np.log(0.5) + (2 * np.log(1 / 2) + 2 * np.log(1 / 6)) / 2


def classes_of_blocks(number, seed=0):
    """Two classes of two exchangeable blocks: all four are equal, or exactly two are ones."""
    generator = np.random.default_rng(seed)
    equal = generator.integers(2, size=(number, 1, 1))
    coins = generator.integers(2, size=(number, 2, 1)).repeat(4, axis=2)
    two = generator.random((number, 2, 4)).argsort(-1) < 2
    return np.where(equal, coins, two).reshape(number, 8)


@parametrize_with_checks([ExchangeableSPN(n_networks=1, n_states=2, max_iter=3)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_values_are_binarised():
    rows = classes_of_blocks(60)
    expected = small().fit(rows).score_samples(rows)
    shifted = small(binarize=2.5).fit(2 + rows)
    np.testing.assert_array_equal(shifted.score_samples(2 + rows), expected)


def small(**options):
    return ExchangeableSPN(**({"n_networks": 2, "n_states": 4, "smoothing": 2.0, "random_state": 0} | options))


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(1)
    groups = generator.integers(2, size=(1500, 3)).repeat([2, 3, 2], axis=1)
    rows = groups ^ (generator.random(groups.shape) < 0.1)
    return small(max_region_size=3).fit(rows), rows


def test_distribution_is_what_is_scored(fitted):
    model, rows = fitted
    d = model.to_pyro()
    values = d.enumerate_support()
    log_prob = model.score_samples(values.numpy())
    assert np.exp(log_prob).sum() == pytest.approx(1)
    np.testing.assert_allclose(log_prob, d.log_prob(values).numpy())
    assert d.structure.num_networks == 2 and d.structure.num_regions >= 3
    assert model.score(rows) == pytest.approx(model.score_samples(rows).mean())


def test_missing_entries_are_summed_out(fitted):
    model, _ = fitted
    rows = np.array([[1, np.nan, 0, 0, np.nan, 1, 1], [np.nan] * 7, [0, 0, 1, 1, 1, 0, 0]])
    found = model.score_samples(rows)
    np.testing.assert_allclose(model.score_samples(rows[:1]), found[:1])
    for row, log_prob in zip(rows, found, strict=True):
        hidden = np.flatnonzero(np.isnan(row))
        filled = np.repeat(row[None], 2 ** len(hidden), 0)
        filled[:, hidden] = list(itertools.product([0, 1], repeat=len(hidden)))
        assert log_prob == pytest.approx(np.logaddexp.reduce(model.score_samples(filled)), abs=1e-9)


def test_samples_are_like_the_data(fitted):
    model, rows = fitted
    torch.manual_seed(0)
    drawn = model.sample(4000)
    assert drawn.shape == (4000, 7) and drawn.dtype == np.uint8
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(rows.T), atol=0.04)
    np.testing.assert_allclose(drawn.mean(0), rows.mean(0), atol=0.04)


def test_default_dtype_does_not_matter(fitted):
    model, rows = fitted
    torch.set_default_dtype(torch.float64)
    try:
        again = clone(model).fit(rows)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(again.score_samples(rows[:50]), model.score_samples(rows[:50]))


def test_known_structure_is_learned():
    rows, new = classes_of_blocks(6000), classes_of_blocks(2000, seed=1)
    model = small(max_region_size=4).fit(rows)
    assert abs(model.score(new) - TRUTH) < 0.05
    assert model.to_pyro().structure.num_regions == 2
    means = rows.mean(0)
    independent = np.where(new == 1, np.log(means), np.log1p(-means)).sum(1).mean()
    assert model.score(new) > independent + 2


def test_states_join_the_regions():
    rows = classes_of_blocks(6000)
    apart = small(max_region_size=4, n_states=1).fit(rows)
    assert abs(apart.score(rows) - (TRUTH - np.log(2))) < 0.05


@pytest.mark.filterwarnings("ignore:no convergence in 50 steps")
def test_expectation_maximization_improves_the_likelihood():
    generator = np.random.default_rng(2)
    centers = generator.random((5, 12))
    rows = generator.random((3000, 12)) < centers[generator.integers(5, size=3000)]
    model = small(n_states=5, max_region_size=6).fit(rows.astype(int))
    assert len(model.log_likelihoods_) == 2
    for objective in model.log_likelihoods_:
        assert len(objective) > 3 and objective[-1] > objective[0] + 0.02
        assert min(np.diff(objective)) > -1e-3  # trees are chosen with smoothed shares
    # The network with the last parameters was the best one.
    alone = small(n_networks=1, n_states=5, max_region_size=6).fit(rows.astype(int), X_val=rows.astype(int))
    assert alone.score(rows.astype(int)) == pytest.approx(max(alone.log_likelihoods_[0]), abs=1e-4)


def test_validation_rows_end_learning():
    generator = np.random.default_rng(3)
    rows = generator.integers(2, size=(300, 10))
    options = {"n_networks": 1, "n_states": 20, "smoothing": 0.1}
    early = small(**options).fit(rows[:100], X_val=rows[100:200])
    late = small(**options).fit(rows[:100], X_val=rows[:100])
    assert len(early.log_likelihoods_[0]) < len(late.log_likelihoods_[0])
    assert early.score(rows[200:]) > late.score(rows[200:])


def test_smoothing_is_chosen_on_validation_rows():
    rows = classes_of_blocks(600)
    model = small(smoothing=[1e5, 2.0]).fit(rows)
    assert model.smoothing_ == 2.0 and len(model.log_likelihoods_) == 2
    # The same networks as without a choice.
    np.testing.assert_array_equal(model.score_samples(rows), small(smoothing=2.0).fit(rows).score_samples(rows))


def test_validation_rows_are_a_tenth_of_the_rows():
    """Rows are drawn one by one; rows with other weights as they are."""
    weights = np.array([30.0, 0.0, 5.0, 15.0])
    training, judged = hold_out(weights, np.random.RandomState(0))
    assert judged.sum() == 5 and (training + judged == weights).all() and (training >= 0).all()
    drawn = np.mean([hold_out(weights, np.random.RandomState(seed))[1] for seed in range(2000)], 0)
    np.testing.assert_allclose(drawn, weights / 10, atol=0.1)
    training, judged = hold_out(np.array([0.5, 1.0, 1.5]), np.random.RandomState(0))
    assert ((training == 0) ^ (judged == 0)).all() and (judged > 0).sum() == 1
    assert all((each == [0, 1]).all() for each in hold_out(np.array([0.0, 1.0]), np.random.RandomState(0)))


@pytest.mark.parametrize(
    "rows",
    [[[1]], [[0, 1]], [[1, 1, 1]] * 5, np.eye(3, dtype=int), np.zeros((4, 2), dtype=bool)],
    ids=["one variable", "one row", "constant", "few rows", "booleans"],
)
def test_small_data(rows):
    model = small(n_states=3).fit(rows)
    assert np.isfinite(model.score(rows)) and model.sample(3).shape == (3, np.shape(rows)[1])
    assert np.exp(model.score_samples(model.to_pyro().enumerate_support())).sum() == pytest.approx(1)


def test_conventions(fitted):
    model, rows = fitted
    assert clone(model).get_params() == model.get_params() and model.n_features_in_ == 7
    again = clone(model).fit(rows)
    np.testing.assert_array_equal(again.score_samples(rows[:50]), model.score_samples(rows[:50]))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).score_samples(rows), model.score_samples(rows))
    other = clone(model).set_params(random_state=1).fit(rows)
    assert other.score(rows[:50]) != model.score(rows[:50])
    for query in (lambda m: m.score_samples(rows), lambda m: m.sample(), lambda m: m.to_pyro()):
        with pytest.raises(NotFittedError):
            query(clone(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_networks": 0}, "n_networks: expected an integer of at least 1, got 0"),
        ({"n_states": 1.5}, "n_states: expected an integer of at least 1, got 1.5"),
        ({"max_region_size": 0}, "max_region_size: expected an integer"),
        ({"max_iter": 0}, "max_iter: expected an integer"),
        ({"n_states": 10**6}, "n_states: expected an integer of at most 4096, got 1000000"),
        ({"max_iter": 10**30}, "max_iter: expected an integer below 2 \\*\\* 31, got 10+$"),
        ({"random_state": "x"}, "random_state: expected None, an integer .*, got 'x'"),
        ({"binarize": [0]}, r"binarize: expected a number, 'auto' or None, got \[0\]"),
        ({"smoothing": [1.0, 1e7]}, r"smoothing: expected numbers from 0 to 1e\+06, got \[1.0, 10000000.0\]"),
        ({"smoothing": -1.0}, "smoothing: expected a number of at least 0, or several, got -1.0"),
    ],
)
def test_wrong_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options).fit([[0, 1]])


def test_wrong_data(fitted):
    model, rows = fitted
    with pytest.raises(ValueError, match="X: expected zeros, ones and NaN, as binarize is None, got other numbers"):
        small(binarize=None).fit([[0, 2]])
    with pytest.raises(ValueError, match="X_val: expected zeros, ones and NaN, as binarize is None"):
        small(binarize=None).fit([[0, 1]], X_val=[[0, 3]])
    with pytest.raises(ValueError, match="NaN"):
        small().fit([[0, np.nan]])
    with pytest.raises(ValueError, match="X has 6 features, but ExchangeableSPN is expecting 7"):
        model.score_samples(rows[:, :6])


@pytest.mark.parametrize("n_samples", [0, -1, 1.5])
def test_wrong_number_of_samples(fitted, n_samples):
    with pytest.raises(ValueError, match=f"n_samples: expected an integer of at least 1, got {n_samples}"):
        fitted[0].sample(n_samples)


@pytest.mark.parametrize(
    "held_out, message",
    [
        ([[0, np.nan]], "X_val: Input X_val contains NaN"),
        ([[0, 1, 1]], "X_val: expected 2 columns, as in X, got 3"),
        ([0, 1], "X_val: Expected 2D array, got 1D"),
    ],
)
def test_wrong_validation_data(held_out, message):
    with pytest.raises(ValueError, match=message):
        small().fit([[0, 1]], X_val=held_out)


def test_samples_have_a_seed(fitted):
    model, _ = fitted
    state = torch.random.get_rng_state()
    drawn = model.sample(20, random_state=1)
    np.testing.assert_array_equal(model.sample(20, random_state=1), drawn)
    np.testing.assert_array_equal(model.sample(20), model.sample(20, random_state=0))
    assert (model.sample(20) != drawn).any() and torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(ValueError, match="random_state: expected None, an integer .*, got 'x'"):
        model.sample(random_state="x")


@pytest.mark.filterwarnings("ignore:no convergence")
@pytest.mark.parametrize("networks", [0, 1])
def test_an_interrupt_keeps_what_there_is(monkeypatch, networks):
    rows = classes_of_blocks(300)
    whole = small(max_iter=20).fit(rows, X_val=rows)
    expect, number, allowed = RegionNetwork.expect, 0, 3 + networks * len(whole.log_likelihoods_[0])

    def interrupted(self):
        nonlocal number
        number += 1
        if number > allowed:
            raise KeyboardInterrupt
        return expect(self)

    monkeypatch.setattr(RegionNetwork, "expect", interrupted)
    with pytest.warns(UserWarning, match="fit was interrupted: 1 of 2 networks are kept") as caught:
        model = small(max_iter=20).fit(rows, X_val=rows)
    assert caught[0].filename == __file__ and model.to_pyro().structure.num_networks == 1
    assert model.log_likelihoods_ == [whole.log_likelihoods_[0][: None if networks else 3]]
    assert model.score(rows) == pytest.approx(max(model.log_likelihoods_[0]), abs=1e-4)
    with pytest.raises(KeyboardInterrupt):
        small().fit(rows, X_val=rows)


def test_numbers_that_are_binarised_are_named():
    rows = classes_of_blocks(100)
    counts = rows + rows * (np.arange(rows.shape[1]) == 3)
    model = small()
    expected = model.fit(rows).score_samples(rows)
    with pytest.warns(UserWarning, match="X: numbers other than 0 and 1 .* in column 3; binarize=0.0 says") as caught:
        model.fit(counts)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="X: numbers other than 0 and 1 .* in column 3;"):
        np.testing.assert_allclose(model.score_samples(counts), expected)
    with pytest.warns(UserWarning, match="X_val: numbers other than 0 and 1 .* in column 3;"):
        model.fit(rows, X_val=counts)
    model.set_params(binarize=0.0).fit(counts, X_val=counts)


@pytest.mark.parametrize("weight", [1e31, 1e-31])
def test_weights_that_single_precision_does_not_have(weight):
    rows = classes_of_blocks(10)
    with pytest.raises(ValueError, match=r"sample_weight: expected 0, or 1e-30 to 1e\+30, got others"):
        small().fit(rows, sample_weight=np.full(10, weight))


def test_too_few_steps():
    with pytest.warns(ConvergenceWarning, match="no convergence in 1 steps of 2 of 2 networks") as caught:
        small(max_iter=1).fit(classes_of_blocks(100))
    assert caught[0].filename == __file__
