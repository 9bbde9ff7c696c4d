"""Local search over triangulated graphs, after Bach and Jordan (2001), Thin junction trees.

Every step adds or removes the one edge that improves the score most among those that keep the graph chordal and its
cliques small.
"""

from itertools import combinations


def climb_triangulated_graphs(score, neighbors, treewidth):
    """Changes a chordal graph edge by edge, until none improves the score; returns the improvement.

    :param ChordalScore score: Gains of edges.
    :param neighbors: A chordal graph.
    :param int treewidth: Cliques have at most one variable more.
    """
    total, has_improved = 0.0, True
    while has_improved:
        has_improved = False
        for gain, one, other in sorted(_moves(score, neighbors, treewidth), reverse=True):
            if other in neighbors[one]:
                is_allowed = _is_clique(neighbors, neighbors[one] & neighbors[other])
            else:
                is_allowed = _is_separated(neighbors, one, other)
            if is_allowed:
                neighbors[one] ^= {other}
                neighbors[other] ^= {one}
                total, has_improved = total + gain, True
                break
    return total


def _moves(score, neighbors, treewidth):
    """Gains of edges that are not there, losses of those that are, where they improve the score."""
    for one, other in combinations(range(len(neighbors)), 2):
        common = frozenset(neighbors[one] & neighbors[other])
        present = other in neighbors[one]
        if present or len(common) < treewidth:
            gain = score.gain((one, other), common) * (-1 if present else 1)
            if gain > 1e-9:
                yield gain, one, other


def _is_clique(neighbors, nodes):
    return all(other in neighbors[one] for one, other in combinations(nodes, 2))


def _is_separated(neighbors, one, other):
    """Whether all paths go through common neighbours."""
    seen, stack = {one} | neighbors[one] & neighbors[other], [one]
    while stack:
        new = neighbors[stack.pop()] - seen
        if other in new:
            return False
        seen |= new
        stack += new
    return True
