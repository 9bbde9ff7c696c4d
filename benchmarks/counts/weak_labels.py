"""Digits told apart by counts alone: label proportions of bags, and positive and unlabeled digits.

Claims: the likelihood of exact counts makes fewer errors than the standard baselines of both tasks.
"""

import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from torch.nn.functional import logsigmoid, softplus

from benchmarks.measurement import Report, arguments
from pyro_structured.distributions import BagLabel
from pyro_structured.distributions.cardinality_potentials import exactly

TEXT = """
Odd against even digits of scikit-learn (1,797 images of 8 x 8 pixels): random splits, 1,200 digits for training, 597
for testing. All methods learn the same scores, linear in 300 features of a Nystroem map of the RBF kernel, which sees
no label; the same L-BFGS; the factor of L2 is chosen by each method's own loss on a fifth of its bags or rows, then all
of them are learned from. No method sees a test digit, or the label of a single digit unless the table says so. Error:
share of wrong labels of single test digits, mean over splits; *difference* is to the first line of the table, on the
same splits, with its standard error over splits (training sets overlap: it is too small rather than too large).

**Label proportions.** Bags of some digits each, at random; of a bag only the number of odd digits is known. *Exact
counts*: the log-likelihood of this number, `BagLabel(scores, laws)` with laws `exactly(n, k)` (Shukla and others 2023).
*Mean proportion*: the usual loss, the cross-entropy of the known share and the mean predicted probability of the bag.
*Supervised*: logistic regression with all labels.

**Positive and unlabeled.** 100 odd digits are known to be odd; of the 1,100 others only the share of odd ones is known.
*Exact count*: likelihood of the known digits, and of their number in the bag of all unlabeled digits. *Binomial count*:
the known digits, and in bags of 20 unlabeled digits the cross-entropy of the count and its binomial law, for the same
share (Shukla and others 2023). *Unbiased* and *non-negative* risk: du Plessis and others (2015), Kiryo and others
(2017), with the logistic loss. *Naive*: the unlabeled count as even.
"""
TRAIN, LABELED, FEATURES = 1200, 100, 300
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2)
BAG_SIZES = (4, 16, 60)
PU_BAG = 20


def digits(seed):
    """Features and whether a digit is odd, for training and for testing."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    mapping = Nystroem(gamma=0.1, n_components=FEATURES, random_state=seed).fit(pixels[order[:TRAIN]] / 16)
    features = torch.from_numpy(mapping.transform(pixels[order] / 16))
    odd = torch.from_numpy(labels[order] % 2)
    return (features[:TRAIN], odd[:TRAIN]), (features[TRAIN:], odd[TRAIN:])


def learned(loss, features, strength, steps=200):
    """Weights of the features, and of a constant, that minimise a loss of the scores and half the sum of squares."""
    weights = torch.zeros(features.shape[1] + 1, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=steps, history_size=20, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(scores(features, weights)) + strength / 2 * weights[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return weights.detach()


def scores(features, weights):
    return features @ weights[:-1] + weights[-1]


def error(loss_of, features, groups, test):
    """Error on single test digits.

    :param loss_of: Loss as a function of scores, for some of the groups.
    :param groups: Rows that stay together, each a tensor; a fifth of them chooses the strength.
    """
    part = math.ceil(len(groups) / 5)
    fit, held_out = groups[part:], groups[:part]
    losses = []
    for strength in STRENGTHS:
        rows = torch.cat(fit)
        weights = learned(loss_of(fit), features[rows], strength)
        losses.append(float(loss_of(held_out)(scores(features[torch.cat(held_out)], weights))))
    weights = learned(loss_of(groups), features[torch.cat(groups)], STRENGTHS[int(np.argmin(losses))])
    return float(((scores(test[0], weights) > 0) != test[1].bool()).double().mean())


def proportion_errors(seed, size):
    (features, odd), test = digits(seed)
    bags = list(torch.arange(len(odd)).split(size))
    laws = torch.stack([exactly(size, k) for k in range(size + 1)]).double()

    def exact(groups):
        counts = torch.stack([odd[rows].sum() for rows in groups])
        return lambda x: -BagLabel(x.reshape(-1, size), laws).log_prob(counts).sum() / x.numel()

    def mean_proportion(groups):
        share = torch.stack([odd[rows].double().mean() for rows in groups])

        def loss(x):
            found = x.reshape(-1, size).sigmoid().mean(-1).clamp(1e-12, 1 - 1e-12)
            return -(share * found.log() + (1 - share) * (1 - found).log()).mean()

        return loss

    def supervised(groups):
        labels = odd[torch.cat(groups)].double()
        return lambda x: softplus(x).mean() - (labels * x).mean()

    methods = {"exact counts": exact, "mean proportion": mean_proportion, "supervised": supervised}
    return {name: error(loss_of, features, bags, test) for name, loss_of in methods.items()}


def pu_errors(seed):
    (features, odd), test = digits(seed)
    known = odd.nonzero().squeeze(-1)[:LABELED]
    unknown = torch.ones(len(odd), dtype=torch.bool).index_fill(0, known, False).nonzero().squeeze(-1)
    prior = float(odd[unknown].double().mean())
    # Five parts of both kinds, so that one of them can be held out.
    groups = [torch.cat([known[i::5], unknown[i::5]]) for i in range(5)]
    is_known = torch.zeros(len(odd), dtype=torch.bool).index_fill(0, known, True)

    def parted(function):
        def loss_of(groups):
            mask = is_known[torch.cat(groups)]
            return lambda x: function(x[mask], x[~mask])

        return loss_of

    def exact(positive, unlabeled):
        n = len(unlabeled)
        laws = torch.stack([exactly(n, k) for k in (round(prior * n), n)]).double()
        laws[1] = torch.where(laws[0] == 0, -math.inf, 0.0)
        total = logsigmoid(positive).sum() + BagLabel(unlabeled, laws).log_prob(torch.tensor(0))
        return -total / (len(positive) + n)

    def binomial(positive, unlabeled):
        laws = torch.stack([exactly(PU_BAG, k) for k in range(PU_BAG + 1)]).double()
        bags = unlabeled[: len(unlabeled) // PU_BAG * PU_BAG].reshape(-1, PU_BAG)
        chances = torch.distributions.Binomial(PU_BAG, torch.tensor(prior).double())
        expected = chances.log_prob(torch.arange(PU_BAG + 1).double()).exp()
        return -prior * logsigmoid(positive).mean() - (BagLabel(bags, laws).logits @ expected).mean() / PU_BAG

    def negative_risk(positive, unlabeled):
        return softplus(unlabeled).mean() - prior * softplus(positive).mean()

    methods = {
        "exact count": exact,
        "binomial count": binomial,
        "non-negative risk": lambda p, u: prior * softplus(-p).mean() + negative_risk(p, u).clamp(min=0),
        "unbiased risk": lambda p, u: prior * softplus(-p).mean() + negative_risk(p, u),
        "naive": lambda p, u: (softplus(-p).sum() + softplus(u).sum()) / (len(p) + len(u)),
    }
    found = {name: error(parted(function), features, groups, test) for name, function in methods.items()}

    def supervised(groups):
        labels = odd[torch.cat(groups)].double()
        return lambda x: softplus(x).mean() - (labels * x).mean()

    return {**found, "supervised": error(supervised, features, groups, test)}


def summary(found):
    """Rows of a table: mean error of each method, and its difference to the first one."""
    first, *_ = found[0]
    rows, differences = [], {}
    for name in found[0]:
        errors = np.array([each[name] for each in found])
        gaps = errors - np.array([each[first] for each in found])
        differences[name] = gaps.mean(), gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        text = "–" if name == first else "{:+.3f} ± {:.3f}".format(*differences[name])
        rows.append([name, f"{errors.mean():.3f}", text])
    return rows, differences


def main():
    options = arguments(__doc__, splits=(5, "number of random splits"))
    splits = 1 if options.quick else options.splits
    report = Report("Weak labels", TEXT, options)
    for size in BAG_SIZES[:1] if options.quick else BAG_SIZES:
        rows, differences = summary([proportion_errors(options.seed + split, size) for split in range(splits)])
        report.progress(str(rows))
        gap, deviation = differences["mean proportion"]
        claim = f"bags of {size}: mean proportion is worse than exact counts"
        report.claim(claim, "> 0, beyond 2 s.e.", f"{gap:+.3f} ± {deviation:.3f}", gap > 2 * deviation)
        report.table(f"Label proportions, bags of {size}", ["method", "error", "difference"], rows)
    rows, differences = summary([pu_errors(options.seed + split) for split in range(splits)])
    for name in ("unbiased risk", "non-negative risk", "naive"):
        gap, deviation = differences[name]
        claim = f"positive and unlabeled: {name} is worse than the exact count"
        report.claim(claim, "> 0, beyond 2 s.e.", f"{gap:+.3f} ± {deviation:.3f}", gap > 2 * deviation)
    report.table("Positive and unlabeled", ["method", "error", "difference"], rows)
    report.finish()


if __name__ == "__main__":
    main()
