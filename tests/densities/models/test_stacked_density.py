"""Averages of density estimators: weights, limits of time, interrupts, queries."""

import math
import time
import warnings

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.densities.models import stacked_density
from pyro_structured.distributions import MixtureOfDensities
from pyro_structured.foundation.ops import progress
from pyro_structured.foundation.ops.progress import progress_bar
from pyro_structured.models import LatentTreeDensity, MEVMDensity, StackedDensity, ThinJunctionTree


@parametrize_with_checks(
    [StackedDensity(members=[("one", ThinJunctionTree(treewidth=1)), ("other", ThinJunctionTree(treewidth=2))])]
)
def test_sklearn_checks(estimator, check):
    check(estimator)


def rows(number=600, seed=0):
    """Half of the rows are of three equal columns, half have a parity."""
    rng = np.random.default_rng(seed)
    X = rng.integers(2, size=(number, 6))
    kind = rng.random(number) < 0.5
    X[kind, 1:3] = X[kind, :1]
    X[~kind, 5] = X[~kind, 3] ^ X[~kind, 4]
    return X


SMALL = [
    ("tree", ThinJunctionTree(treewidth=1)),
    ("triples", ThinJunctionTree(treewidth=2)),
    ("blocks", MEVMDensity(n_components=2, n_init=1, random_state=0)),
    ("latent", LatentTreeDensity(n_states=4, n_iter_no_change=1, random_state=0)),
]


def test_never_worse_than_the_best_member_on_validation_rows():
    X, X_val = rows(), rows(300, 1)
    model = StackedDensity(members=SMALL, random_state=0).fit(X, X_val=X_val)
    assert [member.name for member in model.members_] == ["tree", "triples", "blocks", "latent"]
    assert not any(member.note for member in model.members_)
    scores = {member.name: member.score for member in model.members_}
    assert model.score(X_val) > max(scores.values()) - 1e-2
    assert sum(member.weight for member in model.members_) == pytest.approx(1.0)
    for name, estimator in model.estimators_.items():
        assert estimator.score(X_val) == pytest.approx(scores[name])
    # Weights at which no small change helps.
    log_probs = np.stack([each.score_samples(X_val) for each in model.estimators_.values()], 1)
    for step in np.eye(len(model.weights_)) - model.weights_:
        changed = np.exp(log_probs) @ (model.weights_ + 0.05 * step)
        assert np.log(changed).mean() <= model.score(X_val) + 1e-4


def test_distribution():
    X = rows()
    model = StackedDensity(members=SMALL, time_budget=math.inf, random_state=0).fit(X)
    d = model.to_pyro()
    assert isinstance(d, MixtureOfDensities)
    values = torch.from_numpy(X[:50])
    assert torch.allclose(d.log_prob(values), torch.from_numpy(model.score_samples(X[:50])))
    gaps = X[:50].astype(float)
    gaps[:, 2] = np.nan
    observed = torch.arange(6) != 2
    assert torch.allclose(d.marginal_log_prob(values, observed), torch.from_numpy(model.score_samples(gaps)))
    drawn = model.sample(2000, random_state=0)
    assert np.abs(drawn.mean(0) - d.marginals[:, 1].numpy()).max() < 0.05
    assert (model.sample(20, random_state=0) == model.sample(20, random_state=0)).all()


@pytest.mark.slow
def test_default_members():
    binary = StackedDensity(random_state=0, time_budget=60.0).fit(rows(300))
    names = [member.name for member in binary.members_]
    assert names == [
        *("latent trees", "latent trees of few states"),
        *("Chow-Liu tree", "junction tree", "mixture of junction trees"),
        *("exchangeable blocks", "sum-product network"),
    ]
    # Rows with gaps, and more than two categories, in words.
    X = rows(300).astype(object)
    X[:, 0] = np.array(["a", "b", "c"])[rows(300)[:, :2].sum(1)]
    X[3, 2] = None
    words = StackedDensity(random_state=0, time_budget=60.0).fit(X)
    assert [member.name for member in words.members_] == names[:5]
    assert set(words.sample(30, random_state=0)[:, 0]) <= {"a", "b", "c"}
    strange = X[:1].copy()
    strange[0, 0] = "d"
    assert -np.inf < words.score_samples(strange)[0] < words.score_samples(X[:1])[0]


@pytest.mark.slow
def test_large_data_have_fewer_members_and_starts(monkeypatch):
    X, X_val = rows(130), rows(30, 1)
    for most, number, n_init in ((131, 7, 10), (130, 6, 1)):
        monkeypatch.setattr(stacked_density, "FEW_ROWS", most)
        monkeypatch.setattr(stacked_density, "MOST_ENTRIES", X.size if number == 7 else X.size - 1)
        model = StackedDensity(random_state=0, time_budget=10.0)
        model.fit(X, X_val=X_val)
        assert len(model.members_) == number
        blocks = model._candidates(X.astype(np.int8), True, 0)[-2][1]
        assert isinstance(blocks, MEVMDensity) and blocks.n_init == n_init


def test_members_have_the_codes_of_the_average():
    """Also those that only validation rows have; others would be counted from other places."""
    letters = np.random.default_rng(0).choice(list("acd"), size=(200, 1)).repeat(2, axis=1)
    members = [("tree", ThinJunctionTree(treewidth=1)), ("latent", LatentTreeDensity(n_states=2, max_iter=3))]
    options = {"members": members, "categories": list("abcd"), "random_state": 0}
    model = StackedDensity(**options).fit(letters[20:], X_val=np.concatenate([letters[:20], [["b", "b"]]]))
    scores = model.score_samples([[letter, letter] for letter in "abcd"])
    assert scores[1] < scores[[0, 2, 3]].min() - 1
    codes = torch.arange(4).unsqueeze(-1).expand(4, 2)
    assert np.allclose(model.to_pyro().log_prob(codes).numpy(), scores)
    assert set(model.sample(100, random_state=0).ravel()) >= set("acd")


@pytest.mark.parametrize("constant", [True, False])
def test_members_for_two_categories(constant):
    """A column of one or three states is none of theirs, although they take it for one."""
    X = rows(100)
    X[:, 0] = 0 if constant else np.arange(100) % 3
    with pytest.raises(ValueError, match="^members: expected estimators with a parameter categories, as columns have"):
        StackedDensity(members=SMALL, handle_unknown="error", random_state=0).fit(X)
    model = StackedDensity(handle_unknown="error", time_budget=0.5, random_state=0).fit(X)
    assert not any(member.name in ("exchangeable blocks", "sum-product network") for member in model.members_)


def test_gaps_in_validation_rows_alone():
    """Sum-product networks are not judged by such rows."""
    X_val = rows(30, 1).astype(float)
    X_val[0, 0] = np.nan
    model = StackedDensity(time_budget=0.5, random_state=0).fit(rows(100), X_val=X_val)
    assert [member.name for member in model.members_][-1] == "exchangeable blocks"


class Scored(ThinJunctionTree):
    """Log-probabilities that are a function of the first entry."""

    def __init__(self, scores=()):
        super().__init__(treewidth=1)
        self.scores = scores

    def score_samples(self, X):
        return np.array(self.scores)[np.asarray(X)[:, 0].astype(int)]


def weigh(X_val, *scores):
    members = [(str(place), Scored(each)) for place, each in enumerate(scores)]
    return StackedDensity(members=members, random_state=0).fit(rows(50), X_val=X_val)


def test_weights_where_rows_are_impossible():
    X_val = rows(2000)
    X_val[:, 0] = np.arange(2000) == 0
    # A single row needs the first member.
    rare = weigh(X_val, (-3.0, -3.0), (-1.0, -np.inf))
    assert -np.inf < rare.members_[0].score < rare.score(X_val)
    # A row that no member allows leaves weights to the others.
    X_val[1::2, 0] = 1
    none = weigh(X_val, (-3.0, -np.inf), (-1.0, -np.inf))
    assert none.members_[1].weight > 0.9 and (none.score_samples(X_val[1::2]) == -np.inf).all()


def test_members_that_are_almost_alike():
    X_val = rows(100)
    close = weigh(X_val, (-1.0, -1.0), (-1.0, -1.001))
    assert close.score(X_val) >= max(member.score for member in close.members_)


class Slow(ThinJunctionTree):
    """An estimator that improves for a million seconds, and keeps what it has when it is interrupted."""

    clock = 0.0

    def fit(self, X, y=None, *, X_val=None, sample_weight=None):
        super().fit(X, X_val=X_val)
        try:
            for _ in progress_bar(range(10**6), desc="slow"):
                Slow.clock += 1.0
        except KeyboardInterrupt:
            warnings.warn("fit was interrupted: the best so far is kept", stacklevel=2)
        return self


def test_time_budget(monkeypatch):
    """Members without time are left out; those whose time is up keep what they have."""
    read = time.monotonic
    monkeypatch.setattr(progress.time, "monotonic", lambda: read() + Slow.clock)
    members = [("slow", Slow(treewidth=1)), SMALL[1], ("slow again", Slow(treewidth=1))]
    model = StackedDensity(members=members, time_budget=3e4, random_state=0).fit(rows())
    assert [member.note for member in model.members_] == ["time was up", "", "time was up"]
    assert np.isfinite([member.score for member in model.members_]).all()
    taken = [member.seconds for member in model.members_]
    assert 9e3 < taken[0] < 11e3 and taken[1] < 1e3 and 19e3 < taken[2] < 21e3
    with pytest.raises(ValueError, match=r"^time_budget: expected time for at least one member, got none in time"):
        StackedDensity(members=SMALL[:1], time_budget=1e-9, random_state=0).fit(rows())


class Late(ThinJunctionTree):
    """An estimator one of whose steps takes a million seconds."""

    def fit(self, X, y=None, *, X_val=None, sample_weight=None):
        super().fit(X, X_val=X_val)
        Slow.clock += 1e6
        return self


def test_no_member_is_begun_after_the_time(monkeypatch):
    read = time.monotonic
    monkeypatch.setattr(progress.time, "monotonic", lambda: read() + Slow.clock)
    members = [("late", Late(treewidth=1)), SMALL[0]]
    model = StackedDensity(members=members, time_budget=1e3, random_state=0).fit(rows())
    assert model.members_[1] == (SMALL[0][0], 0.0, model.members_[1].score, 0.0, "time was up")
    assert list(model.estimators_) == ["late"]


def test_own_members_repeat():
    members = [("latent tree", LatentTreeDensity(n_states=3, max_iter=3))]
    scores = []
    for seed in (0, 0, 1):
        model = StackedDensity(members=members, random_state=seed).fit(rows())
        scores.append(model.score_samples(rows()))
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any() and members[0][1].random_state is None


@pytest.mark.parametrize("weight", [1e-31, 1e31])
def test_extreme_weights(weight):
    X = np.random.default_rng(0).integers(2, size=(200, 4))
    plain, scaled = (
        StackedDensity(time_budget=60, random_state=0, verbose=False).fit(X, sample_weight=np.full(200, each))
        for each in (2.0, weight)
    )
    names = [member.name for member in plain.members_]
    assert names[-1] == "sum-product network" and [member.name for member in scaled.members_] == names[:-1]
    assert np.isfinite(scaled.score_samples(X)).all()


class Interrupted(ThinJunctionTree):
    """An estimator that is interrupted from the keyboard."""

    def fit(self, X, y=None, *, X_val=None, sample_weight=None):
        raise KeyboardInterrupt


def test_an_interrupt_keeps_the_members_so_far():
    members = [SMALL[0], ("interrupted", Interrupted()), SMALL[1]]
    with pytest.warns(UserWarning, match="fit was interrupted: 2 of 3 members were tried"):
        model = StackedDensity(members=members, random_state=0).fit(rows())
    assert list(model.estimators_) == ["tree"] and len(model.members_) == 2
    with pytest.raises(KeyboardInterrupt):
        StackedDensity(members=members[1:], random_state=0).fit(rows())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_budget": 0.0}, "time_budget: expected a number above 0, got 0.0"),
        ({"members": []}, r"members: expected pairs of different names and of estimators .*, got \[\]"),
        ({"members": [("a", 3)]}, "members: expected pairs of different names and of estimators"),
        ({"members": [SMALL[0], SMALL[0]]}, "members: expected pairs of different names and of estimators"),
        ({"members": [("a", ThinJunctionTree)]}, "members: expected pairs of different names and of estimators"),
        ({"members": [SMALL[0], ("a", ThinJunctionTree(treewidth=0))]}, "members: a: treewidth: expected an integer"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match="^" + message):
        StackedDensity(**options).fit(rows(20))
