"""Compact Bayesian networks by a search over orders of the variables: Teyssier and Koller (2005).

For an order, every variable has its best family among those that come before it; families of a few candidates are
scored once. The search swaps neighbours in the order: always the best swap that is not tabu. It starts again from the
best order with some variables moved. As Friedman, Nachman and Pe'er (1999) do, candidates are chosen anew in rounds:
what gains most beside the parents that have been found.
"""

from collections import deque
from itertools import combinations

import numpy as np

from pyro_structured.models import BayesianNetwork

NUM_ROUNDS = 3


def search_orders(score, max_parents, rng, num_starts=50, num_candidates=10):
    """Parents of all variables.

    :param ChordalScore score: A family is worth its term less that of the parents.
    :param int max_parents: Bound of the number of parents.
    :param int num_starts: Starts of the search, in each of three rounds with new candidates.
    :param int num_candidates: Number of possible parents of a variable.
    """
    number = len(score.rows.cardinalities)
    parents, order, best = [frozenset()] * number, rng.permutation(number).tolist(), -np.inf
    for _ in range(NUM_ROUNDS):
        candidates = [_candidates(score, d, parents[d], num_candidates) for d in range(number)]
        families = [_families(score, d, near, max_parents) for d, near in enumerate(candidates)]
        for _ in range(num_starts):
            total, found = _climb(families, order)
            if total > best:
                best, kept = total, found
            order = _moved(kept, rng)
        parents = [_best(families[d], _mask(kept[: kept.index(d)]))[2] for d in range(number)]
        order = kept
    return [sorted(above) for above in parents]


def fit_network(values, cardinalities, parents, smoothing):
    """A network with these parents, and tables from data with pseudo-observations spread over the joint states."""
    tables = []
    for d, above in enumerate(parents):
        family = [*above, d]
        shape = [cardinalities[other] for other in family]
        code = np.ravel_multi_index(tuple(values[:, other] for other in family), shape)
        counts = np.bincount(code, minlength=np.prod(shape)).reshape(shape) + smoothing / np.prod(shape)
        tables.append(counts / counts.sum(-1, keepdims=True))
    names = [f"x{d}" for d in range(len(parents))]
    return BayesianNetwork(names, [[str(s) for s in range(size)] for size in cardinalities], parents, tables)


def _candidates(score, variable, parents, number):
    """Parents, and what gains most beside them."""

    def value(other):
        return score.term(parents | {variable, other}) - score.term(parents | {other})

    rest = [d for d in range(len(score.rows.cardinalities)) if d != variable and d not in parents]
    return [*parents, *sorted(rest, key=value, reverse=True)][:number]


def _families(score, variable, candidates, max_parents):
    """Scores, masks and parents, the best first; none that is not better than a part of it."""
    best_part, kept = {}, []
    for size in range(max_parents + 1):
        for parents in map(frozenset, combinations(candidates, size)):
            value = score.term(parents | {variable}) - score.term(parents)
            part = max((best_part[parents - {other}] for other in parents), default=-np.inf)
            best_part[parents] = max(value, part)
            if value > part:
                kept.append((value, _mask(parents), parents))
    return sorted(kept, key=lambda family: -family[0])


def _climb(families, order):
    """The best order that swaps of neighbours reach, and its score."""
    number, order = len(order), list(order)
    total = sum(_best(families[d], _mask(order[:place]))[0] for place, d in enumerate(order))
    gains = [_gain(families, order, place) for place in range(number - 1)]
    tabu, stale, best, kept = deque(maxlen=number // 2), 0, total, list(order)
    while stale < number:
        allowed = [place for place in range(number - 1) if frozenset(order[place : place + 2]) not in tabu]
        if not allowed:
            break
        place = max(allowed, key=gains.__getitem__)
        total, stale = total + gains[place], stale + 1
        tabu.append(frozenset(order[place : place + 2]))
        order[place : place + 2] = order[place : place + 2][::-1]
        for near in range(max(place - 1, 0), min(place + 2, number - 1)):
            gains[near] = _gain(families, order, near)
        if total > best + 1e-9:
            best, kept, stale = total, list(order), 0
    return best, kept


def _moved(order, rng):
    """An order in which some variables have new places."""
    order = list(order)
    for _ in range(1 + len(order) // 10):
        order.insert(int(rng.integers(len(order))), order.pop(int(rng.integers(len(order)))))
    return order


def _mask(variables):
    return sum(1 << d for d in variables)


def _best(families, before):
    return next(family for family in families if not family[1] & ~before)


def _gain(families, order, place):
    """Gain of swapping a variable with the next one."""
    one, other = order[place : place + 2]
    before = _mask(order[:place])
    new = _best(families[other], before)[0] + _best(families[one], before | 1 << other)[0]
    return new - _best(families[one], before)[0] - _best(families[other], before | 1 << one)[0]
