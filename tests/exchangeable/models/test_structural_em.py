"""Structural EM against closed forms where the classes are known, and the objective that it is to increase."""

import numpy as np
import pytest
import torch

from pyro_structured.distributions import ExchangeablePartition
from pyro_structured.exchangeable.models.structural_em import STRUCTURES, StructuralEM
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.models import merge_partition, welch_partition
from pyro_structured.structures import Partition

WELCH = {"level": 0.1, "linkage": "anchor", "correction": "none"}


def random_values(number=200, missing=0.0, seed=0):
    """Two classes: three equal variables, three of equal means, one that is never 1; and the classes."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=number)
    equal = (rng.random((number, 1)) < 0.5).repeat(3, axis=1)
    alike = rng.random((number, 3)) < np.where(z, 0.9, 0.2)[:, None]
    values = np.hstack([equal, alike, np.zeros((number, 1))]).astype(float)
    values[z == 0] = values[z == 0][:, [3, 4, 5, 0, 1, 2, 6]]
    values[rng.random(values.shape) < missing] = np.nan
    return values, z


def make_learner(rows, structure, max_iter=300, allowed=None, smoothing=0.1):
    return StructuralEM(rows, structure, smoothing, 1e-4, max_iter, allowed, **WELCH)


def one_hot(z):
    return np.equal.outer(np.arange(2), z).astype(float)


def expected_partition(structure, x, weights):
    """The blocks of each class, found by the public functions."""
    start = Partition(torch.arange(7).expand(2, 7))
    if "welch" in structure:
        means = weights @ x / weights.sum(-1, keepdim=True)
        labels = torch.zeros(2, 7, dtype=torch.long)  # the last variable is never 1, and left out
        labels[:, :6] = 1 + welch_partition(means[:, :6], weights.sum(-1), *WELCH.values()).labels
        start = Partition(labels)
    return merge_partition(x, weights, start) if "merge" in structure else start


@pytest.mark.parametrize("scale", [1.0, 0.04])  # light rows are too little evidence for blocks
@pytest.mark.parametrize("structure", STRUCTURES)
def test_known_classes_have_closed_forms(structure, scale):
    values, z = random_values()
    weights = scale * np.random.default_rng(2).random(len(z))
    learner = make_learner(BinaryRows.from_matrix(values, weights), structure, allowed=one_hot(z))
    *_, (mixture, log_likelihood, *_) = learner.run(one_hot(z), np.random.default_rng(0))
    x, weights = torch.from_numpy(values), torch.from_numpy(one_hot(z) * weights)
    assert mixture.partition == expected_partition(structure, x, weights)
    expected, found = ExchangeablePartition.from_data(x, mixture.partition, 0.1, weights), mixture.to_pyro()
    torch.testing.assert_close(found.class_probs, weights.sum(-1) / weights.sum())
    torch.testing.assert_close(found.component(torch.arange(2)).count_marginals, expected.count_marginals)
    scores = found.class_probs.log() + expected.log_prob(x.unsqueeze(1))
    assert log_likelihood == pytest.approx(float((weights.mT * scores).sum()))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_objective_never_falls(structure, missing):
    values, _ = random_values(missing=missing)
    rows, _ = BinaryRows.from_matrix(values).merged()
    rng = np.random.default_rng(0)
    objectives, steps = [], []
    for phase in make_learner(rows, structure).run(rng.dirichlet(np.ones(3), len(rows)).T, rng):
        objectives.append(phase.log_likelihood + phase.mixture.parameters.log_prior)
        steps.append(phase.num_iterations)
    assert objectives == sorted(objectives) and steps == sorted(steps) and objectives


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_a_step_never_lowers_the_objective(structure, missing):
    """Runs that are cut off after every number of steps."""
    values, _ = random_values(80, missing)
    rows = BinaryRows.from_matrix(values)
    posterior = np.random.default_rng(1).dirichlet(np.ones(2), len(rows)).T
    found = []
    for steps in range(1, 12):
        *_, last = make_learner(rows, structure, steps).run(posterior, np.random.default_rng(0))
        found.append(last.log_likelihood + last.mixture.parameters.log_prior)
    assert np.diff(found).min() > -1e-9 and found[-1] > found[0] + 1


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_log_likelihood_is_that_of_the_distribution(structure, missing):
    values, _ = random_values(missing=missing)
    weights = np.random.default_rng(2).random(len(values))
    rows = BinaryRows.from_matrix(values, weights)
    rng = np.random.default_rng(0)
    value, observed = torch.from_numpy(np.nan_to_num(values)), torch.from_numpy(~np.isnan(values))
    for phase in make_learner(rows, structure).run(rng.dirichlet(np.ones(2), len(rows)).T, rng):
        log_prob = phase.mixture.to_pyro().marginal_log_prob(value, observed)
        assert phase.log_likelihood == pytest.approx(float(log_prob @ torch.from_numpy(weights)))


def test_merging_makes_a_phase_of_its_own():
    values, _ = random_values()
    rows = BinaryRows.from_matrix(values)
    posterior = np.random.default_rng(0).dirichlet(np.ones(2), len(rows)).T
    first, *_, last = make_learner(rows, "merge").run(posterior, np.random.default_rng(0))
    singles = torch.arange(7).expand(2, 7)
    assert torch.equal(first.mixture.partition.labels, singles)
    assert any([0, 1, 2] in part.blocks() for part in last.mixture.partition)
    independent = list(make_learner(rows, "independent").run(posterior, np.random.default_rng(0)))
    assert len(independent) == 1 and torch.equal(independent[0].mixture.partition.labels, singles)
    assert independent[0].log_likelihood == pytest.approx(first.log_likelihood)


@pytest.mark.parametrize("structure, max_iter", [("merge", 500), ("welch+merge", 500), ("merge", 2)])
def test_a_run_goes_on_from_its_first_phase(structure, max_iter):
    values, _ = random_values()
    learner = make_learner(BinaryRows.from_matrix(values), structure, max_iter)
    posterior = np.random.default_rng(0).dirichlet(np.ones(2), len(values)).T
    phases = list(learner.run(posterior, np.random.default_rng(0)))
    again = list(learner.run(phases[0], np.random.default_rng(0)))
    assert [each.log_likelihood for each in again] == pytest.approx([each.log_likelihood for each in phases])
    assert [each[2::2] for each in again] == [each[2::2] for each in phases]
    assert len(phases) > 1 or structure != "merge" or max_iter == 2


def test_no_convergence():
    values, _ = random_values()
    rows = BinaryRows.from_matrix(values)
    posterior = np.random.default_rng(0).dirichlet(np.ones(2), len(rows)).T
    (phase,) = make_learner(rows, "independent", max_iter=2).run(posterior, np.random.default_rng(0))
    assert phase.num_iterations == 2 and not phase.converged
