"""A k-tree grown greedily, in the way of Karger and Srebro (2001), Learning Markov networks: maximum bounded treewidth.

Their guarantee needs a linear programme over all hypertrees; this is the greedy rule: always the variable and the
separator of largest information between them.
"""

import heapq
from itertools import combinations


def grow_k_tree(score, treewidth):
    """Neighbours in a graph that begins with a clique; every other variable is joined with k of an earlier clique.

    :param ChordalScore score: With the penalty 0, gains are information times the number of rows.
    :param int treewidth: The number k.
    """
    number = len(score.rows.cardinalities)

    def information(variable, separator):
        joint = score.term(separator | {variable}) - score.term(separator)
        return joint - score.term(frozenset([variable])) + score.term(frozenset())

    _, clique = max((information(one, frozenset([d])), {one, d}) for one, d in combinations(range(number), 2))
    remaining, heap = set(range(number)) - clique, []
    while len(clique) <= treewidth and remaining:
        clique.add(max(remaining, key=lambda d: information(d, frozenset(clique))))
        remaining -= clique
    neighbors = [clique - {d} if d in clique else set() for d in range(number)]
    separators = map(frozenset, combinations(clique, treewidth))
    while remaining:
        for separator in separators:
            for d in remaining:
                heapq.heappush(heap, (-information(d, separator), d, sorted(separator)))
        while (found := heapq.heappop(heap))[1] not in remaining:
            pass
        _, d, separator = found
        remaining.remove(d)
        for other in separator:
            neighbors[d].add(other)
            neighbors[other].add(d)
        separators = [frozenset([d, *part]) for part in combinations(separator, treewidth - 1)]
    return neighbors
