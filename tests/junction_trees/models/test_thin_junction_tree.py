"""Thin junction trees: bounded treewidth, exact queries, missing values, scikit-learn's conventions."""

import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.distributions import JunctionTree
from pyro_structured.foundation.ops import row_pieces
from pyro_structured.junction_trees.models import thin_junction_tree, tree_fitting
from pyro_structured.junction_trees.models.thin_tree_search import TreeSearch, TreeSetting, tree_settings
from pyro_structured.junction_trees.models.tree_fitting import TreeRows, fit_tree_tables
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.models import ThinJunctionTree
from pyro_structured.structures import CliqueTree


def random_data(seed, size=6, number=150, missing=0.0):
    """Every column is a noisy function of an earlier one."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 4, size)
    values = rng.integers(cardinalities, size=(number, size))
    for d in range(1, size):
        copied = rng.random(number) < 0.7
        values[copied, d] = values[copied, int(rng.integers(d))] % cardinalities[d]
    values[rng.random(values.shape) < missing] = -1
    return rng, values, cardinalities.tolist()


def all_states(cardinalities):
    return torch.tensor(list(itertools.product(*map(range, cardinalities))))


# Of what has predict_proba, an old name here, and takes sparse data, these ask for the tags of a classifier.
ONLY_OF_CLASSIFIERS = {f"check_estimator_sparse_{kind}": "a density is no classifier" for kind in ("array", "matrix")}


@parametrize_with_checks(
    [ThinJunctionTree(treewidth=1, smoothing=1.0), ThinJunctionTree(treewidth=2, method="graph_cut")],
    expected_failed_checks=lambda estimator: ONLY_OF_CLASSIFIERS,
)
@pytest.mark.filterwarnings("ignore:predict_proba is now called predict_missing_proba")
def test_scikit_learn(estimator, check):
    check(estimator)


def test_the_old_name_of_a_method_goes_on_working():
    values = np.random.default_rng(0).integers(2, size=(40, 3))
    model = ThinJunctionTree(treewidth=1).fit(values)
    with pytest.warns(FutureWarning, match="predict_proba is now called predict_missing_proba") as caught:
        found = model.predict_proba(values)
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(found, model.predict_missing_proba(values))


# Random weights are in test_graph_cut_search.py, and 2,000 of them in benchmarks/junction_trees/thin_structures.py.
@settings(max_examples=12)
@given(st.integers(0, 10**9), st.integers(1, 4), st.sampled_from([0.0, 0.2]))
def test_width_is_never_exceeded(seed, treewidth, missing):
    rng, values, cardinalities = random_data(seed, int(np.random.default_rng(seed).integers(1, 9)), 80, missing)
    search = TreeSearch(CategoricalRows(values, cardinalities), tolerance=float(rng.choice([0.0, 0.05])))
    for method in ("chordal", "graph_cut"):
        for setting in tree_settings(method, treewidth, (0.0, 1.0), (0.1, 1.0), ("mutual", "least")):
            tree = search.tree(setting)
            assert tree.treewidth <= setting.treewidth
            polished = search.polish(tree, setting._replace(polish=0.001), rng)
            assert polished.treewidth <= setting.treewidth


def test_wider_is_never_worse():
    _, values, cardinalities = random_data(0, 8, 400)
    for method in ("chordal", "graph_cut"):
        scores = []
        for treewidth in (1, 2, 3):
            model = ThinJunctionTree(treewidth=treewidth, method=method).fit(values[:300], X_val=values[300:])
            scores.append(max(each.score for each in model.candidates_))
            assert model.score(values[300:]) == pytest.approx(scores[-1], abs=1e-9)
            assert model.tree_.treewidth <= treewidth
        assert scores == sorted(scores)


def test_spanning_trees_of_graph_cuts_are_chow_and_liu_s():
    from scipy.sparse.csgraph import minimum_spanning_tree

    from pyro_structured.junction_trees.ops.categorical_rows import mutual_information

    _, values, cardinalities = random_data(3, 8, 400)
    rows = CategoricalRows(values, cardinalities)
    information = mutual_information(rows)
    np.fill_diagonal(information, 0.0)
    tree = TreeSearch(rows).tree(TreeSetting(1, 0.0, "mutual"))
    assert sum(information[edge] for edge in tree.edges) == pytest.approx(-minimum_spanning_tree(-information).sum())


@given(st.integers(0, 10**6))
@settings(max_examples=12)
def test_queries_are_those_of_brute_force(seed):
    _, values, cardinalities = random_data(seed, 5, 60, missing=0.2)
    data = np.where(values < 0, np.nan, values)
    data[0] = 0
    names = [list(range(size)) for size in cardinalities]
    model = ThinJunctionTree(treewidth=2, smoothing=1.0, penalty=0.25, categories=names).fit(data)
    states = all_states(cardinalities)
    joint = np.exp(model.score_samples(states.numpy()))
    assert joint.sum() == pytest.approx(1.0)
    rows = data[:8]
    log_probs, posteriors = model.score_samples(rows), model.predict_missing_proba(rows)
    for index, row in enumerate(rows):
        known = ~np.isnan(row)
        agrees = (states.numpy()[:, known] == row[known]).all(1)
        assert log_probs[index] == pytest.approx(np.log(joint[agrees].sum()))
        for d, size in enumerate(cardinalities):
            expected = [joint[agrees & (states[:, d].numpy() == state)].sum() for state in range(size)]
            assert posteriors[index, d, :size] == pytest.approx(np.array(expected) / joint[agrees].sum())
            assert not posteriors[index, d, size:].any()


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 20.0]))
@settings(max_examples=12)
def test_objective_never_falls(seed, smoothing):
    _, values, cardinalities = random_data(seed, 5, 60, missing=0.3)
    rows = CategoricalRows(values, cardinalities)
    tree = TreeSearch(rows).tree(TreeSetting(2, 0.0))
    found, objectives = fit_tree_tables(TreeRows(rows, tree), smoothing, max_iter=1000)
    assert (np.diff(objectives) > -1e-12).all() and len(objectives) > 1
    if not smoothing:
        known = torch.from_numpy(rows.observed.T)
        log_probs = found.marginal_log_prob(torch.from_numpy(rows.values.T).clamp(min=0), known)
        expected = float(log_probs @ torch.from_numpy(rows.weights)) / rows.total
        # After the largest number of iterations, there is one more step than objectives.
        assert -1e-12 < expected - objectives[-1] < (1e-4 if len(objectives) == 1000 else 1e-12)


def test_missing_at_random_leads_to_the_same_tables():
    rng = np.random.default_rng(1)
    tree = CliqueTree.chain(4, 3)
    true = JunctionTree(torch.from_numpy(rng.normal(size=tree.table_size)), tree)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = true.sample((40_000,)).numpy()
    values = np.where(rng.random(values.shape) < 0.3, -1, values)
    found, _ = fit_tree_tables(TreeRows(CategoricalRows(values, tree.cardinalities), tree), 1.0)
    assert (found.clique_marginals - true.clique_marginals).abs().max() < 0.01


def test_complete_rows_need_no_iterations():
    _, values, cardinalities = random_data(2)
    rows = CategoricalRows(values, cardinalities)
    tree = CliqueTree.from_edges([(0, 1), (1, 2)], cardinalities)
    found, objectives = fit_tree_tables(TreeRows(rows, tree), 2.0)
    assert objectives == []
    # The same rows, with one entry of a variable of one state missing.
    alone = values.copy()
    alone[0, cardinalities.index(1) if 1 in cardinalities else 5] = -1
    again, _ = fit_tree_tables(TreeRows(CategoricalRows(alone, cardinalities), tree), 2.0, tol=0.0)
    assert (found.clique_marginals - again.clique_marginals).abs().max() < 0.02


def test_categories_of_any_kind():
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green"], 300)
    data = np.array([color, np.where(color == "red", 1.5, 7.0), rng.choice([True, None], 300)], dtype=object).T
    data[0, 0] = None
    model = ThinJunctionTree(treewidth=1, categories=[["red", "green", "blue"], [7.0, 1.5], [False, True]]).fit(data)
    assert [column.tolist() for column in model.categories_] == [["red", "green", "blue"], [7.0, 1.5], [False, True]]
    drawn = model.sample(50)
    assert set(drawn[:, 0]) <= {"red", "green", "blue"} and (1.5 == drawn[drawn[:, 0] == "red", 1]).mean() > 0.9
    probabilities = model.predict_missing_proba([["red", np.nan, None]])
    assert probabilities[0, 1, 1] > 0.9 and probabilities[0, 0].tolist() == [1.0, 0.0, 0.0]
    assert np.isfinite(model.score_samples([["blue", 7.0, False]])).all()
    assert (
        model.sample(2).dtype == object
        and ThinJunctionTree(treewidth=1).fit([[1, 2], [0, 2]]).sample().dtype.kind in "iu"
    )


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"kind": ["a", "b", None, "a"], "size": [1.0, 2.0, np.nan, 1.0]})
    model = ThinJunctionTree(treewidth=1).fit(frame)
    assert np.isfinite(model.score_samples(frame)).all()


@pytest.mark.parametrize("kind", [object, "string"])
def test_columns_of_data_frames_with_na(kind):
    pandas = pytest.importorskip("pandas")
    kinds, sizes = ["a", "b", pandas.NA, "a", "a"], [1, 2, 1, pandas.NA, 1]
    frame = pandas.DataFrame({"kind": pandas.Series(kinds, dtype=kind), "size": pandas.Series(sizes, dtype="Int64")})
    model = ThinJunctionTree(treewidth=1, random_state=0).fit(frame)
    assert [column.tolist() for column in model.categories_] == [["a", "b"], [1, 2]]
    gaps = np.array([["a", 1], ["b", 2], [None, 1], ["a", None], ["a", 1]], dtype=object)
    expected = ThinJunctionTree(treewidth=1, random_state=0).fit(gaps).score_samples(gaps)
    np.testing.assert_array_equal(model.score_samples(frame), expected)


def test_categories_as_an_array():
    given = np.array([["a", "b"], ["y", "x"]])
    model = ThinJunctionTree(treewidth=1, categories=given).fit([["a", "x"], ["b", "x"]])
    assert [column.tolist() for column in model.categories_] == given.tolist()


def test_bad_input():
    data = np.array([[0, 1], [1, 0], [1, 1]])
    for arguments, message in [
        ({"treewidth": 0}, "treewidth: expected"),
        ({"method": "greedy"}, r"method: expected one of \('chordal', 'graph_cut'\), got 'greedy'"),
        ({"penalty": -1}, "penalty: expected a number of at least 0, or several, got -1"),
        ({"smoothing": ()}, "smoothing: expected a number of at least 0"),
        ({"discount": "x"}, "discount: expected a number"),
        ({"information": "entropy"}, r"information: expected some of \('mutual', 'least'\), got 'entropy'"),
        ({"information": None}, r"information: expected some of .*, got None"),
        ({"information": [["mutual"]]}, r"information: expected some of .*, got \[\['mutual'\]\]"),
        ({"tolerance": [1, 2]}, r"tolerance: expected one number, got \[1, 2\]"),
        ({"polish": [0.0]}, r"polish: expected one number, got \[0.0\]"),
        ({"polish": -1.0}, "polish: expected a number of at least 0"),
        ({"categories": "all"}, "categories: expected 'auto', a list for each column, .* for all columns, got 'all'"),
        ({"categories": 0}, "categories: expected 'auto', a list for each column, .* for all columns, got 0"),
        ({"categories": 10**9}, "categories: expected 'auto', .* up to 65536, for all columns, got 1000000000"),
        ({"categories": True}, "categories: expected 'auto', a list for each column, .* for all columns, got True"),
        ({"categories": np.array(2)}, "categories: expected 'auto', a list for each column, .* got array\\(2\\)"),
        ({"categories": None}, "categories: expected 'auto', a list for each column, .* for all columns, got None"),
        ({"categories": {0, 1}}, "categories: expected 'auto', a list for each column, .* for all columns, got {0, 1}"),
        ({"categories": [{0, 1}, [0, 1]]}, "categories: expected 'auto', a list for each column"),
        ({"categories": [[0, 1], 1]}, r"categories: expected 'auto', a list for each column, .* got \[\[0, 1\], 1\]"),
        (
            {"categories": [2, 2]},
            "categories: expected different values, at least one, none missing, for column 0, got",
        ),
        ({"categories": ["ab", "cd"]}, r"X: expected categories of column 0 among \['ab', 'cd'\], got 0 in row 0"),
        ({"categories": 1}, r"X: expected categories of column 1 among \[0\], got 1 in row 0"),
        (
            {"handle_unknown": "ignore"},
            r"handle_unknown: expected one of \('other', 'error', 'missing'\), got 'ignore'",
        ),
        ({"handle_unknown": None}, "handle_unknown: expected one of .*, got None"),
        ({"random_state": "x"}, "random_state: expected None, an integer .*, got 'x'"),
        ({"categories": [[], [0, 1]]}, "categories: expected different values, at least one, .* for column 0, got"),
        ({"categories": [[0, 1]]}, "categories: expected one list for each of 2 columns, got 1"),
        ({"categories": [[0], [0, 1]]}, r"X: expected categories of column 0 among \[0\], got 1 in row 1"),
        (
            {"categories": [[0, 0], [0, 1]]},
            "categories: expected different values, at least one, none missing, for column 0",
        ),
        (
            {"categories": [[0, 1], [np.nan, 0, 1]]},
            "categories: expected different values, at least one, none missing, for column 1",
        ),
        ({"max_iter": 0}, "max_iter: expected"),
        ({"treewidth": 2**63}, "treewidth: expected an integer below 2 \\*\\* 31, got 9223372036854775808"),
        ({"method": ["chordal"]}, r"method: expected one of \('chordal', 'graph_cut'\), got \['chordal'\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            ThinJunctionTree(**arguments).fit(data)
    with pytest.raises(ValueError, match="X: expected at least one value in each column, got only missing"):
        ThinJunctionTree().fit([[np.nan, 1.0], [np.nan, 0.0]])
    model = ThinJunctionTree().fit(data)
    with pytest.raises(ValueError, match=re.escape("X: expected categories of column 1 among [0, 1], got")):
        model.score_samples([[0, 2]])
    with pytest.raises(ValueError, match="X_val: expected 2 columns, as in X, got 3"):
        model.fit(data, X_val=[[0, 1, 2]])
    with pytest.raises(ValueError, match="X_val: expected categories of column 0"):
        model.fit(data, X_val=[[5, 1]])
    with pytest.raises(ValueError, match="X: expected rows of positive probability, got others, such as row 1"):
        ThinJunctionTree(treewidth=1, smoothing=0.0).fit([[0, 1], [1, 0]] * 20).predict_missing_proba([[0, 1], [0, 0]])
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(0)


@pytest.mark.parametrize("penalty", [0.0, 0.25, 0.5, 1.0])
def test_constants_are_alone(penalty):
    values = np.hstack([np.random.default_rng(0).integers(2, size=(500, 4)), np.zeros((500, 4), dtype=int)])
    for rows in (values, np.where(np.eye(500, 8) > 0, -1, values)):
        tree = TreeSearch(CategoricalRows(rows, values.max(0) + 1)).tree(TreeSetting(3, penalty))
        assert all(max(edge) < 4 for edge in tree.edges)


def test_large_tables_are_avoided():
    values = np.arange(2000)[:, None] // np.array([1, 1, 1, 2, 2])
    for method in ("chordal", "graph_cut"):
        model = ThinJunctionTree(
            treewidth=4, method=method, penalty=0.0, discount=0.1, information="mutual", smoothing=1.0
        )
        model.fit(values % 500, X_val=values[:10] % 500)
        assert max(model.tree_.table_sizes) <= 2**20


def test_an_interrupt_keeps_the_best_tree(monkeypatch):
    _, values, _ = random_data(0)
    found = TreeSearch.tree

    def interrupted(self, setting):
        if setting.penalty == 0.25:
            raise KeyboardInterrupt
        return found(self, setting)

    monkeypatch.setattr(TreeSearch, "tree", interrupted)
    with pytest.warns(UserWarning, match="fit was interrupted: the best tree so far is kept"):
        model = ThinJunctionTree(treewidth=2).fit(values)
    assert len(model.candidates_) == 2 and np.isfinite(model.score(values))
    with pytest.raises(KeyboardInterrupt):
        ThinJunctionTree(treewidth=2, penalty=0.25).fit(values)


def test_an_interrupt_keeps_the_last_tables(monkeypatch):
    """In the iterations that learn the tables of the best tree from rows with gaps."""
    _, values, _ = random_data(0)
    gappy = np.where(np.random.default_rng(0).random(values.shape) < 0.3, np.nan, values)
    number, allowed, expectation = 0, np.inf, tree_fitting._expectation

    def counted(entries, distribution):
        nonlocal number
        number += 1
        if number > allowed:
            raise KeyboardInterrupt
        return expectation(entries, distribution)

    monkeypatch.setattr(tree_fitting, "_expectation", counted)
    model = ThinJunctionTree(treewidth=1, penalty=0.5, smoothing=1.0)
    whole = clone(model).fit(gappy, X_val=gappy[:20])
    number, allowed = 0, number - len(whole.log_likelihoods_) + 3
    with pytest.warns(UserWarning, match="fit was interrupted: the tables of the last iteration are kept") as caught:
        model.fit(gappy, X_val=gappy[:20])
    assert caught[0].filename == __file__ and model.log_likelihoods_ == whole.log_likelihoods_[:3]
    assert model.tree_ == whole.tree_ and whole.score(gappy) - 0.1 < model.score(gappy) < whole.score(gappy)


def test_polishing_is_judged_too():
    _, values, _ = random_data(4, 8, 300)
    model = ThinJunctionTree(treewidth=3, method="graph_cut", polish=0.1, random_state=0).fit(values)
    assert [each.setting.polish > 0 for each in model.candidates_[-2:]] == [False, True]
    best = max(model.candidates_, key=lambda each: each.score)
    assert model.tree_ == best.tree and model.smoothing_ == best.smoothing and model.tree_.treewidth <= 3


def test_picture():
    pytest.importorskip("matplotlib")
    _, values, _ = random_data(5, 8)
    model = ThinJunctionTree(treewidth=2, penalty=0.0).fit(values)
    ax = model.plot()
    assert len(ax.texts) == len(model.tree_.cliques) and len(ax.lines) == len(model.separators_)
    shown = "".join(text.get_text() for text in model.plot(feature_names=list("abcdefgh")).texts)
    assert shown.count("•") == 8 and "a" in shown
    with pytest.raises(ValueError, match="feature_names: expected 8, one for each column, got 1"):
        model.plot(feature_names=["a"])


@pytest.fixture(scope="module")
def words():
    """A constant column, one of two and one of three values, and the same with values that those do not have."""
    rng = np.random.default_rng(0)
    rows = np.array([["a"] * 200, rng.choice(["a", "b"], 200), rng.choice(["a", "b", "c"], 200)], dtype=object).T
    other = rows[:3].copy()
    other[0, 0], other[1, 2] = "z", "z"
    return rows, other


def test_unknown_values_have_a_reserve_state(words):
    rows, other = words
    model = ThinJunctionTree(treewidth=2, penalty=0.0, smoothing=3.0, random_state=0).fit(rows)
    assert model.to_pyro().tree.cardinalities == (2, 2, 4)
    assert [column.tolist() for column in model.categories_] == [["a"], ["a", "b"], ["a", "b", "c"]]
    # All of the states are all there is.
    states = all_states((2, 2, 4))
    assert model.to_pyro().log_prob(states).exp().sum() == pytest.approx(1.0)
    values = np.array(["a", "b", "c", "z"], dtype=object)[states.numpy()]
    values[values[:, 0] == "b", 0] = "z"
    np.testing.assert_allclose(model.score_samples(values), model.to_pyro().log_prob(states))
    # As if one in so many pseudo-observations as there are rows, and states, had it.
    assert np.exp(model.score_samples([["z", None, None]]))[0] == pytest.approx(3 / 203 / 202)
    assert np.exp(model.score_samples([[None, None, "z"]]))[0] == pytest.approx(3 / 203 / 204)
    with pytest.raises(
        ValueError, match=r"X: expected categories of column 1 among \['a', 'b'\], got 'z' in row 0; give"
    ):
        model.score_samples([["a", "z", "a"]])


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_reserve_states_and_gaps(missing):
    _, values, cardinalities = random_data(1, missing=missing)
    rows = CategoricalRows(values, [size + 1 for size in cardinalities], known=cardinalities)
    tree = TreeSearch(rows).tree(TreeSetting(2, 0.5))
    assert tree.edges == TreeSearch(CategoricalRows(values, cardinalities)).tree(TreeSetting(2, 0.5)).edges
    found, objectives = fit_tree_tables(TreeRows(rows, tree), 5.0, tol=0.0)
    assert (np.diff(objectives) > -1e-12).all() and bool(objectives) == bool(missing)
    for marginals, size in zip(found.marginals, cardinalities, strict=True):
        least = 5 / (rows.total + 5) / (rows.total + size + 1)
        assert least * (1 - 1e-9) < marginals[size] < least * (2 if missing else 1 + 1e-9)


def test_unknown_values_cost_those_that_are_known_next_to_nothing(words):
    rows, _ = words
    model = ThinJunctionTree(treewidth=2, penalty=0.0, smoothing=1.0, random_state=0).fit(rows)
    plain = ThinJunctionTree(treewidth=2, penalty=0.0, smoothing=1.0, handle_unknown="error", random_state=0).fit(rows)
    assert model.tree_.cliques == plain.tree_.cliques and plain.to_pyro().tree.cardinalities == (1, 2, 3)
    assert abs(model.score(rows) - plain.score(rows)) < 1e-3


def test_unknown_values_that_are_errors_or_missing(words):
    rows, other = words
    model = ThinJunctionTree(treewidth=1, handle_unknown="error", random_state=0).fit(rows)
    with pytest.raises(ValueError, match=r"X: expected categories of column 0 among \['a'\], got 'z' in row 0"):
        model.score_samples(other)
    with pytest.raises(ValueError, match=r"X_val: expected categories of column 0 among \['a'\], got 'z' in row 0"):
        model.fit(rows, X_val=other)
    model = ThinJunctionTree(treewidth=1, handle_unknown="missing", random_state=0).fit(rows, X_val=other)
    gaps = np.where(other == "z", None, other)
    np.testing.assert_array_equal(model.score_samples(other), model.score_samples(gaps))
    np.testing.assert_array_equal(model.predict_missing_proba(other), model.predict_missing_proba(gaps))
    missing = ThinJunctionTree(treewidth=1, handle_unknown="missing", categories=["a", "b"], random_state=0).fit(rows)
    assert missing.tree_.cardinalities == (2, 2, 2) and np.isfinite(missing.score(rows))


def test_unknown_values_are_impossible_without_smoothing(words):
    rows, other = words
    frame = pytest.importorskip("pandas").DataFrame(rows, columns=["kind", "side", "size"])
    model = ThinJunctionTree(treewidth=1, smoothing=0.0, random_state=0).fit(frame)
    with pytest.warns(UserWarning, match="X: without smoothing, .* -inf: columns 'kind', 'size'$"):
        log_probs = model.score_samples(frame.iloc[:3].assign(kind=["z", "a", "a"], size=["a", "z", "a"]))
    assert np.isneginf(log_probs).tolist() == [True, True, False]
    with pytest.warns(UserWarning, match="X_val: without smoothing, .* -inf: columns 0, 2$"):
        ThinJunctionTree(treewidth=1, smoothing=0.0, random_state=0).fit(rows, X_val=other)


def test_unknown_values_among_validation_rows_choose_a_smoothing(words):
    rows, other = words
    model = ThinJunctionTree(treewidth=1, smoothing=(0.0, 1.0, 50.0), random_state=0).fit(
        rows, X_val=np.vstack([rows, other])
    )
    assert model.smoothing_ > 0 and np.isfinite(max(each.score for each in model.candidates_))


def test_unknown_values_given_and_where_nothing_is_known(words):
    rows, _ = words
    model = ThinJunctionTree(treewidth=2, penalty=0.0, smoothing=3.0, random_state=0).fit(rows)
    found = model.predict_missing_proba([["z", None, "c"], [None, None, "z"]])
    assert found.shape == (2, 3, 4)
    assert found[0, 0].tolist() == [0.0, 1.0, 0.0, 0.0] and found[0, 2].tolist() == [0.0, 0.0, 1.0, 0.0]
    np.testing.assert_allclose(found.sum(-1), 1.0)
    joint = model.to_pyro().log_prob(all_states((2, 2, 4))).exp().reshape(2, 2, 4)
    np.testing.assert_allclose(found[0, 1, :2], joint[1, :, 2] / joint[1, :, 2].sum())
    np.testing.assert_allclose(found[1, 0, :2], joint[:, :, 3].sum(1) / joint[:, :, 3].sum())


def test_samples_are_of_known_values():
    """Samples are known values, even with so much smoothing that unknown values are frequent."""
    rows = np.array([[0, 0, 5], [0, 1, 6], [0, 2, 7], [0, 1, 6]])
    model = ThinJunctionTree(treewidth=2, smoothing=100.0, penalty=0.0, random_state=0).fit(rows, X_val=rows)
    drawn = model.sample(20_000)
    states = all_states((1, 3, 3))
    assert model.to_pyro().tree.cardinalities == (2, 4, 4)
    expected = model.to_pyro().log_prob(states).exp()
    assert expected.sum() < 0.8
    counts = (drawn[:, None] == states.numpy() + [0, 0, 5]).all(2).sum(0)
    assert counts.sum() == len(drawn)
    np.testing.assert_allclose(counts / len(drawn), expected / expected.sum(), atol=0.02)


def test_one_list_or_number_of_categories_for_all_columns():
    data = np.array([[0, 1], [1, 0], [1, 1]])
    for categories, found in [
        (3, [0, 1, 2]),
        (np.int64(2), [0, 1]),
        ([1, 0], [1, 0]),
        (np.arange(3), [0, 1, 2]),
        (torch.arange(3), [0, 1, 2]),
    ]:
        model = ThinJunctionTree(treewidth=1, categories=categories).fit(data)
        assert [column.tolist() for column in model.categories_] == [found] * 2
        assert model.to_pyro().tree.cardinalities == (len(found),) * 2
    model = ThinJunctionTree(treewidth=1, categories=["no", "yes"]).fit([["no", "yes"]])
    assert [column.tolist() for column in model.categories_] == [["no", "yes"]] * 2
    with pytest.raises(
        ValueError, match=r"X: expected categories of column 0 among \['no', 'yes'\], got 'nein' in row 0"
    ):
        model.score_samples([["nein", "no"]])


def test_measurements_are_no_categories():
    data = np.random.default_rng(0).normal(size=(100, 3))
    data[:, 1] = data[:, 1] > 0
    with pytest.warns(UserWarning, match="each of more than 20 different numbers, .* columns 0, 2; put them into bins"):
        model = ThinJunctionTree(treewidth=1).fit(data)
    assert len(model.categories_[0]) == 100
    # Halves are as good as integers, and lists of categories are what they are.
    ThinJunctionTree(treewidth=1).fit(data.round() / 2)
    ThinJunctionTree(treewidth=1, smoothing=1.0, categories=[np.unique(column) for column in data.T]).fit(data)


def test_samples_have_a_seed():
    _, values, _ = random_data(3)
    model = ThinJunctionTree(treewidth=1, penalty=1.0, smoothing=1.0).fit(values, X_val=values)
    state = torch.random.get_rng_state()
    first = model.sample(20, random_state=3)
    np.testing.assert_array_equal(model.sample(20, random_state=3), first)
    assert (model.sample(20, random_state=4) != first).any()
    np.testing.assert_array_equal(model.set_params(random_state=3).sample(20), first)
    generator = np.random.RandomState(0)
    assert (model.sample(20, random_state=generator) != model.sample(20, random_state=generator)).any()
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        free = model.set_params(random_state=None).sample(20)
        assert (model.sample(20) != free).any()
        torch.manual_seed(0)
        np.testing.assert_array_equal(model.sample(20), free)
    with pytest.raises(ValueError, match="random_state: expected None, an integer .*, got 'x'"):
        model.sample(random_state="x")


def test_more_treewidth_than_columns():
    data = np.array([[0, 1], [1, 0], [1, 1]])
    model = ThinJunctionTree(treewidth=2**30, penalty=0.0, smoothing=1.0).fit(data)
    assert model.tree_.treewidth == 1 and len(model.candidates_) == 1


def test_columns_without_order():
    things = [object(), object()]
    with pytest.raises(ValueError, match="X: expected categories that have an order, got others in column 0; give"):
        ThinJunctionTree(treewidth=1).fit([[things[0]], [things[1]]])
    model = ThinJunctionTree(treewidth=1, categories=[things]).fit([[things[0]], [things[1]]])
    assert np.isfinite(model.score([[things[1]]]))
    with pytest.raises(ValueError, match="X: expected numbers, strings or other categories in column 0: unhashable"):
        ThinJunctionTree(treewidth=1).fit(np.array([[[0], 1], [{}, 1]], dtype=object))


def test_too_many_categories_for_cuts():
    with pytest.raises(
        NotImplementedError, match="method: 'graph_cut' counts pairs of all categories, .* 20000 in X, mo"
    ):
        ThinJunctionTree(treewidth=1, method="graph_cut", categories=10_000).fit([[0, 1], [1, 0]])


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_files_are_read_in_pieces(tmp_path, monkeypatch, missing):
    """The same tree and tables as from an array of large integers, all rows of which are one piece."""
    rng = np.random.default_rng(0)
    X = rng.integers(4, size=(400, 6))
    X[:, 1::2] = np.where(rng.random((400, 3)) < 0.7, X[:, ::2], X[:, 1::2])
    X[:380, 5] %= 3  # so that not all pieces have all categories
    held_out = X[::7].copy()
    held_out[-1, 0] = 9  # not among the categories
    if missing:
        X = np.where(rng.random(X.shape) < missing, np.nan, X)
    path = tmp_path / "rows.npy"
    np.save(path, X.astype("float32" if missing else "uint8"))
    settings = {"treewidth": 2, "smoothing": (1.0, 10.0), "max_iter": 5}
    whole = ThinJunctionTree(**settings, random_state=0).fit(X, X_val=held_out)
    monkeypatch.setattr(row_pieces, "ROWS_AT_ONCE", 64)
    pieces = ThinJunctionTree(**settings, random_state=0).fit(np.load(path, mmap_mode="r"), X_val=held_out)
    assert pieces.tree_ == whole.tree_ and pieces.smoothing_ == whole.smoothing_
    assert [each.setting for each in pieces.candidates_] == [each.setting for each in whole.candidates_]
    for one, other in zip(pieces.categories_, whole.categories_, strict=True):
        assert np.array_equal(one, other)
    assert pieces.to_pyro().clique_logits == pytest.approx(whole.to_pyro().clique_logits, abs=1e-9)
    assert pieces.score_samples(held_out) == pytest.approx(whole.score_samples(held_out), abs=1e-9)


def test_the_first_unknown_value_is_named_in_pieces_too(monkeypatch):
    monkeypatch.setattr(row_pieces, "ROWS_AT_ONCE", 3)
    X = np.zeros((10, 3), dtype=int)
    X[::2] = 1
    model = ThinJunctionTree(treewidth=1, handle_unknown="error").fit(X)
    X[[8, 7, 7], [0, 2, 1]] = [5, 6, 7]
    with pytest.raises(ValueError, match=r"categories of column 1 among \[0, 1\], got 7 in row 7"):
        model.score_samples(X)
    X[:] = 2
    with pytest.warns(UserWarning, match="none of 10 values"), pytest.raises(ValueError, match="got 2 in row 0"):
        model.score_samples(X)


def tables_of_all(model, X, weights=None):
    """Tables of the model's tree from all rows at once."""
    rows = CategoricalRows(model._read(X), model._num_states, weights, known=model._num_known)
    return fit_tree_tables(TreeRows(rows, model.tree_), model.smoothing_)[0].clique_logits


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 100.0])
@pytest.mark.parametrize("treewidth, begin", [(1, "partial_fit"), (3, "fit")])
def test_pieces_have_the_tables_of_all_rows(smoothing, treewidth, begin):
    """Tables after each piece are those of all rows so far, values included that the first rows lacked."""
    rng, X, _ = random_data(3, 8, 400)
    X = np.concatenate([rng.choice(["a", "b", "c"], (400, 1)), X.astype(str)], 1).astype(object)
    X[200:230, 0] = "new"
    weights = rng.integers(4, size=400) * 0.7
    model = ThinJunctionTree(treewidth=treewidth, smoothing=smoothing, penalty=0.0, random_state=0)
    end = 0
    for size in (150, 1, 60, 89, 100):
        piece = slice(end, end + size)
        learn = model.partial_fit if end else getattr(model, begin)
        assert learn(X[piece], sample_weight=weights[piece] + (size == 1)) is model
        end += size
        weights[piece] += size == 1
        counted = weights[:end] > 0
        expected = tables_of_all(model, X[:end][counted], weights[:end][counted])
        torch.testing.assert_close(model.to_pyro().clique_logits, expected, rtol=0, atol=1e-12)
    assert model.tree_ == clone(model).fit(X[:150], sample_weight=weights[:150]).tree_
    if smoothing:
        # What is new is one state, which is as frequent as it was in the pieces.
        newer = np.array([["newer", *[None] * 8]], dtype=object)
        share = weights[X[:, 0] == "new"].sum() / weights.sum()
        assert np.exp(model.score_samples(newer)) == pytest.approx(share, rel=0.3)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_gaps_of_pieces_are_filled_once(smoothing):
    """By all completions, as probable as before; where there is no smoothing, with one row more."""
    _, values, cardinalities = random_data(5, 5, 80)
    cardinalities = [max(size, 2) for size in cardinalities]
    model = ThinJunctionTree(treewidth=2, smoothing=smoothing, categories=[[*range(size)] for size in cardinalities])
    before = model.fit(values[:60]).to_pyro()
    piece = values[60:].astype(float)
    piece[np.random.default_rng(0).random(piece.shape) < 0.3] = np.nan
    if not smoothing:
        rows = CategoricalRows(values[:60], cardinalities)
        before, _ = fit_tree_tables(TreeRows(rows, model.tree_), 1.0)
    states = all_states(cardinalities).numpy()
    joint = before.log_prob(torch.from_numpy(states)).exp().numpy()
    completed, weights = [values[:60]], [np.ones(60)]
    for row in piece:
        agrees = (np.isnan(row) | (states == row)).all(1)
        completed.append(states[agrees])
        weights.append(joint[agrees] / joint[agrees].sum())
    expected = tables_of_all(model, np.concatenate(completed), np.concatenate(weights))
    found = model.partial_fit(piece).to_pyro().clique_logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_pieces_that_are_refused_change_nothing():
    _, values, _ = random_data(2)
    model = ThinJunctionTree(treewidth=1, smoothing=1.0, handle_unknown="error").partial_fit(values[:100])
    before = model.to_pyro().clique_logits.clone()
    for piece, options in ((values[100:, :5], {}), (values[100:105] + 9, {}), (values[100:], {"sample_weight": [1.0]})):
        with pytest.raises(ValueError, match="features|X: expected categories of column 0|sample_weight: expected"):
            model.partial_fit(piece, **options)
    assert torch.equal(model.to_pyro().clique_logits, before)
    torch.testing.assert_close(
        model.partial_fit(values[100:]).to_pyro().clique_logits, tables_of_all(model, values), rtol=0, atol=1e-12
    )


def test_potentials_on_counts_are_not_learned_from_pieces(monkeypatch):
    monkeypatch.setattr(thin_junction_tree, "STIFFNESS", (1.0,))
    rng = np.random.default_rng(0)
    values = (rng.random((100, 1)) < 0.5) ^ (rng.random((100, 6)) < 0.2)
    model = ThinJunctionTree(treewidth=1, penalty=1.0, smoothing=1.0, counts=True, max_iter=5, random_state=0)
    for kind in (model, model.fit(values)):
        with pytest.raises(NotImplementedError, match="counts: partial_fit .* take fit, or counts=False"):
            kind.partial_fit(values)
    assert model.counted_
    with pytest.raises(NotImplementedError, match="counts: "):
        model.set_params(counts=False).partial_fit(values)


@pytest.mark.parametrize("seed", range(5))
def test_graph_cuts_leave_constants_alone(seed):
    """Rounding errors of sums of weights are no information about them."""
    rng = np.random.default_rng(seed)
    X = rng.integers(4, size=(100, 4)) * [1, 0, 1, 0]
    model = ThinJunctionTree(treewidth=2, method="graph_cut", smoothing=1.0, random_state=0)
    candidates = model.fit(X, sample_weight=rng.random(100)).candidates_
    assert all({(1,), (3,)} <= set(candidate.tree.cliques) for candidate in candidates)
