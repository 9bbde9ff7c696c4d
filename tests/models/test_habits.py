"""Habits of all public estimators, scikit-learn's: names, weights, sparse data, gaps, processes, progress."""

import inspect
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, DensityMixin, clone
from sklearn.utils.validation import has_fit_parameter

from pyro_structured import models

RNG = np.random.default_rng(0)
ROWS = RNG.integers(2, size=(60, 2)).repeat(2, axis=1)
ROWS[:, 3] = RNG.integers(2, size=60)
ROWS[0, 1:3] = 1 - ROWS[0, 1:3]
MASKS = RNG.integers(2, size=(8, 5, 6))
PICTURES = MASKS[..., None] + 0.5 * RNG.normal(size=(8, 5, 6, 2))
LABELS = np.stack([ROWS.sum(1) > 2, ROWS[:, 0] > 0, RNG.random(60) < 0.5], 1)
LABELS[:5] ^= True
TABLE, CLASSES, FIELDS, PIXELS = (
    (ROWS, None),
    (ROWS, LABELS[:, 0]),
    (RNG.normal(size=(60, 3)), LABELS),
    (PICTURES, MASKS),
)

# A small one of each, and what it learns from.
ESTIMATORS = {
    "ExchangeableSPN": (models.ExchangeableSPN(n_networks=3, n_states=2, random_state=0), TABLE),
    "ExchangeableTreeMixture": (
        models.ExchangeableTreeMixture(n_components=2, n_init=2, max_iter=2, random_state=0),
        TABLE,
    ),
    "JunctionTreeCRF": (models.JunctionTreeCRF(treewidth=1, penalty=0.0, tol=1e-8), FIELDS),
    "JunctionTreeMixture": (models.JunctionTreeMixture(n_components=2, n_init=3, random_state=0), TABLE),
    "LatentTreeDensity": (
        models.LatentTreeDensity(n_states=2, n_trees=3, n_iter_no_change=1, random_state=0),
        TABLE,
    ),
    "MEVMClassifier": (models.MEVMClassifier(random_state=0), CLASSES),
    "MEVMDensity": (models.MEVMDensity(n_components=2, n_init=3, random_state=0), TABLE),
    "MultipleInstanceClassifier": (models.MultipleInstanceClassifier(random_state=0, tol=1e-8), CLASSES),
    "PixelClassifier": (models.PixelClassifier(n_hidden=3, max_iter=2, random_state=0), PIXELS),
    "SegmentationCRF": (
        models.SegmentationCRF(
            n_patterns=1, max_iter=2, classifier=models.PixelClassifier(n_hidden=3, max_iter=2), random_state=0
        ),
        PIXELS,
    ),
    "StackedDensity": (
        models.StackedDensity(
            members=[
                ("one", models.ThinJunctionTree(treewidth=1, random_state=0)),
                ("other", models.LatentTreeDensity(n_states=2, n_iter_no_change=1, random_state=0)),
            ],
            random_state=0,
        ),
        TABLE,
    ),
    "ThinJunctionTree": (models.ThinJunctionTree(treewidth=2, random_state=0), TABLE),
}
# Other names of the arguments that are called random_state and max_iter everywhere.
OTHER_NAMES = {"seed", "rng", "epochs", "num_epochs", "num_steps", "max_steps", "n_epochs", "n_steps"}
OLD_PARAMETERS = [
    (models.PixelClassifier, "num_hidden", "n_hidden"),
    (models.PixelClassifier, "num_epochs", "max_iter"),
    (models.SegmentationCRF, "patterns", "n_patterns"),
    (models.SegmentationCRF, "max_steps", "max_iter"),
]
# Those that several processes learn together.
TOGETHER = {"MEVMDensity", "ThinJunctionTree"}
every = pytest.mark.parametrize("name", ESTIMATORS)


def fitted(name, X=None, y=None, **options):
    estimator, data = ESTIMATORS[name]
    X, y = (data[0] if X is None else X), (data[1] if y is None else y)
    return clone(estimator).fit(X, y, **options)


def outcome(name, estimator):
    """Numbers that tell what an estimator has learned."""
    X, y = ESTIMATORS[name][1]
    if name == "JunctionTreeCRF":
        return estimator.log_prob(X, y)
    queries = ("score_samples", "decision_function", "predict_proba")
    return getattr(estimator, next(query for query in queries if hasattr(estimator, query)))(X)


def arguments(function):
    return dict(list(inspect.signature(function).parameters.items())[1:])


def keyword_only(parameters):
    return {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


def test_every_public_estimator_is_here():
    public = [name for name in models.__all__ if inspect.isclass(getattr(models, name))]
    assert {name for name in public if issubclass(getattr(models, name), BaseEstimator)} == set(ESTIMATORS)


@every
def test_hyperparameters_are_given_by_name(name):
    parameters = arguments(type(ESTIMATORS[name][0]).__init__)
    assert keyword_only(parameters) == set(parameters)
    assert not any(each.startswith("num_") or each in OTHER_NAMES for each in parameters)
    # Iterations of a stack are those of its members.
    assert {"time_budget" if name == "StackedDensity" else "max_iter", "verbose"} <= set(parameters)


@every
def test_signatures(name):
    kind = type(ESTIMATORS[name][0])
    fit = arguments(kind.fit)
    assert list(fit)[:2] == ["X", "y"]
    validation = {"X_val", "y_val"} & set(fit)
    further = {"groups", "groups_val"} if name == "MultipleInstanceClassifier" else set()
    further |= {"rows"} if name in TOGETHER else set()
    assert validation <= keyword_only(fit) and set(fit) <= {"X", "y", "X_val", "y_val", "sample_weight"} | further
    assert ("rows" in keyword_only(fit)) == (name in TOGETHER)
    assert "X_val" in fit or not validation
    if issubclass(kind, DensityMixin):
        assert fit["y"].default is None and "X_val" in validation
        assert {key: each.default for key, each in arguments(kind.sample).items()} == {
            "n_samples": 1,
            "random_state": None,
        }
        assert list(arguments(kind.score)) == ["X", "y", "sample_weight"]


@every
def test_probabilities_are_of_what_is_predicted(name):
    estimator, X = fitted(name), ESTIMATORS[name][1][0]
    if not hasattr(estimator, "predict"):
        if hasattr(estimator, "predict_proba"):
            with pytest.warns(FutureWarning, match="predict_proba is now called predict_missing_proba"):
                estimator.predict_proba(X)
        return
    predicted, probabilities = estimator.predict(X), estimator.predict_proba(X)
    if isinstance(probabilities, list):
        # Probabilities are those of each label by itself; the jointly most probable labels may differ.
        assert predicted.shape == (len(X), len(probabilities))
        sizes = [len(classes) for classes in estimator.classes_]
        assert [each.shape for each in probabilities] == [(len(X), size) for size in sizes]
        np.testing.assert_allclose([each.sum(1) for each in probabilities], 1.0)
    elif predicted.ndim > 1:
        # Many labels that are 0 or 1, as of scikit-learn's classifiers of several labels.
        np.testing.assert_array_equal(predicted, probabilities > 0.5)
    else:
        assert probabilities.shape[0] == len(predicted) and probabilities.ndim == 2
        np.testing.assert_allclose(probabilities.sum(1), 1.0)
        classes = getattr(estimator, "classes_", np.arange(probabilities.shape[1]))
        np.testing.assert_array_equal(classes[probabilities.argmax(1)], predicted)


@every
@pytest.mark.filterwarnings("ignore:no convergence")
def test_weights_count_rows(name):
    X, y = ESTIMATORS[name][1]
    weights = np.random.default_rng(1).integers(4, size=len(X))
    repeated, labels = X.repeat(weights, axis=0), None if y is None else y.repeat(weights, axis=0)
    if has_fit_parameter(ESTIMATORS[name][0], "sample_weight"):
        expected, found = fitted(name, repeated, labels), fitted(name, sample_weight=weights)
        np.testing.assert_allclose(outcome(name, found), outcome(name, expected), rtol=0, atol=1e-10)
    else:
        expected = found = fitted(name)
        with pytest.raises(TypeError, match="fit.* got an unexpected keyword argument 'sample_weight'"):
            fitted(name, sample_weight=weights)
    if hasattr(expected, "score"):
        assert found.score(X, y, sample_weight=weights) == pytest.approx(expected.score(repeated, labels), abs=1e-10)


@every
def test_weights_that_are_no_integers(name):
    if not has_fit_parameter(ESTIMATORS[name][0], "sample_weight"):
        return
    X = ESTIMATORS[name][1][0]
    weights = np.random.default_rng(1).random(len(X))
    assert np.isfinite(outcome(name, fitted(name, sample_weight=weights))).all()
    for wrong in (-weights, weights[1:], np.full(len(X), np.nan), np.zeros(len(X)), ["a"] * len(X)):
        with pytest.raises(ValueError, match="sample_weight: expected "):
            fitted(name, sample_weight=wrong)


in_pieces = pytest.mark.parametrize(
    "name", [name for name, (each, _) in ESTIMATORS.items() if hasattr(each, "partial_fit")]
)


def learned_in_pieces(name, *pieces, **options):
    estimator = clone(ESTIMATORS[name][0])
    for piece in pieces:
        assert estimator.partial_fit(piece, **options) is estimator
    return estimator


@in_pieces
def test_pieces_have_the_columns_of_the_first_one(name):
    estimator = clone(ESTIMATORS[name][0])
    assert list(arguments(estimator.partial_fit.__func__)) == ["X", "y", "sample_weight"]
    assert keyword_only(arguments(estimator.partial_fit.__func__)) == {"sample_weight"}
    pandas = pytest.importorskip("pandas")
    named = pandas.DataFrame(ROWS, columns=list("abcd"))
    assert estimator.partial_fit(named).n_features_in_ == 4 and list(estimator.feature_names_in_) == list("abcd")
    before, plain = estimator.score_samples(named), learned_in_pieces(name, ROWS)
    np.testing.assert_array_equal(before, outcome(name, plain))
    for known, wrong, message in (
        (plain, ROWS[:, :3], "X has 3 features, but .* is expecting 4"),
        (plain, ROWS[:0], "0 sample.* minimum of 1 is required"),
        (plain, ROWS[0], "Expected 2D array, got 1D array"),
        (plain, np.full((3, 4), np.inf), "infinity|among"),
        (estimator, named[list("abdc")], "feature names"),
        (estimator, named.rename(columns={"a": "z"}), "feature names"),
    ):
        with pytest.raises(ValueError, match=message):
            known.partial_fit(wrong)
    for weights in (np.full(60, -1.0), np.ones(59), np.full(60, np.nan), np.zeros(60), ["a"] * 60):
        with pytest.raises(ValueError, match="sample_weight: expected "):
            estimator.partial_fit(named, sample_weight=weights)
    np.testing.assert_array_equal(estimator.score_samples(named), before)
    assert list(estimator.partial_fit(named).feature_names_in_) == list("abcd")


@in_pieces
def test_weights_of_pieces_count_rows(name):
    weights = np.random.default_rng(1).integers(4, size=60)
    weighted = clone(ESTIMATORS[name][0]).partial_fit(ROWS).partial_fit(ROWS, sample_weight=weights)
    repeated = learned_in_pieces(name, ROWS, ROWS.repeat(weights, axis=0))
    np.testing.assert_allclose(outcome(name, weighted), outcome(name, repeated), rtol=1e-4)
    plain = outcome(name, learned_in_pieces(name, ROWS, ROWS))
    assert np.abs(outcome(name, weighted) - plain).max() > 1e-3
    assert np.isfinite(outcome(name, learned_in_pieces(name, ROWS, ROWS, sample_weight=weights / 7))).all()


@in_pieces
def test_pieces_of_any_kind(name):
    """Single rows, other types, gaps and sparse data; pickles between the calls; copies that know nothing."""
    first = learned_in_pieces(name, ROWS)
    expected = outcome(name, clone(first).partial_fit(ROWS).partial_fit(ROWS[:1]))
    kinds = [np.float32, bool, object, np.uint8]
    pieces = [ROWS[:1].astype(kind) for kind in kinds] + [ROWS[:1].tolist(), torch.from_numpy(ROWS[:1])]
    if first.__sklearn_tags__().input_tags.sparse:
        pieces.append(sparse.csr_array(ROWS[:1]))
    for piece in pieces:
        again = pickle.loads(pickle.dumps(first)).partial_fit(piece)
        np.testing.assert_allclose(outcome(name, again), expected, rtol=1e-6)
        assert again.sample(3, random_state=0).shape == (3, 4)
    assert np.abs(expected - outcome(name, first)).max() > 1e-6
    gappy = ROWS.astype(float)
    gappy[::3, 1] = gappy[5] = np.nan
    filled = outcome(name, learned_in_pieces(name, ROWS, gappy, gappy))
    assert np.isfinite(filled).all() and np.abs(filled - outcome(name, first)).max() > 1e-6
    assert np.isfinite(outcome(name, learned_in_pieces(name, gappy, ROWS))).all()
    assert not hasattr(clone(first), "n_features_in_")
    one = learned_in_pieces(name, ROWS[:1], ROWS[:1])
    assert np.isfinite(one.score_samples(ROWS[:1])).all()


@in_pieces
def test_unknown_categories_of_pieces(name):
    if "handle_unknown" not in ESTIMATORS[name][0].get_params():
        return
    words = np.array(["x", "y", "z"])[RNG.integers(3, size=(60, 3))]
    new = words.copy()
    new[0, 0] = "w"
    for handling in ("other", "error", "missing"):
        estimator = clone(ESTIMATORS[name][0]).set_params(handle_unknown=handling).partial_fit(words)
        if handling == "error":
            with pytest.raises(ValueError, match="X: expected categories of column 0 among"):
                estimator.partial_fit(new)
            estimator.partial_fit(new, sample_weight=np.arange(60) > 0)
        else:
            scores = estimator.score_samples(new[:1]), estimator.partial_fit(new).score_samples(new[:1])
            assert handling == "missing" or scores[1] > scores[0]
        assert estimator.categories_[0].tolist() == ["x", "y", "z"]


@every
def test_sparse_data_are_taken_or_refused(name):
    X = ESTIMATORS[name][1][0]
    if ESTIMATORS[name][0].__sklearn_tags__().input_tags.sparse:
        np.testing.assert_allclose(outcome(name, fitted(name, sparse.csr_array(X))), outcome(name, fitted(name)))
    else:
        flat = sparse.csr_array(X.reshape(len(X), -1).astype(float))
        with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required. Use '.toarray"):
            fitted(name, flat)
    if "X_val" in arguments(type(ESTIMATORS[name][0]).fit) and X.ndim == 2:
        options = {"X_val": sparse.csr_array(X)}
        if ESTIMATORS[name][0].__sklearn_tags__().input_tags.sparse:
            fitted(name, **options)
        else:
            with pytest.raises((TypeError, ValueError), match="X_val.*Sparse data was passed"):
                fitted(name, **options)


@every
def test_gaps_are_taken_or_refused(name):
    X = ESTIMATORS[name][1][0].astype(float)
    X[1, 1] = np.nan
    if ESTIMATORS[name][0].__sklearn_tags__().input_tags.allow_nan:
        assert np.isfinite(outcome(name, fitted(name, X))).all()
    else:
        with pytest.raises(ValueError, match="Input X contains NaN"):
            fitted(name, X)


@every
def test_results_do_not_depend_on_the_device_that_is_set(name):
    """Estimators are on the processor, where they learn and say the same to the last bit."""
    expected, X = fitted(name), ESTIMATORS[name][1][0]
    with torch.device("meta"):
        found = fitted(name)
        np.testing.assert_array_equal(outcome(name, found), outcome(name, expected))
        np.testing.assert_array_equal(outcome(name, pickle.loads(pickle.dumps(expected))), outcome(name, expected))
        if hasattr(found, "predict"):
            np.testing.assert_array_equal(found.predict(X), expected.predict(X))
        if hasattr(found, "sample"):
            np.testing.assert_array_equal(found.sample(3, random_state=1), expected.sample(3, random_state=1))
        if hasattr(found, "partial_fit"):
            found, expected = (each.partial_fit(X) for each in (found, expected))
            np.testing.assert_array_equal(outcome(name, found), outcome(name, expected))


@pytest.mark.slow(keep=2)
@every
@pytest.mark.slow(keep=1)
@pytest.mark.filterwarnings("ignore:no convergence")
def test_any_number_of_processes_gives_the_same(name):
    estimator, (X, y) = ESTIMATORS[name]
    if "n_jobs" not in estimator.get_params():
        return
    several = clone(estimator).set_params(n_jobs=2)
    if name == "PixelClassifier":
        found, expected = (each.cross_decision_function(X, y, 3) for each in (several, clone(estimator)))
    else:
        found, expected = outcome(name, several.fit(X, y)), outcome(name, fitted(name))
        if estimator.__sklearn_tags__().input_tags.allow_nan:
            gappy = X.astype(float)
            gappy[::7, 1] = np.nan
            np.testing.assert_array_equal(outcome(name, clone(several).fit(gappy)), outcome(name, fitted(name, gappy)))
    np.testing.assert_array_equal(found, expected)
    for wrong in (0, 1.5, "all", True):
        with pytest.raises(ValueError, match="n_jobs: expected None or an integer other than 0"):
            each = clone(estimator).set_params(n_jobs=wrong)
            each.cross_decision_function(X, y) if name == "PixelClassifier" else each.fit(X, y)


@every
@pytest.mark.filterwarnings("ignore:no convergence")
def test_progress_is_shown_where_it_is_asked_for(name, capfd):
    estimator, (X, y) = ESTIMATORS[name]
    for verbose in (None, False):
        clone(estimator).set_params(verbose=verbose).fit(X, y)
        assert capfd.readouterr() == ("", "")
    clone(estimator).set_params(verbose=True).fit(X, y)
    out, lines = capfd.readouterr()
    assert out == "" and "0/" in lines.splitlines()[0] and "\r" not in lines
    with pytest.raises(ValueError, match="verbose: expected None, True or False, got 'yes'"):
        clone(estimator).set_params(verbose="yes").fit(X, y)


@every
def test_no_process_learns_apart_in_silence(name, monkeypatch):
    """A warning comes before anything may fail, and names the argument by which processes learn together."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    estimator = clone(ESTIMATORS[name][0])
    for fit in (estimator.fit, getattr(estimator, "partial_fit", estimator.fit)):
        message = f"^{name}: each of 3 processes learns by itself, from the rows that it is given; .*rows="
        with pytest.warns(UserWarning, match=message) as caught, pytest.raises((TypeError, ValueError)):
            fit(None, None)
        assert [each.filename for each in caught] == [__file__]


@every
def test_representations(name):
    estimator = ESTIMATORS[name][0]
    for each in (clone(estimator), fitted(name)):
        page = each._repr_html_()
        assert name in page and "<script src" not in page and "http-equiv" not in page
        assert repr(each).startswith(f"{name}(")


@every
def test_nothing_is_said_about_new_spellings(name):
    estimator = ESTIMATORS[name][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = clone(estimator)
        assert copied.set_params(**copied.get_params()).get_params().keys() == estimator.get_params().keys()


@pytest.mark.parametrize("kind, old, new", OLD_PARAMETERS)
def test_old_names_of_parameters_go_on_working(kind, old, new):
    def warns():
        return pytest.warns(FutureWarning, match=f"^{old} is now called {new}; the old name will go$")

    with warns() as caught:
        estimator = kind(**{old: 7})
    assert caught[0].filename == __file__ and getattr(estimator, new) == 7
    assert old not in estimator.get_params() and clone(estimator).get_params()[new] == 7
    with warns():
        assert estimator.set_params(**{old: 8}) is estimator and getattr(estimator, new) == 8
    with warns():
        assert getattr(estimator, old) == 8
    with warns():
        setattr(estimator, old, 9)
    assert getattr(estimator, new) == 9
    with warns(), pytest.raises(TypeError, match=f"{new}: expected once, got two values"):
        kind(**{old: 1, new: 2})


@pytest.mark.parametrize(
    "kind, names",
    [
        (models.ExchangeableSPN, ("n_networks", "n_states")),
        (models.JunctionTreeCRF, ("treewidth",)),
        (models.JunctionTreeMixture, ("n_components",)),
        (models.MEVMDensity, ("n_components",)),
        (models.PixelClassifier, ("n_hidden",)),
        (models.SegmentationCRF, ("n_patterns",)),
        (models.ThinJunctionTree, ("treewidth",)),
    ],
)
def test_parameters_by_position_go_on_working(kind, names):
    with pytest.warns(FutureWarning, match=f"arguments are expected by name, got {', '.join(names)} by position"):
        estimator = kind(*range(3, 3 + len(names)))
    assert [getattr(estimator, name) for name in names] == list(range(3, 3 + len(names)))
    with pytest.raises(TypeError, match="positional argument"):
        kind(*range(99))


@pytest.mark.parametrize("name", ["ExchangeableSPN", "JunctionTreeMixture", "ThinJunctionTree"])
@pytest.mark.filterwarnings("ignore:no convergence")
def test_validation_rows_by_position_go_on_working(name):
    with pytest.warns(FutureWarning, match="arguments are expected by name, got X_val by position"):
        found = clone(ESTIMATORS[name][0]).fit(ROWS, None, ROWS[:20])
    np.testing.assert_array_equal(outcome(name, found), outcome(name, fitted(name, X_val=ROWS[:20])))


def test_weights_by_position_go_on_working():
    weights = np.arange(60) % 3
    with pytest.warns(FutureWarning, match="arguments are expected by name, got sample_weight, X_val by position"):
        found = clone(ESTIMATORS["MEVMDensity"][0]).fit(ROWS, None, weights, ROWS)
    expected = fitted("MEVMDensity", sample_weight=weights, X_val=ROWS)
    np.testing.assert_array_equal(found.score_samples(ROWS), expected.score_samples(ROWS))


def test_old_names_of_pictures_go_on_working():
    """Old names of pictures, masks, descriptors and folds go on working."""
    expected = fitted("SegmentationCRF", X_val=PICTURES, y_val=MASKS)
    with pytest.warns(FutureWarning, match="is now called"):
        found = clone(expected).fit(images=PICTURES, masks=MASKS, images_val=PICTURES, masks_val=MASKS)
    with pytest.warns(FutureWarning, match="got X_val, y_val by position"):
        clone(expected).fit(PICTURES, MASKS, PICTURES, MASKS)
    for query in ("predict", "predict_proba"):
        with pytest.warns(FutureWarning, match="is now called"):
            np.testing.assert_array_equal(getattr(found, query)(images=PICTURES), getattr(expected, query)(PICTURES))
    with pytest.warns(FutureWarning, match="is now called"):
        assert found.to_pyro(images=PICTURES).batch_shape == (8,)
    with pytest.warns(FutureWarning, match="is now called"):
        assert found.score(PICTURES, masks=MASKS) == expected.score(PICTURES, MASKS)
    pixels = clone(ESTIMATORS["PixelClassifier"][0])
    with pytest.warns(FutureWarning, match="is now called"):
        crossed = pixels.cross_decision_function(features=PICTURES, masks=MASKS, num_folds=2)
    np.testing.assert_array_equal(crossed, clone(pixels).cross_decision_function(PICTURES, MASKS, 2))
    with pytest.warns(FutureWarning, match="is now called"):
        odds = pixels.fit(features=PICTURES, masks=MASKS).decision_function(features=PICTURES)
    np.testing.assert_array_equal(odds, fitted("PixelClassifier").decision_function(PICTURES))
    masks = MASKS[:, :2]
    with pytest.warns(FutureWarning, match="is now called"):
        weights, _ = models.clustered_patterns(masks, num_patterns=2, seed=0)
    assert (weights == models.clustered_patterns(masks, 2, random_state=0)[0]).all()


def test_samples_follow_the_density():
    """Samples follow the density of the estimator without a test of its own."""
    density = fitted("MEVMDensity")
    drawn = density.sample(2000, random_state=1)
    assert drawn.shape == (2000, 4) and drawn.dtype == np.uint8
    np.testing.assert_array_equal(drawn, density.sample(2000, random_state=1))
    np.testing.assert_array_equal(density.sample(5), density.sample(5, random_state=0))
    np.testing.assert_allclose(drawn.mean(0), density.to_pyro().marginals, atol=6 * 0.5 / np.sqrt(2000))
    assert density.sample().shape == (1, 4)
    with pytest.raises(ValueError, match="n_samples: expected an integer of at least 1, got 0"):
        density.sample(0)


@pytest.mark.parametrize("kind", [np.asarray, list, "bool", "boolean", "Int64", "object"])
def test_subsets_are_learned_from_tables(kind):
    expected = models.learn_nested_subsets(torch.from_numpy(ROWS).double())
    if isinstance(kind, str):
        pandas = pytest.importorskip("pandas")
        data = pandas.DataFrame(ROWS.astype(bool)).astype(kind)
    else:
        data = kind(ROWS.tolist()) if kind is list else ROWS.astype(bool)
    assert models.learn_nested_subsets(data) == expected
    memberships = np.full((60, 1), 1.0)
    assert models.learn_nested_subsets(data, memberships) == expected


def test_tables_of_subsets_that_are_refused():
    with pytest.raises(TypeError, match="Sparse data was passed for values, but dense data is required"):
        models.learn_nested_subsets(sparse.csr_array(ROWS))
    with pytest.raises(ValueError, match="Input values contains NaN"):
        models.learn_nested_subsets(np.where(ROWS == 1, np.nan, 0.0))
