"""Many small logistic regressions at once."""

__all__ = ["logistic_likelihood"]

import torch
from torch import Tensor

MOST_STEPS, SMALLEST_GAIN = 50, 1e-9


def logistic_likelihood(features: Tensor, target: Tensor, num_classes: int, weights: Tensor, ridge: float) -> Tensor:
    r"""Log-likelihoods of multinomial logistic regressions of the same target on different features.

    The first class has the log-weight 0, the others are linear in the features. The coefficients maximise the
    log-likelihood less ``ridge / 2`` times their sum of squares, by Newton steps that are halved where they overshoot.

    :param Tensor features: Features of B regressions, float64, shape ``(B, N, d)``, one of them a constant.
    :param Tensor target: Classes, integers of shape ``(N,)``.
    :param int num_classes: Number r of classes.
    :param Tensor weights: Weights of the rows, at least 0, shape ``(B, N)``.
    :param float ridge: Weight of the penalty, more than 0.
    :return: Log-likelihoods without the penalty, shape ``(B,)``. Cost O(B N d² r²) for each of the few steps.

    Example::

        >>> target = torch.tensor([0, 1, 1, 1])
        >>> constant = torch.ones(1, 4, 1, dtype=torch.float64)
        >>> logistic_likelihood(constant, target, 2, torch.ones(1, 4), 1e-9).exp()  # (1/4) (3/4)^3
        tensor([0.1055], dtype=torch.float64)
    """
    batch, _, width = features.shape
    hits = torch.nn.functional.one_hot(target, num_classes).to(features.dtype)
    coef = features.new_zeros(batch, width, num_classes - 1)
    step = torch.zeros_like(coef)
    scale = features.new_ones(batch, 1, 1)
    best = features.new_full((batch,), -torch.inf)
    for _ in range(MOST_STEPS):
        logits = torch.nn.functional.pad(features @ (coef + scale * step), (1, 0))
        log_probs = logits.log_softmax(-1)
        likelihood = (weights * (hits * log_probs).sum(-1)).sum(-1)
        objective = likelihood - 0.5 * ridge * (coef + scale * step).square().sum((1, 2))
        gain = objective - best
        better = gain >= 0
        if bool((gain.abs() <= SMALLEST_GAIN * (1 + objective.abs())).all()):
            break
        coef = torch.where(better[:, None, None], coef + scale * step, coef)
        best = torch.where(better, objective, best)
        # Regressions that have overshot try half the step; the others, a new one.
        fresh = _newton_step(features, hits, log_probs.exp(), weights, coef, ridge)
        step = torch.where(better[:, None, None], fresh, step)
        scale = torch.where(better[:, None, None], 1.0, scale / 2)
    return likelihood


def _newton_step(features: Tensor, hits: Tensor, probs: Tensor, weights: Tensor, coef: Tensor, ridge: float) -> Tensor:
    batch, _, width = features.shape
    free, number = probs[..., 1:], probs.shape[-1] - 1
    gradient = features.mT @ (weights.unsqueeze(-1) * (hits[:, 1:] - free)) - ridge * coef
    curvature = features.new_zeros(batch, width, number, width, number)
    for first in range(number):
        for second in range(number):
            spread = weights * free[..., first] * (float(first == second) - free[..., second])
            curvature[:, :, first, :, second] = features.mT @ (spread.unsqueeze(-1) * features)
    square = curvature.reshape(batch, width * number, width * number)
    square.diagonal(dim1=1, dim2=2).add_(ridge)
    step: Tensor = torch.linalg.solve(square, gradient.reshape(batch, -1, 1))
    return step.reshape(coef.shape)
