"""Chechetka and Guestrin (2007), Efficient principled learning of thin junction trees.

For every separator of k variables, the others are split into parts: a set of at most k + 2 variables is in one part if
every way of splitting it in two leaves more than a threshold of conditional information given the separator. A dynamic
programme makes a junction tree of separators and parts, if there is one. Of the trees of several thresholds, the
likeliest one is kept.
"""

from itertools import combinations

import numpy as np
from scipy.special import xlogy

from pyro_structured.junction_trees.ops.chordal_graph import (
    elimination_cliques,
    maximum_cardinality_order,
    neighbor_sets,
)

MOST_VARIABLES = 20
NUM_THRESHOLDS = 20


def learn_principled_tree(rows, treewidth):
    """Neighbours in the junction tree; at most 20 variables, since entropies are kept by sets of them.

    :param CategoricalRows rows: The data.
    :param int treewidth: The number k.
    """
    number = len(rows.cardinalities)
    if number > MOST_VARIABLES:
        raise ValueError(f"rows: expected at most {MOST_VARIABLES} variables, got {number}")
    if number <= treewidth + 1:
        return neighbor_sets(number, combinations(range(number), 2))
    entropies = _entropies(rows, 2 * treewidth + 2)
    separators = combinations(range(number), treewidth)
    steps = {_mask(each): _steps(entropies, number, _mask(each), treewidth + 2) for each in separators}
    critical = [strength for group in steps.values() for strength, _ in group[1:]]
    thresholds = np.quantile(critical, np.linspace(0, 1, NUM_THRESHOLDS), method="nearest")
    found = [_find_tree(steps, threshold) for threshold in thresholds]
    graphs = [_graph(number, cliques) for cliques in found if cliques is not None]
    return min(graphs, key=lambda neighbors: _entropy(neighbors, entropies))


def _mask(variables):
    return sum(1 << d for d in variables)


def _members(mask):
    return [d for d in range(mask.bit_length()) if mask >> d & 1]


def _graph(number, cliques):
    return neighbor_sets(number, [pair for clique in cliques for pair in combinations(_members(clique), 2)])


def _entropies(rows, largest):
    """Entropies of all sets of variables up to a size, at the index of their masks, shape ``(2 ** n,)``."""
    number = len(rows.cardinalities)
    found = np.full(1 << number, np.nan)
    for size in range(min(largest, number) + 1):
        for variables in combinations(range(number), size):
            shares = rows.counts(variables) / rows.total
            found[_mask(variables)] = -xlogy(shares, shares).sum()
    return found


def _entropy(neighbors, entropies):
    """Entropy of the decomposable model of a chordal graph."""
    order = maximum_cardinality_order(neighbors)
    cliques = zip(order, elimination_cliques(neighbors, order), strict=True)
    return sum(entropies[_mask(clique)] - entropies[_mask(clique - {d})] for d, clique in cliques)


def _strengths(entropies, separator, others, largest):
    """Masks of sets of variables, and the least conditional information between two sides of each."""
    masks, strengths = [], []
    for size in range(2, min(largest, len(others)) + 1):
        bits = 1 << np.array(list(combinations(others, size)))
        whole, weakest = bits.sum(1), np.inf
        # Every split has one side without the first variable.
        for split in range(1, 1 << (size - 1)):
            side = sum(bits[:, place + 1] for place in _members(split))
            weakest = np.minimum(weakest, entropies[separator | side] + entropies[separator | (whole - side)])
        masks.append(whole)
        strengths.append(weakest - entropies[separator | whole] - entropies[separator])
    return np.concatenate(masks), np.concatenate(strengths)


def _steps(entropies, number, separator, largest):
    """Parts of a separator by falling threshold: pairs of a strength, and the parts for thresholds below it."""
    others = [d for d in range(number) if not separator >> d & 1]
    masks, strengths = _strengths(entropies, separator, others, largest)
    parts = [1 << d for d in others]
    steps = [(np.inf, parts)]
    for place in np.argsort(-strengths).tolist():
        joined = [part for part in parts if part & int(masks[place])]
        if len(joined) > 1:
            parts = [part for part in parts if part not in joined] + [sum(joined)]
            steps.append((float(strengths[place]), parts))
        if len(parts) == 1:
            break
    return steps


def _find_tree(steps, threshold):
    """Cliques of a junction tree whose edges are separators and their parts; ``None`` if none is found."""
    parts = {separator: _parts(group, threshold) for separator, group in steps.items()}
    pairs = [(part, separator) for separator, group in parts.items() for part in group]
    cliques = {}
    for part, separator in sorted(pairs, key=lambda pair: pair[0].bit_count()):
        for x in _members(part):
            below = _cover(separator | 1 << x, part & ~(1 << x), parts, cliques)
            if below is not None:
                cliques[separator, part] = [separator | 1 << x, *(each for pair in below for each in cliques[pair])]
                break
    for separator, group in parts.items():
        if all((separator, part) in cliques for part in group):
            return [clique for part in group for clique in cliques[separator, part]]
    return None


def _parts(steps, threshold):
    """Parts of a separator: sets are joined whose strength is above the threshold."""
    return [parts for strength, parts in steps if strength > threshold][-1]


def _cover(clique, rest, parts, cliques):
    """Disjoint parts of separators in a clique that make up the rest, larger ones first; ``None`` if they do not."""
    separators = [clique & ~(1 << d) for d in _members(clique)]
    pairs = {(separator, part) for separator in separators for part in parts[separator]} & cliques.keys()
    chosen = []
    for separator, part in sorted(pairs, key=lambda pair: (-pair[1].bit_count(), pair)):
        if not part & ~rest:
            chosen.append((separator, part))
            rest &= ~part
    return None if rest else chosen
