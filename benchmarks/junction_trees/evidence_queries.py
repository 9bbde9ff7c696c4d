"""Conditionals of hidden variables under random evidence: how models answer, and how good the answers are."""

import time

import numpy as np
import torch

from benchmarks.junction_trees.belief_propagation import propagate_beliefs

DAMPING = 0.2
LOOPY, RESIDUAL = "compact, loopy", "compact, residual"
LEAST = 1e-12
# Rows at a time.
CHUNK = 200


def timed(run):
    """Result of a function, and its processor seconds."""
    start = time.process_time()
    found = run()
    return found, time.process_time() - start


def ask(models, compact, values, observed):
    """Conditionals with processor seconds, and shares of rows that converge.

    :param models: Junction trees by name, for exact inference.
    :param BayesianNetwork compact: For belief propagation.
    """
    answers = {name: timed(lambda m=m: exact_conditionals(m, values, observed)) for name, m in models.items()}
    converged = {}
    for name in (LOOPY, RESIDUAL):
        found, spent = timed(lambda n=name: propagate_beliefs(compact, values, observed, n == RESIDUAL, DAMPING))
        answers[name], converged[name] = (found.marginals, spent), found.converged.mean()
    return answers, converged


def random_evidence(num_rows, num_variables, rate, rng):
    """Mask of the observed variables in each row: the same number in all rows, at least one hidden."""
    number = min(max(round(rate * num_variables), 1), num_variables - 1)
    return rng.random((num_rows, num_variables)).argsort(-1) < number


def exact_conditionals(junction_tree, values, observed):
    """Marginals given evidence, shape ``(rows, n, largest cardinality)``."""
    pairs = zip(torch.from_numpy(values).split(CHUNK), torch.from_numpy(observed).split(CHUNK), strict=True)
    return torch.cat([junction_tree.condition(*pair).marginals for pair in pairs]).numpy()


def accuracy(found, values, observed):
    """The share of hidden variables whose most probable state is the true one."""
    return (found.argmax(-1) == values)[~observed].mean()


def mean_absolute_error(found, exact, observed):
    """Mean error of the probabilities of hidden variables: half the sum of absolute differences over a variable's
    states.
    """
    return np.abs(found - exact).sum(-1)[~observed].mean() / 2


def mean_divergence(found, exact, observed):
    """Kullback-Leibler divergence of the found conditionals of hidden variables from the exact ones, in nats."""
    logs = np.log(exact.clip(LEAST)) - np.log(found.clip(LEAST))
    return (exact * logs).sum(-1)[~observed].mean()


def bootstrap_interval(differences, rng, num_samples=10_000):
    """Mean, and its 95 % percentile interval."""
    differences = np.asarray(differences)
    means = differences[rng.integers(len(differences), size=(num_samples, len(differences)))].mean(-1)
    return differences.mean(), *np.quantile(means, [0.025, 0.975])
