"""Graphs of conditional random fields by group L1 on pseudo-likelihoods, in the style of Schmidt et al. (2008)."""

import itertools

import numpy as np
import torch

from pyro_structured.distributions import JunctionTree
from pyro_structured.structures import CliqueTree

# Larger tables are not for exact inference.
LARGEST_TABLE = 2**13
FISTA_STEPS, FISTA_TOLERANCE, BELIEF_STEPS, DAMPING = 200, 1e-5, 100, 0.5


class PseudoLikelihoodField:
    """A pairwise field of binary labels: log-weights ``s_i (v_i x) + s_i s_j (v_ij x)`` for s of -1/2 and 1/2, x with a
    constant.
    """

    def __init__(self, num_labels, num_features):
        self.pairs = np.array(list(itertools.combinations(range(num_labels), 2)))
        self.nodes = torch.zeros(num_features + 1, num_labels, dtype=torch.double)
        self.edges = torch.zeros(num_features + 1, len(self.pairs), dtype=torch.double)

    @property
    def selected(self):
        """Edges whose group of weights is not zero."""
        return self.edges.norm(dim=0) > 0

    def fit(self, X, Y, group_penalty, l2, allowed=None):
        """Maximises the mean pseudo-likelihood by proximal gradient steps with momentum, from the present weights."""
        inputs, spins = prepared(X, Y)
        allowed = torch.ones(len(self.pairs)) if allowed is None else allowed.double()
        spread = float(torch.linalg.matrix_norm(inputs, 2)) ** 2 / len(inputs)
        rate = 1.0 / (spread * (0.25 + 0.25 * 0.25 * 2 * spins.shape[1]) + l2)
        present = [self.nodes, self.edges]
        ahead, momentum = present, 1.0
        for _ in range(FISTA_STEPS):
            gradients = self._gradients(inputs, spins, *ahead)
            nodes = ahead[0] - rate * (gradients[0] + l2 * without_first(ahead[0]))
            edges = (ahead[1] - rate * (gradients[1] + l2 * ahead[1])) * allowed
            norms = edges.norm(dim=0)
            edges = edges * (1 - rate * group_penalty / norms.clamp(min=1e-300)).clamp(min=0)
            change = [nodes - present[0], edges - present[1]]
            if max(float(each.abs().max()) for each in change) < FISTA_TOLERANCE:
                break
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            # Momentum that points uphill is dropped.
            uphill = sum(float(((a - b) * c).sum()) for a, b, c in zip(ahead, (nodes, edges), change, strict=True)) > 0
            following, share = (1.0, 0.0) if uphill else (following, (momentum - 1) / following)
            present, momentum = [nodes, edges], following
            ahead = [new + share * step for new, step in zip(present, change, strict=True)]
        self.nodes, self.edges = nodes, edges
        return self

    def _logits(self, inputs, spins, nodes, edges):
        """Log-odds of each label given all others."""
        one, other = self.pairs.T
        weights = inputs @ edges
        logits = inputs @ nodes
        return logits.index_add(1, torch.tensor(one), weights * spins[:, other]).index_add(
            1, torch.tensor(other), weights * spins[:, one]
        )

    def _gradients(self, inputs, spins, nodes, edges):
        one, other = self.pairs.T
        surplus = (torch.sigmoid(self._logits(inputs, spins, nodes, edges)) - (spins + 0.5)) / len(inputs)
        joint = surplus[:, one] * spins[:, other] + surplus[:, other] * spins[:, one]
        return inputs.T @ surplus, inputs.T @ joint

    def log_likelihood(self, X, Y):
        """Mean log-pseudo-likelihood of a row."""
        inputs, spins = prepared(X, Y)
        logits = self._logits(inputs, spins, self.nodes, self.edges)
        return float(-torch.nn.functional.softplus(-2 * spins * logits).sum(1).mean())

    def marginals(self, X):
        """Probabilities of ones: exact where tables are small, or else by damped loopy belief propagation."""
        inputs = torch.nn.functional.pad(torch.from_numpy(X), (1, 0), value=1.0)
        kept = self.selected.numpy()
        pairs, number = self.pairs[kept], self.nodes.shape[1]
        nodes, edges = inputs @ self.nodes, (inputs @ self.edges)[:, kept]
        tree = CliqueTree.from_edges(pairs.tolist(), [2] * number)
        if tree.table_size > LARGEST_TABLE:
            return loopy_marginals(nodes, edges, torch.from_numpy(pairs))
        spin = torch.tensor([-0.5, 0.5], dtype=torch.double)
        factors = [([d], nodes[:, d, None] * spin) for d in range(number)]
        factors += [(pair.tolist(), edges[:, e, None, None] * torch.outer(spin, spin)) for e, pair in enumerate(pairs)]
        return JunctionTree.from_factors(factors, [2] * number, tree).marginals[..., 1].numpy()


def prepared(X, Y):
    return torch.nn.functional.pad(torch.from_numpy(X), (1, 0), value=1.0), torch.from_numpy(Y).double() - 0.5


def without_first(weights):
    return torch.cat([torch.zeros_like(weights[:1]), weights[1:]])


def loopy_marginals(nodes, edges, pairs):
    """Probabilities of ones, from log-odds that nodes send to each other."""
    source, target = torch.cat([pairs, pairs.flip(1)]).T
    weights = torch.cat([edges, edges], 1)
    back = torch.arange(len(source)).roll(len(pairs))
    messages = torch.zeros_like(weights)
    for _ in range(BELIEF_STEPS):
        belief = nodes.index_add(1, target, messages)
        cavity = belief[:, source] - messages[:, back]
        # log of sums over the source's spin of exp(cavity s + weight s t), for t = 1/2 less that for t = -1/2
        up, down = (
            torch.logaddexp((cavity + sign * weights / 2) / 2, -(cavity + sign * weights / 2) / 2) for sign in (1, -1)
        )
        messages = DAMPING * messages + (1 - DAMPING) * (up - down)
    return torch.sigmoid(nodes.index_add(1, target, messages)).numpy()
