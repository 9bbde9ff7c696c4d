"""What processes fit together in tests; see ``tests/foundation/inference/together.py``."""

import warnings

import numpy as np
from scipy import sparse

from pyro_structured.exchangeable.models import merge_partition, structural_em
from pyro_structured.foundation.inference.peer_processes import rank_and_size
from pyro_structured.inference import shard_rows
from pyro_structured.junction_trees.models import thin_tree_search
from pyro_structured.models import MEVMDensity, StackedDensity, ThinJunctionTree

NUM_ROWS = 601
RNG = np.random.default_rng(0)


def with_gaps(values):
    return np.where(RNG.random(values.shape) < 0.1, np.nan, values)


# Three columns, noisy copies of them, and one of which all but one process see the first two categories alone.
CATEGORIES = RNG.integers(3, size=(NUM_ROWS, 3))
CATEGORIES = np.concatenate([CATEGORIES, (CATEGORIES + (RNG.random((NUM_ROWS, 3)) < 0.2)) % 3], 1)
CATEGORIES[:, 0] = np.where(np.arange(NUM_ROWS) == 1, 7, CATEGORIES[:, 0] % 2)
# Pairs of columns that are exchangeable in one half of the rows.
BITS = RNG.integers(2, size=(NUM_ROWS, 3)).repeat(2, axis=1)
BITS[::2] = RNG.integers(2, size=(NUM_ROWS // 2 + 1, 6)) & BITS[::2]
# Most of these rows differ, and some are in several processes.
WIDE = np.concatenate([BITS, RNG.integers(2, size=(NUM_ROWS, 5))], 1)
# Two patterns with noise, so far apart that classes beyond two become empty.
APART = (RNG.random((2, 300)) < 0.5)[RNG.integers(2, size=NUM_ROWS)] ^ (RNG.random((NUM_ROWS, 300)) < 0.02)
WEIGHTS = RNG.integers(4, size=NUM_ROWS)
SHARES = np.where(WEIGHTS, RNG.random(NUM_ROWS), 0.0)

TREES = {"treewidth": 2, "penalty": (1.0, 0.25), "smoothing": (1.0, 10.0), "random_state": 0}
MIXTURES = {"n_components": 2, "n_init": 2, "random_state": 0}
# An estimator, rows, and arguments of ``fit`` that are shared out as rows are.
CASES = {
    "tree": (ThinJunctionTree(**TREES), CATEGORIES, {}),
    "tree, repeated": (ThinJunctionTree(**TREES), CATEGORIES, {"sample_weight": WEIGHTS}),
    "tree, gaps": (ThinJunctionTree(**TREES), with_gaps(CATEGORIES), {"sample_weight": SHARES}),
    "tree, validated": (ThinJunctionTree(**TREES), CATEGORIES, {"X_val": CATEGORIES % 3}),
    "cuts": (ThinJunctionTree(**TREES, method="graph_cut", discount=0.1), CATEGORIES, {}),
    "mixture": (MEVMDensity(**MIXTURES), BITS, {}),
    "mixture, sparse": (MEVMDensity(**MIXTURES), sparse.csr_array(BITS), {"sample_weight": SHARES, "X_val": BITS}),
    "mixture, wide": (MEVMDensity(**MIXTURES), WIDE, {"sample_weight": SHARES}),
    "mixture, empty classes": (MEVMDensity(**MIXTURES | {"n_components": 6}), APART, {}),
    "mixture, gaps": (MEVMDensity(**MIXTURES, structure="welch+merge"), with_gaps(BITS), {"sample_weight": WEIGHTS}),
}
# Of these, blocks are found by a sample of their rows.
SAMPLED = ("mixture", "mixture, sparse", "mixture, wide", "mixture, empty classes")


def learned(name, **rows):
    """What an estimator has learned, by numbers of own rows, if any are given."""
    estimator, X, options = CASES[name]
    own = np.asarray(rows.get("rows", np.arange(NUM_ROWS)))
    estimator.fit(X[own], **{key: each[own] for key, each in options.items()}, **rows)
    if isinstance(estimator, MEVMDensity):
        return estimator.partition_.labels.tolist(), estimator.n_iter_, estimator.score_samples(X).tolist()
    structure = estimator.tree_.cliques, estimator.smoothing_, [each.tolist() for each in estimator.categories_]
    return *structure, estimator.to_pyro().clique_logits.tolist()


def failure(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def fits(size=1):
    """What estimators have learned, and what they say in the end."""
    rank = rank_and_size()[0]
    own = {"rows": shard_rows(NUM_ROWS)} if size > 1 else {}
    found = {name: learned(name, **own) for name in CASES}
    enough = merge_partition.ENOUGH_ROWS
    structural_em.ENOUGH_ROWS = merge_partition.ENOUGH_ROWS = 20
    found |= {f"{name}, sampled": learned(name, **own) for name in SAMPLED}
    structural_em.ENOUGH_ROWS = merge_partition.ENOUGH_ROWS = enough
    if size > 1:
        found |= {
            "said": said(rank),
            "seeded": differently_seeded(rank),
            "alone": alone(),
            "stopped": interrupted(rank),
        }
    return found


def said(rank):
    """Errors of which the first ones leave all able to go on, as the last fit shows."""
    rows = shard_rows(NUM_ROWS)
    X, tree, is_one = CATEGORIES[rows].astype(float), ThinJunctionTree(**TREES), int(rank == 1)
    wrong = np.where(is_one, np.inf, X)
    return {
        "value": failure(tree.fit, wrong, rows=rows),
        "validation": failure(tree.fit, X, rows=rows, X_val=X[:, : 6 - is_one]),
        "some": failure(tree.fit, X, rows=rows, X_val=None if is_one else X),
        "known": failure(ThinJunctionTree(categories=3).fit, np.where(is_one, X, X % 3), rows=rows),
        "weight": failure(MEVMDensity().fit, BITS[rows], rows=rows, sample_weight=-1.0 if is_one else 1.0),
        "parameter": failure(ThinJunctionTree(smoothing=float(rank)).fit, X, rows=rows),
        "seed": failure(MEVMDensity(random_state=rank).fit, BITS[rows], rows=rows),
        "columns": failure(tree.fit, X[:, : 6 - is_one], rows=rows),
        "length": failure(tree.fit, X[is_one:], rows=rows),
        "order": failure(tree.fit, X, rows=rows.flip(0)),
        "range": failure(tree.fit, X, rows=rows + NUM_ROWS * is_one),
        "twice": failure(tree.fit, X, rows=rows - is_one),
        "n_jobs": failure(MEVMDensity(n_jobs=2).fit, BITS[rows], rows=rows),
        "counts": failure(ThinJunctionTree(counts=True).fit, X, rows=rows),
    }


def differently_seeded(rank):
    """Scores by random numbers of process 0, and of a tree whose search ends by the clock."""
    rows = shard_rows(NUM_ROWS)
    np.random.seed(rank)
    densities = [MEVMDensity(**MIXTURES | {"random_state": each}) for each in (None, np.random.RandomState(rank))]
    densities.append(ThinJunctionTree(**TREES, polish=0.01))
    return [density.fit(BITS[rows], rows=rows).score_samples(BITS).tolist() for density in densities]


def alone():
    """What a process says and learns without numbers of rows."""
    X = CATEGORIES[shard_rows(NUM_ROWS)]
    estimators = (
        ThinJunctionTree(**TREES),
        StackedDensity(members=[("tree", ThinJunctionTree(**TREES))], random_state=0),
    )
    told = []
    for estimator in estimators:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator.fit(X)
        told.append(([str(each.message) for each in caught], caught[0].filename, estimator.score_samples(X).tolist()))
    return told


def interrupted(rank):
    """An interrupt of one process, when there are trees to choose from, after which nothing goes on."""
    rows = shard_rows(NUM_ROWS)
    if rank == 1:
        thin_tree_search.polish_chordal_graph = interrupt
    return failure(ThinJunctionTree(**TREES, polish=0.01).fit, CATEGORIES[rows], rows=rows)


def interrupt(*arguments):
    raise KeyboardInterrupt
