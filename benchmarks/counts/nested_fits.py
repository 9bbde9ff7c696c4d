"""Potentials on the counts of nested subsets, fitted to images, and the clusterings that such subsets come from."""

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.junction_trees.models.counted_tree_fitting import LEVEL_PRICE, STIFFNESS
from pyro_structured.structures import NestedSubsets


def disagreement(images):
    """Share of images in which two pixels differ, for all pairs."""
    ones = images.astype(float)
    both = ones.T @ (1 - ones)
    return (both + both.T) / len(images)


def decorrelation(images):
    """One minus the correlation, for all pairs; pixels that never change are uncorrelated with all."""
    centred = images - images.mean(0)
    scale = np.sqrt((centred**2).sum(0)).clip(min=1e-9)
    return (1 - (centred / scale).T @ (centred / scale)).clip(min=0.0)


def clusters(distance, method="average"):
    """All clusters of a hierarchical clustering, the nested subsets of Section 6.4."""
    return NestedSubsets.from_linkage(linkage(squareform(distance, checks=False), method))


class _Objective:
    """Mean log-likelihood of images and of one more, of independent pixels, less the price of rough tables.

    Parameters are scaled by the square root of the curvature that the objective would have if each stood alone.
    """

    def __init__(self, images, subsets):
        values = torch.from_numpy(images)
        self.subsets, self.total = subsets, len(images) + 1
        ones = values.sum(0, dtype=torch.double)
        on = (ones + 0.5) / self.total
        self.start = torch.cat([on.logit(), on.new_zeros(subsets.table_size)])
        independent = self.distribution(self.start)
        columns = zip(subsets.counts(values).T, subsets.sizes, strict=True)
        seen = torch.cat([column.bincount(minlength=size + 1) for column, size in columns])
        self.observed = torch.cat([ones + on, seen + independent.count_marginals]) / self.total
        # Second differences that lie within one table.
        table = torch.arange(len(subsets.sizes)).repeat_interleave(torch.tensor(subsets.sizes) + 1)
        self.inside = table[2:] == table[:-2]

    def distribution(self, parameters):
        logits, tables = parameters.split([self.subsets.num_variables, self.subsets.table_size])
        return RecursiveCardinality(logits, tables, self.subsets, validate_args=False)

    def maximize(self, stiffness, start, iterations):
        price = stiffness / self.total
        curvature = self.observed * (1 - self.observed)
        curvature[self.subsets.num_variables :] += price
        scale = curvature.clamp(min=1e-9).rsqrt()
        change = torch.zeros_like(start, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [change], max_iter=iterations, history_size=20, tolerance_change=1e-9, line_search_fn="strong_wolfe"
        )

        def loss():
            optimizer.zero_grad()
            parameters = start + scale * change
            tables = parameters[self.subsets.num_variables :]
            rough = tables.diff(n=2)[self.inside].square().sum() + LEVEL_PRICE * tables.square().sum()
            value = price * rough - self.observed @ parameters
            value = value + self.distribution(parameters).log_partition_function
            value.backward()
            return value

        optimizer.step(loss)
        return (start + scale * change).detach()


def fit_counts(images, subsets, validation, seed, iterations):
    """Tables whose price of roughness is chosen on validation images; if these are None, on a random tenth of the
    images, all of which are then learned from.
    """
    part = images
    if validation is None:
        order = np.random.default_rng(seed).permutation(len(images))
        validation, part = np.split(images[order], [len(images) // 10])
    objective = _Objective(part, subsets)
    parameters, candidates = objective.start, []
    for stiffness in sorted(STIFFNESS, reverse=True):
        parameters = objective.maximize(stiffness, parameters, iterations)
        score = log_probs(objective.distribution(parameters), validation).mean()
        candidates.append((score, stiffness, parameters))
    _, stiffness, parameters = max(candidates, key=lambda candidate: candidate[0])
    if part is not images:
        objective = _Objective(images, subsets)
        parameters = objective.maximize(stiffness, parameters, iterations)
    return objective.distribution(parameters)


def log_probs(distribution, images):
    return distribution.log_prob(torch.from_numpy(images).double()).numpy()
