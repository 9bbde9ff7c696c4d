"""Estimated densities against the Pyro distribution, closed forms, and what was planted."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_structured.distributions import ExchangeablePartition
from pyro_structured.exchangeable.models import mevm_density
from pyro_structured.exchangeable.models.structural_em import STRUCTURES, Phase, StructuralEM
from pyro_structured.exchangeable.ops import binary_rows
from pyro_structured.foundation.ops import row_pieces
from pyro_structured.models import MEVMDensity
from pyro_structured.structures import Partition

PARTITION = Partition(torch.tensor([[0, 0, 0, 0, 4, 5, 6, 7], [0, 1, 2, 3, 4, 4, 4, 4]]))


def planted(number, seed=0):
    """Two classes, each with four variables that are nearly all zeros or all ones, and four that are independent."""
    torch.manual_seed(seed)
    together, rare, frequent = ([0.45, 0.05, 0.0, 0.05, 0.45], [0.9, 0.1] * 4, [0.1, 0.9] * 4)
    unused = [1.0] * 3
    logits = torch.tensor([together + rare + unused, frequent + together + unused]).log()
    parts = ExchangeablePartition(logits, PARTITION)
    z = torch.randint(2, (number,))
    values = parts.sample((number,))[torch.arange(number), z]
    log_probs = parts.log_prob(values.unsqueeze(1)).logsumexp(1) - np.log(2)
    return values.numpy(), log_probs.mean().item()


# Of what has predict_proba and takes sparse data, these ask for the tags of a classifier.
ONLY_OF_CLASSIFIERS = {f"check_estimator_sparse_{kind}": "a mixture is no classifier" for kind in ("array", "matrix")}


@parametrize_with_checks(
    [MEVMDensity(n_components=3, n_init=2), MEVMDensity(n_components=3, structure="welch", n_init=1)],
    expected_failed_checks=lambda estimator: ONLY_OF_CLASSIFIERS,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_planted_structure_is_found():
    values, _ = planted(3000)
    held_out, best = planted(3000, seed=1)
    density = MEVMDensity(n_components=2, n_init=5, random_state=0).fit(values)
    independent = MEVMDensity(n_components=2, structure="independent", n_init=5, random_state=0).fit(values)
    assert density.score(held_out) > best - 0.02
    assert independent.score(held_out) < best - 0.3
    assert any(block in ([0, 1, 2, 3], [4, 5, 6, 7]) for part in density.partition_ for block in part.blocks())


def test_planted_structure_is_found_in_spite_of_gaps():
    values, _ = planted(3000)
    gappy = np.where(np.random.default_rng(0).random(values.shape) < 0.3, np.nan, values)
    held_out, best = planted(3000, seed=1)
    assert MEVMDensity(n_components=2, n_init=5, random_state=0).fit(gappy).score(held_out) > best - 0.04


@pytest.mark.parametrize("structure", STRUCTURES)
def test_equals_the_pyro_distribution(structure):
    values, _ = planted(300)
    density = MEVMDensity(n_components=3, structure=structure, n_init=1, random_state=0).fit(values)
    pyro_density = density.to_pyro()
    expected = pyro_density.log_prob(torch.from_numpy(values).double())
    np.testing.assert_allclose(density.score_samples(values), expected, rtol=1e-9)
    np.testing.assert_allclose(density.weights_, pyro_density.class_probs)
    posterior = pyro_density.posterior(torch.from_numpy(values).double()).probs
    np.testing.assert_array_equal(density.predict(values), posterior.argmax(-1))
    observed = torch.rand(values.shape) < 0.6
    gappy = np.where(observed, values, np.nan)
    expected = pyro_density.marginal_log_prob(torch.from_numpy(values).double(), observed)
    np.testing.assert_allclose(density.score_samples(gappy), expected, rtol=1e-9)
    assert density.score(gappy, sample_weight=np.arange(300)) == pytest.approx(
        np.average(expected, weights=np.arange(300))
    )


def test_one_class_is_the_closed_form():
    values, _ = planted(200)
    density = MEVMDensity(n_components=1, structure="welch", smoothing=0.3, n_init=1).fit(values)
    expected = ExchangeablePartition.from_data(torch.from_numpy(values).double(), density.partition_[0], 0.3)
    np.testing.assert_allclose(density.score_samples(values), expected.log_prob(torch.from_numpy(values).double()))


@pytest.mark.parametrize("form", [csr_matrix, csr_array])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_sparse_data(form, missing):
    values, _ = planted(300)
    values[np.random.default_rng(0).random(values.shape) < missing] = np.nan
    density = MEVMDensity(n_components=2, n_init=1, random_state=0)
    expected = clone(density).fit(values).score_samples(values)
    np.testing.assert_allclose(density.fit(form(values)).score_samples(form(values)), expected)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_weights_count_rows(structure):
    values, _ = planted(100)
    weights = np.random.default_rng(0).integers(3, size=100)
    density = MEVMDensity(n_components=2, structure=structure, n_init=1, random_state=0)
    repeated = clone(density).fit(np.repeat(values, weights, 0)).score_samples(values)
    np.testing.assert_allclose(density.fit(values, sample_weight=weights).score_samples(values), repeated)
    tensor = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(density.fit(values, sample_weight=tensor).score_samples(values), repeated)


def test_values_are_binarised():
    values, _ = planted(50)
    density = MEVMDensity(n_components=2, n_init=1, random_state=0)
    expected = clone(density).fit(values).score_samples(values)
    given = density.set_params(binarize=2.5).fit(2 + values)
    np.testing.assert_allclose(given.score_samples(2 + values), expected)
    np.testing.assert_allclose(density.set_params(binarize=None).fit(values).score_samples(values), expected)
    with pytest.raises(ValueError, match="X: expected zeros, ones and NaN, as binarize is None"):
        density.fit(2 * values)
    with pytest.raises(ValueError, match="X_val: expected zeros, ones and NaN, as binarize is None"):
        density.fit(values, X_val=2 * values)
    with pytest.raises(ValueError, match="binarize: expected at least 0 for sparse data, got -1"):
        density.set_params(binarize=-1).fit(csr_matrix(values))


def test_validation_data_choose():
    values, _ = planted(60)
    held_out, _ = planted(200, seed=1)
    fits = [MEVMDensity(n_components=10, n_init=1, random_state=seed).fit(values).score(held_out) for seed in range(3)]
    chosen = MEVMDensity(n_components=10, n_init=6, random_state=0).fit(values, X_val=held_out)
    assert chosen.score(held_out) > np.mean(fits)
    by_training = MEVMDensity(n_components=10, n_init=6, random_state=0).fit(values)
    assert chosen.score(held_out) > by_training.score(held_out)


def test_what_never_varies_and_what_nobody_has():
    values = np.zeros((20, 5))
    values[:, 1] = 1
    density = MEVMDensity(n_components=30, n_init=2, random_state=0).fit(values)  # more classes than distinct rows
    assert np.isfinite(density.score_samples(1 - values)).all()
    assert density.score(values) > -0.1
    gap = values.copy()
    gap[:, 3] = np.nan
    density.fit(gap)
    assert np.exp(density.score_samples([[0, 1, 0, 1, 0]])) == pytest.approx(0.5, abs=0.05)
    assert density.score_samples(np.full((1, 5), np.nan)) == pytest.approx(0.0, abs=1e-12)


def test_large_blocks():
    """Counts that need words of their own."""
    counts = np.random.default_rng(0).integers(1501, size=200)
    values = np.arange(1500) < counts[:, None]
    density = MEVMDensity(n_components=1, structure="welch", n_init=1).fit(values)
    assert np.isfinite(density.score(values))
    expected = density.to_pyro().log_prob(torch.from_numpy(values).double())
    np.testing.assert_allclose(density.score_samples(values), expected, rtol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e17, 1e290])
def test_constant_variables_with_extreme_weights(structure, scale):
    values, _ = planted(60)
    values = np.hstack([values, np.ones((60, 20)), np.zeros((60, 20))])
    density = MEVMDensity(n_components=2, structure=structure, n_init=1, random_state=0).fit(
        values, sample_weight=np.full(60, scale)
    )
    assert np.isfinite(density.score_samples(1 - values)).all()
    expected = density.to_pyro().log_prob(torch.from_numpy(1 - values).double())
    np.testing.assert_allclose(density.score_samples(1 - values), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"n_components": 0}, "n_components: expected an integer of at least 1, got 0"),
        ({"n_init": 1.5}, "n_init: expected an integer of at least 1, got 1.5"),
        ({"max_iter": 0}, "max_iter: expected an integer of at least 1, got 0"),
        ({"smoothing": 0.0}, "smoothing: expected a number larger than 0, got 0.0"),
        ({"smoothing": np.inf}, "smoothing: expected a number larger than 0"),
        ({"tol": "a"}, "tol: expected a number larger than 0, got 'a'"),
        ({"structure": "merged"}, r"structure: expected one of \('merge', .* got 'merged'"),
        ({"structure": "welch", "level": 2.0}, "level: expected a number between 0 and 1, got 2.0"),
        ({"structure": "welch", "linkage": "all"}, "linkage: expected one of"),
        ({"correction": 3}, "correction: expected one of"),
        ({"binarize": np.nan}, "binarize: expected a number, 'auto' or None, got nan"),
        ({"binarize": "a"}, "binarize: expected a number, 'auto' or None, got 'a'"),
        ({"n_components": True}, "n_components: expected an integer of at least 1, got True"),
        ({"n_components": 10**9}, "n_components: expected an integer of at most 4096, got 1000000000"),
        ({"max_iter": 2**31}, "max_iter: expected an integer below 2 \\*\\* 31, got 2147483648"),
        ({"structure": ["merge"]}, r"structure: expected one of \('merge', .* got \['merge'\]"),
        ({"random_state": -1}, "random_state: expected None, an integer .*, got -1"),
    ],
)
def test_wrong_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        MEVMDensity(**{"n_components": 2, **parameters}).fit(np.eye(3))


@pytest.mark.parametrize(
    "held_out, message",
    [
        ([[0, np.inf]], "X_val: Input X_val contains infinity"),
        (csr_matrix([[0, 1, 1]]), "X_val: expected 2 columns, as in X, got 3"),
        (np.zeros((0, 2)), r"X_val: Found array with 0 sample"),
        ([["a", "b"]], "X_val: could not convert string to float"),
    ],
)
def test_wrong_validation_data(held_out, message):
    with pytest.raises(ValueError, match=message):
        MEVMDensity(n_components=1).fit([[0, 1]], X_val=held_out)


def test_validation_data_may_have_gaps_and_be_sparse():
    values, _ = planted(60)
    gappy = csr_matrix(np.where(np.random.default_rng(0).random(values.shape) < 0.2, np.nan, values))
    density = MEVMDensity(n_components=2, n_init=2, random_state=0).fit(values, X_val=gappy)
    assert np.isfinite(density.score(gappy))


@pytest.mark.parametrize("held_out", [False, True])
def test_blocks_of_large_tables_are_merged_in_the_best_starts_alone(monkeypatch, held_out):
    values, _ = planted(300)
    settled, merged = [], []

    def recorded(learner, begin, *arguments):
        start = run_start(learner, begin, *arguments)
        (merged if isinstance(begin, Phase) else settled).append((begin, start))
        return start

    run_start = mevm_density._run_start
    monkeypatch.setattr(mevm_density, "_run_start", recorded)
    density = MEVMDensity(n_components=3, n_init=5, random_state=0)
    options = {"X_val": planted(100, 1)[0]} if held_out else {}
    density.fit(values, **options)
    assert len(settled) == 5 and not merged
    settled.clear()
    monkeypatch.setattr(mevm_density, "MOST_ENTRIES", 0)
    density.fit(values, **options)
    best_first = sorted((start for _, start in settled), key=lambda start: -start.score)
    assert len(best_first) == 5 and all(
        (start.best.mixture.counts.labels == np.arange(8)).all() for start in best_first
    )
    assert [begin for begin, _ in merged] == [start.best for start in best_first[:2]]
    judged = options.get("X_val", values)
    assert density.score(judged) * len(judged) == pytest.approx(max(start.score for _, start in merged))


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_files_are_read_in_pieces(tmp_path, monkeypatch, missing, share):
    """The same mixture as from large integers, all rows of which are one piece."""
    rng = np.random.default_rng(0)
    values = (rng.random((500, 8)) < share).astype(float)
    values[:, 4:] = values[:, :4]
    values[:200][rng.random((200, 8)) < missing] = np.nan
    np.save(tmp_path / "rows.npy", values.astype("float32" if missing else "uint8"))
    density = MEVMDensity(n_components=3, n_init=2, random_state=0)
    whole = clone(density).fit(values if missing else values.astype(int))
    monkeypatch.setattr(row_pieces, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(binary_rows, "ROWS_AT_ONCE", 100)
    file = np.load(tmp_path / "rows.npy", mmap_mode="r")
    pieces = clone(density).fit(file)
    assert pieces.n_iter_ == whole.n_iter_
    assert torch.equal(pieces.partition_.labels, whole.partition_.labels)
    np.testing.assert_allclose(pieces.score_samples(file), whole.score_samples(values), rtol=0, atol=1e-9)


def test_too_few_iterations():
    with pytest.warns(ConvergenceWarning, match="no convergence in 1 iterations"):
        MEVMDensity(n_components=2, max_iter=1, n_init=1, random_state=0).fit(planted(100)[0])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_interrupt_keeps_the_best_mixture(monkeypatch, structure):
    values, _ = planted(100)
    advance, allowed = StructuralEM._advance, 3

    def interrupted(self, *arguments):
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(StructuralEM, "_advance", interrupted)
    density = MEVMDensity(n_components=2, structure=structure, tol=1e-9, random_state=0)
    with pytest.warns(UserWarning, match="fit was interrupted: the best mixture so far is kept") as caught:
        density.fit(values)
    assert caught[0].filename == __file__ and density.n_iter_ <= 3
    first, allowed = density.score(values), 30
    with pytest.warns(UserWarning, match="fit was interrupted"):
        assert density.fit(values, X_val=values).score(values) >= first
    monkeypatch.setattr(StructuralEM, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        density.fit(values)


@pytest.mark.parametrize("form", [np.asarray, csr_matrix])
def test_numbers_that_are_binarised_are_named(form):
    values, _ = planted(50)
    counts = values + values * (np.arange(8) == 3)
    density = MEVMDensity(n_components=2, n_init=1, random_state=0)
    expected = density.fit(values).score_samples(values)
    with pytest.warns(UserWarning, match="X: numbers other than 0 and 1 .* in column 3; binarize=0.0 says") as caught:
        density.fit(form(counts))
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="X: numbers other than 0 and 1 .* in column 3;"):
        np.testing.assert_allclose(density.score_samples(form(counts)), expected)
    with pytest.warns(UserWarning, match="X_val: numbers other than 0 and 1 .* in column 3;"):
        density.fit(values, X_val=form(counts))
    density.set_params(binarize=0.0).fit(form(counts), X_val=form(counts))


def test_pieces_of_one_class_have_the_parameters_of_all_rows(monkeypatch):
    """Gaps are filled in by all completions, as probable as they are under the parameters before."""
    monkeypatch.setattr(mevm_density, "STEP_ROWS", 30)
    values, _ = planted(300)
    density = MEVMDensity(n_components=1, smoothing=0.3, n_init=1, random_state=0).fit(values[:100])
    partition = density.partition_[0]
    assert density.partial_fit(values[100:]) is density
    before = ExchangeablePartition.from_data(torch.from_numpy(values).double(), partition, 0.3)
    scored = torch.from_numpy(planted(50, seed=1)[0]).double()
    np.testing.assert_allclose(density.score_samples(scored), before.log_prob(scored), rtol=1e-12)

    gappy = np.array([[1.0, np.nan, 0, np.nan, 1, 1, np.nan, 1], [np.nan] * 8, [0, 1, 0, 1, 0, 1, 0, 1]])
    density.partial_fit(gappy, sample_weight=[3.0, 1.5, 1.0])
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 8)
    rows, weights = [torch.from_numpy(values).double()], [torch.ones(300).double()]
    for row, weight in zip(torch.from_numpy(gappy), (3.0, 1.5, 1.0), strict=True):
        completed = states[(row.isnan() | (states == row)).all(1)]
        rows.append(completed)
        weights.append(weight * before.log_prob(completed).softmax(0))
    after = ExchangeablePartition.from_data(torch.cat(rows), partition, 0.3, torch.cat(weights))
    np.testing.assert_allclose(density.score_samples(scored), after.log_prob(scored), rtol=1e-9)
    assert density.weights_ == pytest.approx([1.0]) and density.partition_[0].blocks() == partition.blocks()


@pytest.mark.parametrize("missing, begin", [(0.0, "partial_fit"), (0.2, "fit")])
def test_pieces_are_nearly_as_good_as_all_rows(missing, begin):
    values, _ = planted(4000)
    held_out, _ = planted(3000, seed=1)
    values = np.where(np.random.default_rng(0).random(values.shape) < missing, np.nan, values)
    whole = MEVMDensity(n_components=2, n_init=2, random_state=0)
    pieces = clone(whole)
    getattr(pieces, begin)(values[:400])
    first = pieces.score(held_out)
    for piece in np.split(values[400:], 60):
        pieces.partial_fit(piece)
    reached = whole.fit(values).score(held_out)
    assert first < reached - 0.01 and abs(pieces.score(held_out) - reached) < 0.01
    assert pieces.weights_ == pytest.approx(pieces.to_pyro().class_probs.numpy())


@pytest.mark.parametrize("form", [csr_matrix, np.asarray])
def test_weights_of_pieces_count_rows(form):
    values, _ = planted(300)
    values[0, :3] = np.nan
    weights = np.random.default_rng(0).integers(4, size=300)
    density, repeated = (MEVMDensity(n_components=2, n_init=1, random_state=0).fit(values[:100]) for _ in range(2))
    for piece in (slice(100, 200), slice(200, 300), slice(0, 100)):
        density.partial_fit(form(values[piece]), sample_weight=weights[piece])
        repeated.partial_fit(values[piece].repeat(weights[piece], axis=0))
    np.testing.assert_allclose(density.score_samples(values), repeated.score_samples(values), rtol=1e-10)
    before = density.score_samples(values)
    for piece, options in ((values[:, :7], {}), (values, {"sample_weight": np.zeros(300)})):
        with pytest.raises(ValueError, match="features|sample_weight: expected"):
            density.partial_fit(piece, **options)
    np.testing.assert_array_equal(density.score_samples(values), before)
