"""Classifiers of bags for all folds and all settings at once: one batch of weights."""

import math

import numpy as np
import torch

from pyro_structured.distributions import BagLabel

FARTHEST = 5.0
BETAS, EPSILON = (0.9, 0.999), 1e-10


class Bags:
    """Rows sorted by bag; bags of one size together."""

    def __init__(self, X, groups, labels):
        self.X, self.labels = X, torch.from_numpy(labels)
        sizes = np.bincount(groups)
        self.groups = groups
        self.by_size = {}
        for size in np.unique(sizes):
            bags = np.flatnonzero(sizes == size)
            rows = np.stack([np.flatnonzero(groups == bag) for bag in bags])
            self.by_size[int(size)] = torch.from_numpy(bags), torch.from_numpy(rows)

    def inputs(self, used):
        """Standardised and cut as `MultipleInstanceClassifier` does, by the rows of the used bags of each fold."""
        found = []
        for bags in used:
            rows = self.X[bags[self.groups]]
            scales = rows.std(0)
            found.append(((self.X - rows.mean(0)) / np.where(scales > 0, scales, np.inf)).clip(-FARTHEST, FARTHEST))
        return torch.from_numpy(np.stack(found))


class Fits:
    """Weights of shape (folds, settings, ...), learned from some bags of each fold by proximal Adam.

    :param used: Whether a bag is learned from, shape (folds, bags).
    :param law: Function of the size and of the knots, tables of shape (folds or 1, settings, 2, size + 1).
    :param l1: Factors of the absolute values of the weights, shape (folds or 1, settings).
    :param l2: Factors of half their squares, likewise.
    :param hidden: Number of hidden units; 0 for linear scores.
    :param knots: Numbers of the laws that are learned, shape (folds or 1, settings, ...), with a standard normal prior
        around these; None if nothing is learned.
    """

    def __init__(self, bags, used, law, l1, l2, hidden=0, knots=None, seed=0):
        self.bags, self.used, self.law = bags, torch.from_numpy(used), law
        self.inputs = bags.inputs(used)
        folds, settings, columns = len(used), l1.shape[-1], bags.X.shape[1]
        self.l1, self.l2 = (factor.expand(folds, settings) for factor in (l1, l2))
        self.start = None if knots is None else knots.expand(folds, *knots.shape[1:])
        self.knots = None if knots is None else self.start.clone()
        # Weights, which are penalised, and shifts.
        self.weights = [torch.zeros(folds, columns, settings, hidden or 1, dtype=torch.double)]
        self.shifts = [torch.zeros(folds, 1, settings, hidden or 1, dtype=torch.double)]
        if hidden:
            # All settings begin alike.
            generator = torch.Generator().manual_seed(seed)
            first = torch.randn(1, columns, 1, hidden, generator=generator, dtype=torch.double) / math.sqrt(columns)
            last = torch.randn(1, 1, 1, hidden, generator=generator, dtype=torch.double) / math.sqrt(hidden)
            self.weights = [first + self.weights[0], last + self.shifts[0]]
            self.shifts.append(torch.zeros(folds, 1, settings, dtype=torch.double))

    def scores(self):
        """Scores of the instances, shape (folds, settings, rows)."""
        first = self.weights[0]
        units = (self.inputs @ first.flatten(2)).unflatten(2, first.shape[2:]) + self.shifts[0]
        if len(self.weights) == 1:
            return units.squeeze(-1).mT
        return ((units.tanh() * self.weights[1]).sum(-1) + self.shifts[1]).mT

    def of_bags(self, query):
        """What a query of `BagLabel` says about each bag, the bags on the third axis."""
        scores, found, order = self.scores(), [], []
        for size, (bags, rows) in self.bags.by_size.items():
            tables = self.law(size, self.knots).unsqueeze(-3)
            found.append(query(BagLabel(scores[..., rows], tables, validate_args=False)))
            order.append(bags)
        return torch.cat(found, 2)[:, :, torch.cat(order).argsort()]

    def log_probs(self):
        """Log-probabilities of both labels, shape (folds, settings, bags, 2)."""
        return self.of_bags(lambda labels: labels.logits)

    def expected_positive(self):
        """Expected number of positive instances of each bag if it is positive, shape (folds, settings, bags)."""
        return self.of_bags(lambda labels: labels.posterior(torch.tensor(1)).marginals.sum(-1))

    def own_log_probs(self):
        """Log-probabilities of the true labels, shape (folds, settings, bags)."""
        log_probs = self.log_probs()
        return log_probs.gather(-1, self.bags.labels[:, None].expand(log_probs.shape[:-1] + (1,))).squeeze(-1)

    def losses(self):
        """Objectives without L1, for each bag, shape (folds, settings)."""
        total = -(self.own_log_probs() * self.used.unsqueeze(1)).sum(-1)
        for weight in self.weights:
            total = total + self.l2 / 2 * weight.square().sum((1, 3))
        if self.knots is not None:
            total = total + (self.knots - self.start).square().flatten(2).sum(-1) / 2
        return total / self.used.sum(-1, keepdim=True)

    def learn(self, steps, rate):
        """Steps that shrink along half a cosine, each followed by the proximal step of L1."""
        parameters = [*self.weights, *self.shifts, *([] if self.knots is None else [self.knots])]
        for parameter in parameters:
            parameter.requires_grad_()
        optimizer = torch.optim.Adam(parameters, lr=rate, betas=BETAS, eps=EPSILON)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        prices = (self.l1 / self.used.sum(-1, keepdim=True))[:, None, :, None]
        for _ in range(steps):
            optimizer.zero_grad()
            self.losses().sum().backward()
            optimizer.step()
            with torch.no_grad():
                for weight in self.weights:
                    state = optimizer.state[weight]
                    spread = (state["exp_avg_sq"] / (1 - BETAS[1] ** state["step"])).sqrt() + EPSILON
                    shrink = optimizer.param_groups[0]["lr"] * prices / spread
                    weight.copy_(weight.sign() * (weight.abs() - shrink).clamp(min=0))
            schedule.step()
        for parameter in parameters:
            parameter.requires_grad_(False)
        return self
