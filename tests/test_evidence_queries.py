"""Evidence queries of the benchmarks, and the choice and timing of models."""

import importlib

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def load():
    return lambda name: importlib.import_module(f"benchmarks.junction_trees.{name}")


@pytest.fixture
def network(load):
    return load("synthetic_network").random_network(6, "tables", 3, (2, 5), np.random.default_rng(0))


def test_evidence_is_random_of_a_fixed_size(load):
    observed = load("evidence_queries").random_evidence(4000, 10, 0.2, np.random.default_rng(0))
    assert (observed.sum(-1) == 2).all()
    assert np.abs(observed.mean(0) - 0.2).max() < 0.03
    assert (load("evidence_queries").random_evidence(5, 3, 0.99, np.random.default_rng(0)).sum(-1) == 2).all()


def test_figures_count_hidden_variables(load):
    queries = load("evidence_queries")
    exact = np.array([[[0.5, 0.5], [0.2, 0.8], [0.0, 1.0]]])
    found = np.array([[[0.75, 0.25], [0.3, 0.7], [1.0, 0.0]]])
    observed = np.array([[False, False, True]])
    assert queries.accuracy(found, np.array([[0, 0, 1]]), observed) == 0.5
    assert queries.mean_absolute_error(found, exact, observed) == pytest.approx((0.25 + 0.1) / 2)
    divergence = 0.5 * np.log(2 / 3) + 0.5 * np.log(2) + 0.2 * np.log(2 / 3) + 0.8 * np.log(8 / 7)
    assert queries.mean_divergence(found, exact, observed) == pytest.approx(divergence / 2)
    assert queries.mean_divergence(exact, exact, observed) == 0


def test_intervals_cover_the_mean(load):
    queries, rng = load("evidence_queries"), np.random.default_rng(0)
    found = [queries.bootstrap_interval(rng.normal(1.0, 2.0, 40), rng, 500) for _ in range(400)]
    assert all(low < mean < high for mean, low, high in found)
    assert 0.88 < np.mean([low < 1 < high for _, low, high in found]) < 0.98


def test_all_contestants_answer(load, network):
    queries, rng = load("evidence_queries"), np.random.default_rng(0)
    values = load("synthetic_network").draw(network, 450, rng)
    observed, exact = queries.random_evidence(*values.shape, 0.5, rng), network.to_junction_tree()
    answers, converged = queries.ask({"exact": exact}, network, values, observed)
    expected = exact.condition(torch.from_numpy(values), torch.from_numpy(observed)).marginals
    np.testing.assert_allclose(answers["exact"][0], expected)
    assert set(answers) == {"exact", *converged}
    assert all(found.shape == expected.shape for found, _ in answers.values())


def test_log_likelihood_of_a_network(load, network):
    values = load("synthetic_network").draw(network, 50, np.random.default_rng(0))
    expected = network.to_junction_tree().log_prob(torch.from_numpy(values))
    np.testing.assert_allclose(load("model_selection").log_likelihood(network, values), expected)


def test_models_are_the_likeliest_on_validation_data(load, network):
    selection, rng = load("model_selection"), np.random.default_rng(0)
    train, validation = (load("synthetic_network").draw(network, 40, rng) for _ in range(2))
    compact = selection.learn_compact(train, validation, [2] * 6, 2, 0)
    assert max(map(len, compact.parents)) <= 2
    likelihood = selection.log_likelihood(compact, validation).mean()
    fit = load("ordering_search").fit_network
    for smoothing in selection.SMOOTHINGS:
        other = fit(train, [2] * 6, compact.parents, smoothing)
        assert selection.log_likelihood(other, validation).mean() <= likelihood + 1e-12


def test_long_runs_are_stopped(load):
    with pytest.raises(TimeoutError), load("structure_time").limit(0.05):
        for _ in range(10**9):
            pass
