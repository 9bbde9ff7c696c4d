"""Junction trees of small treewidth, as a density estimator."""

__all__ = ["ThinJunctionTree"]

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from pyro_structured.foundation.models.argument_checks import check_count, checked_numbers, listed_columns
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings, warn_of_old_name
from pyro_structured.foundation.models.shared_fit import SharedFit, lone_fit
from pyro_structured.foundation.ops.process_sums import is_shared
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_choice, check_flag
from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalDensity
from pyro_structured.junction_trees.models.counted_tree_fitting import (
    STIFFNESS,
    CountedTreeRows,
    check_countable,
    count_rare_states,
)
from pyro_structured.junction_trees.models.thin_tree_search import TreeSearch, TreeSetting, tree_settings
from pyro_structured.junction_trees.models.tree_fitting import (
    TreeRows,
    clique_counts,
    even_shares,
    fit_tree_tables,
    improve_tree_tables,
    log_probs_of_codes,
    parts_of_codes,
    pseudo_counts,
)
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree
from pyro_structured.junction_trees.structures.clique_tree_picture import plot_clique_tree

METHODS, INFORMATION = ("chordal", "graph_cut"), ("mutual", "least")
# Largest number of categories for graph cuts: a table of counts of their pairs takes 2 GB.
MOST_PAIRED = 2**14
PENALTIES = {"chordal": (1.0, 0.5, 0.25), "graph_cut": (1.0, 4.0)}


class TreeCandidate(NamedTuple):
    """Candidate of the search for a junction tree.

    :ivar CliqueTree tree: The cliques.
    :ivar TreeSetting setting: Settings of the search that found the tree.
    :ivar float smoothing: The best smoothing for the tree.
    :ivar float score: Mean log-probability of the validation rows, in nats.
    """

    tree: CliqueTree
    setting: TreeSetting
    smoothing: float
    score: float


@old_parameters("treewidth")
@methods_on_processor
class ThinJunctionTree(CategoricalDensity):
    r"""Density of categorical vectors: a junction tree with cliques of at most k + 1 variables, learned from rows.

    .. math::
        p(x) = \prod_C p(x_C) \Big/ \prod_S p(x_S).

    Columns may have any categories, and missing values (NaN, None or pandas' NA). Of all trees for the settings below,
    and for all treewidths up to k, the tree is chosen that gives validation rows the largest probability. ``"chordal"``
    adds the edge of largest gain that keeps a graph chordal and its cliques small, until no edge is worth its
    parameters. ``"graph_cut"`` splits the variables by cuts that lose little mutual information (:func:`cut_graph`), as
    in the paper; it sees the data only through pairs, or triples, of variables. ``"chordal"`` is faster, and fits
    better on most data that it was compared on. An interrupt from the keyboard keeps the best tree so far.

    **Exact**: the treewidth is never exceeded; log-probabilities, conditionals and samples. The structure is not the
    best one, which is hard to find. Tables are the most probable ones, in closed form, where nothing is missing;
    otherwise, expectation maximisation leads to a local optimum, and structures are scored on the rows in which all
    variables in question are known. :meth:`partial_fit` adds further rows to the tables of the same tree.

    :param int treewidth: The largest treewidth k, at least 1.
    :param str method: ``"chordal"`` or ``"graph_cut"``.
    :param penalty: Price of a parameter, at least 0, in units of the Bayesian information criterion: for graph cuts,
        smaller information counts as none. A number, or several to choose from; ``None``: 1, 1/2 and 1/4 for
        ``"chordal"``, 1 and 4 for ``"graph_cut"``.
    :param smoothing: Pseudo-observations, at least 0, spread evenly over the joint states. A number, or several to
        choose from.
    :param discount: Value for a graph cut of an edge that the separator keeps, relative to an edge that is lost, at
        least 0. A number, or several to choose from.
    :param information: Weights of graph cuts: ``"mutual"`` information, or the ``"least"`` information of two variables
        given no other variable or any single one. One of them, or both to choose from.
    :param float tolerance: Nats, at least 0, that a graph cut may lose to split a clique, or to have a smaller
        separator.
    :param float polish: Seconds of processor time, at least 0, in which the chosen tree is improved by simulated
        annealing. How far it gets depends on the machine.
    :param categories: ``"auto"``: those in the data. Otherwise, all that there are: a list for each column, in their
        order; or one list, or one number k of categories 0, ..., k - 1, for all columns.
    :param str handle_unknown: Treatment of a value that is not among a column's categories. ``"other"``: it is the
        reserve state that columns of ``"auto"`` with one value or more than two have, to which ``smoothing`` gives a
        probability, as if it were one among as many pseudo-observations as there are rows; in other columns, which
        have no such state, a ``ValueError``. ``"error"``: a ``ValueError`` in all columns. ``"missing"``: it is a
        missing value.
    :param bool counts: Whether potentials are tried on the numbers of variables, in the subtrees of at least six of
        them and in all, that are not in their first category: ones, of zeros and ones. They are learned together with
        the cliques' tables, and kept only if validation rows get a larger probability. Missing values are refused in
        ``fit`` then.
    :param int max_iter: Largest number of iterations of expectation maximisation, at least 1.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of polishing, of the choice of validation rows, and of
        samples.
    :ivar CliqueTree tree\_: The cliques; variables are numbered as the columns.
    :ivar separators\_: Separators, the variables that neighbouring cliques share.
    :ivar float smoothing\_: The chosen smoothing.
    :ivar counted\_: Lists of the counted pairs ``(variable, state)``; empty if counts were not wanted, or not kept.
    :ivar candidates\_: Trees that were tried, with their settings and scores, in order.
    :ivar log_likelihoods\_: Objective of each iteration of the fit, per row, where values were missing.

    Cost of a graph of cliques with at most s joint states: :math:`O(n^2)` counts of the rows for ``"chordal"``, fewer
    as edges are added; at most :math:`O(k n^2)` linear programs, by maximum flows, for ``"graph_cut"``. With
    ``counts``, three more fits than there are numbers of ``smoothing``, of some hundred passes of a
    :class:`CountedJunctionTree` each.

    **References**

    Shahaf, Chechetka, Guestrin (2009): Learning thin junction trees via graph cuts. AISTATS.
    Deshpande, Garofalakis, Jordan (2001): Efficient stepwise selection in decomposable models. UAI.

    Example::

        >>> rng = np.random.default_rng(0)
        >>> X = rng.integers(2, size=(500, 3))
        >>> X[:, 2] = X[:, 0] ^ X[:, 1]  # no two of them depend on each other
        >>> model = ThinJunctionTree(treewidth=2, penalty=0.0, smoothing=1.0).fit(X)
        >>> model.tree_.cliques, round(float(np.exp(model.score_samples([[0, 1, 1]])[0])), 2)
        (((0, 1, 2),), 0.23)
        >>> model.predict_missing_proba([[0, 1, np.nan]])[0, 2].round(2)
        array([0., 1.])
    """

    def __init__(
        self,
        *,
        treewidth: int = 3,
        method: str = "chordal",
        penalty: float | Sequence[float] | None = None,
        smoothing: float | Sequence[float] = (0.1, 1.0, 10.0, 100.0),
        discount: float | Sequence[float] = (0.1, 0.5),
        information: str | Sequence[str] = ("mutual", "least"),
        tolerance: float = 0.0,
        polish: float = 0.0,
        categories: str | int | Sequence[Any] = "auto",
        handle_unknown: str = "other",
        counts: bool = False,
        max_iter: int = 100,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.treewidth = treewidth
        self.method = method
        self.penalty = penalty
        self.smoothing = smoothing
        self.discount = discount
        self.information = information
        self.tolerance = tolerance
        self.polish = polish
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.counts = counts
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state

    @old_spellings("X_val")
    def fit(
        self, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None, rows: Any = None
    ) -> "ThinJunctionTree":
        """Learns the cliques and their tables.

        An interrupt from the keyboard ends the search, and the best tree so far is kept; or it ends the iterations that
        learn tables from rows with gaps, and the tables of the last iteration are kept.

        :param X: Categories, shape ``(N, n)``: an array, a tensor, a data frame, a sparse matrix, or a ``DataLoader``
            of torch, a table, file or dataset of pyarrow, which are read once.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, on which settings are chosen. ``None``: a random tenth of the
            rows, from which only the tables of the chosen tree are learned.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :param rows: Numbers of the rows of X among those of all processes, as :func:`shard_rows` returns them: all
            processes of ``torch.distributed`` learn the tree that one would learn from all rows, and each is given its
            own rows, with their weights, and validation rows of its own, or all of them. ``None``: a process learns by
            itself.
        :raises ValueError: if a parameter is out of range, a column has no value, or there is a category that
            ``handle_unknown`` makes an error; in several processes, if this happens in any of them.
        :raises NotImplementedError: if there are too many categories for graph cuts, or values are missing where
            ``counts`` are wanted, which several processes cannot learn together.
        :raises RuntimeError: if another process has ended, or has failed by anything else, such as an interrupt.
        """
        with SharedFit(self, rows) as shared:
            with shared.checks(X_val="none" if X_val is None else "some"):
                smoothings = checked_numbers("smoothing", self.smoothing)
                self._check_parameters()
                codes, weights = self._learn_shared_categories(X, sample_weight, shared)
                self._check_categories()
                generator = shared.generator(self.random_state)
                training, judged = self._divide(codes, weights, X_val, generator, shared)
                every = self._rows(codes, weights)
                if self.counts:
                    check_countable(every.is_complete)
            self.candidates_: list[TreeCandidate] = []
            with verbosity(self.verbose), shared.quiet():
                best = self._search(training, judged, smoothings, generator)
            self.tree_, self.smoothing_ = best.tree, best.smoothing
            self.separators_ = best.tree.separators
            self._distribution: JunctionTree | CountedJunctionTree
            self._distribution, self.log_likelihoods_ = self._learn_tables(every, best)
            self._counts: torch.Tensor | None = None
            self._total = every.total
            self.counted_: list[list[tuple[int, int]]] = []
            if self.counts:
                self._learn_counts(training, judged, every, best, smoothings)
            self._warn_of_unknown(judged.values.T, "X_val")
            shared.check_result(tree=best.tree.cliques, smoothing=best.smoothing)
        return self

    def _check_categories(self) -> None:
        """Raises a NotImplementedError for more categories than graph cuts can have."""
        number = sum(self._num_known)
        if self.method == "graph_cut" and number > MOST_PAIRED:
            raise NotImplementedError(
                f"method: 'graph_cut' counts pairs of all categories, of which there are {number} in X, more than "
                f"{MOST_PAIRED}; take 'chordal'"
            )

    @lone_fit
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> "ThinJunctionTree":
        """Learns tables from some rows more: for data that come in pieces.

        The first call is :meth:`fit`, which finds categories, the cliques and the smoothing in its rows: give it enough
        of them, and ``categories`` where they may lack some. Further calls, and calls after :meth:`fit`, add the counts
        of their rows to those of the same cliques, and keep no rows. Where nothing is missing, tables are **exactly**
        those of all rows together, however these are divided. Gaps are filled once, by the probabilities under the
        tables before the call, as in a single step of expectation maximisation: tables are not those of a fit to all
        rows, and depend on the pieces. Values that the first rows lacked count as their column's reserve state,
        as ``handle_unknown`` says; its pseudo-observations are those for the number of all rows so far.

        Cost of a further call: one pass through its rows; memory O(table size), besides that for the rows.

        :param X: Categories, shape ``(N, n)``.
        :param y: Not used.
        :param sample_weight: As for :meth:`fit`.
        :raises ValueError: as :meth:`fit`. Tables stay as they are.
        :raises NotImplementedError: if there are potentials on ``counts``, which need all rows at once.
        """
        check_flag("counts", self.counts)
        if self.counts or getattr(self, "counted_", []):
            raise NotImplementedError(
                "counts: partial_fit adds up tables of cliques, and potentials on counts need all rows at once; take "
                "fit, or counts=False"
            )
        if not hasattr(self, "_distribution"):
            self.fit(X, sample_weight=sample_weight)
            return self
        entries = TreeRows(self._rows(*self._read_piece(X, sample_weight)), self.tree_)
        total, before, distribution = self._total + entries.rows.total, self._shares(self._total), self._distribution
        assert isinstance(distribution, JunctionTree)
        counts = self._counts
        if counts is None:
            # Tables are those of the counts and the pseudo-observations, which agree on separators.
            numbers = (self._total + self.smoothing_) * distribution.clique_marginals
            counts = (numbers - pseudo_counts(self.tree_, self.smoothing_, before)).clamp(min=0.0)
        if not self.smoothing_:
            # Gaps beside values that are new are filled, too: by one row more.
            distribution = entries.tables(counts, pseudo_counts(self.tree_, 1.0, before))
        counts = counts + clique_counts(entries, distribution)
        prior = pseudo_counts(self.tree_, self.smoothing_, self._shares(total))
        self._distribution, self._counts, self._total = entries.tables(counts, prior), counts, total
        return self

    def _shares(self, total: float) -> list[np.ndarray]:
        """Probabilities of single states under the prior, with so many rows."""
        return even_shares(self._num_states, self._num_known, total)

    def _warn_of_unknown(self, codes: np.ndarray, name: str) -> None:
        """Warns of columns with values that have probability 0 without smoothing."""
        if self.smoothing_:
            return
        columns = np.flatnonzero((codes >= np.array(self._num_known)).any(0))
        if len(columns):
            warnings.warn(
                f"{name}: without smoothing, values that were not in the data learned from have probability 0, so that "
                f"rows have log-probability -inf: {listed_columns(self, columns)}",
                stacklevel=frames_below_user(),
            )

    def _search(
        self,
        training: CategoricalRows,
        judged: CategoricalRows,
        smoothings: Sequence[float],
        generator: Any,
    ) -> TreeCandidate:
        search, known = TreeSearch(training, self.tolerance), {}

        def try_tree(tree: CliqueTree, setting: TreeSetting) -> None:
            if tree not in known:
                learned, scored = TreeRows(training, tree), TreeRows(judged, tree)
                tables = (fit_tree_tables(learned, smoothed, self.max_iter)[0] for smoothed in smoothings)
                scores = [judged.mean(scored.log_probs(each)) for each in tables]
                known[tree] = max(zip(scores, smoothings, strict=True))
            score, smoothing = known[tree]
            self.candidates_.append(TreeCandidate(tree, setting, smoothing, score))

        try:
            for setting in progress_bar(self._settings(), desc="trees", unit="tree"):
                try_tree(search.tree(setting), setting)
            if self.polish:
                start = self._best()
                # Penalties of graph cuts are too large for the score of a chordal graph.
                penalty = min(start.setting.penalty, 1.0)
                setting = start.setting._replace(treewidth=self.treewidth, penalty=penalty, polish=self.polish)
                rng = np.random.default_rng(generator.randint(2**31))
                try_tree(search.polish(start.tree, setting, rng), setting)
        except KeyboardInterrupt:
            if is_shared() or not self.candidates_:
                raise
            warnings.warn("fit was interrupted: the best tree so far is kept", stacklevel=frames_below_user())
        return self._best()

    def _learn_tables(self, rows: CategoricalRows, best: TreeCandidate) -> tuple[JunctionTree, list[float]]:
        """Tables of a tree, or of the last iteration before an interrupt, and the objective of each iteration."""
        learned: deque[tuple[JunctionTree, list[float]]] = deque(maxlen=1)
        try:
            learned.extend(improve_tree_tables(TreeRows(rows, best.tree), best.smoothing, self.max_iter))
        except KeyboardInterrupt:
            if is_shared() or not learned:
                raise
            warnings.warn(
                "fit was interrupted: the tables of the last iteration are kept", stacklevel=frames_below_user()
            )
        return learned[0]

    def _learn_counts(
        self,
        training: CategoricalRows,
        judged: CategoricalRows,
        rows: CategoricalRows,
        best: TreeCandidate,
        smoothings: Sequence[float],
    ) -> None:
        """Tables of counts, if validation rows gain from them."""
        counted = count_rare_states(best.tree)
        if not counted:
            return

        def fits(rows: CategoricalRows, smoothing: float, prices: Iterable[float]) -> Iterator[CountedJunctionTree]:
            plain, _ = fit_tree_tables(TreeRows(rows, best.tree), smoothing)
            counting = CountedTreeRows(rows, best.tree, counted, smoothing, self._shares(rows.total))
            weights, start = torch.from_numpy(rows.weights).double(), counting.start(plain)
            return (counting.fit(weights, start, stiffness) for stiffness in prices)

        def judge(smoothing: float, prices: Sequence[float]) -> tuple[float, float, float]:
            found = fits(training, smoothing, prices)
            scores = (judged.mean(log_probs_of_codes(each, judged.values.T)) for each in found)
            shown = progress_bar(prices, desc="counts", unit="fit")
            return max((score, smoothing, stiffness) for stiffness, score in zip(shown, scores, strict=True))

        try:
            chosen = judge(best.smoothing, STIFFNESS)
            # Smoothing that suits the cliques alone may blur the counts.
            others = [each for each in smoothings if each != best.smoothing]
            score, smoothing, stiffness = max([chosen, *(judge(each, chosen[2:]) for each in others)])
            if score > best.score:
                (self._distribution,) = fits(rows, smoothing, [stiffness])
                self.smoothing_, self.counted_ = smoothing, counted
        except KeyboardInterrupt:
            warnings.warn("fit was interrupted: the tree without counts is kept", stacklevel=frames_below_user())

    def _best(self) -> TreeCandidate:
        return max(self.candidates_, key=lambda candidate: candidate.score)

    def _penalties(self) -> tuple[float, ...]:
        return PENALTIES[self.method] if self.penalty is None else checked_numbers("penalty", self.penalty)

    def _check_parameters(self) -> None:
        check_count("treewidth", self.treewidth)
        check_count("max_iter", self.max_iter)
        check_choice("method", self.method, METHODS)
        check_flag("counts", self.counts)
        if self.counts and is_shared():
            raise NotImplementedError("counts: expected False in several processes, which learn no counts; got True")
        kinds = self._information
        if not isinstance(kinds, Sequence) or not kinds or any(kind not in INFORMATION for kind in kinds):
            raise ValueError(f"information: expected some of {INFORMATION}, got {self.information!r}")
        for name in ("tolerance", "polish"):
            checked_numbers(name, getattr(self, name))
            if not isinstance(getattr(self, name), Real):
                raise ValueError(f"{name}: expected one number, got {getattr(self, name)!r}")
        for name, value in (("discount", self.discount), ("penalty", 1.0 if self.penalty is None else self.penalty)):
            checked_numbers(name, value)

    @property
    def _information(self) -> Any:
        return (self.information,) if isinstance(self.information, str) else self.information

    def _settings(self) -> list[TreeSetting]:
        # A treewidth is less than the number of variables.
        treewidth = min(int(self.treewidth), max(1, self.n_features_in_ - 1))
        discounts = checked_numbers("discount", self.discount)
        return tree_settings(self.method, treewidth, self._penalties(), discounts, self._information)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats; missing entries are summed out.

        Without smoothing, rows with unknown values have -inf, and a warning names the columns.

        :param X: Categories, shape ``(N, n)``.
        :raises ValueError: if there is a category that ``handle_unknown`` makes an error.
        """
        check_is_fitted(self)
        codes = self._read(X)
        self._warn_of_unknown(codes, "X")
        return log_probs_of_codes(self._distribution, codes)

    def predict_missing_proba(self, X: Any) -> np.ndarray:
        """Probabilities of all categories of each variable, given the entries of a row that are not missing.

        :param X: Categories and gaps, shape ``(N, n)``.
        :return: Shape ``(N, n, largest number of states)``: probabilities of the categories in the order of
            ``categories_``, then that of unknown values, where a column has a state for them, then zeros; observed
            entries have probability 1.
        :raises ValueError: if the observed entries of a row are impossible, which happens only without smoothing.
        """
        check_is_fitted(self)
        codes = self._read(X)
        impossible = np.isneginf(log_probs_of_codes(self._distribution, codes))
        if impossible.any():
            raise ValueError(f"X: expected rows of positive probability, got others, such as row {impossible.argmax()}")
        parts = parts_of_codes(codes, self.tree_.table_size)
        return torch.cat([self._distribution.condition(*evidence).marginals for evidence in parts]).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Old name of :meth:`predict_missing_proba`."""
        warn_of_old_name("predict_proba", "predict_missing_proba")
        return self.predict_missing_proba(X)

    def to_pyro(self) -> JunctionTree | CountedJunctionTree:
        """Density as a Pyro distribution of codes: places in ``categories_``, and the place after them for unknown
        values, where a column has a state for them; in float64.
        """
        check_is_fitted(self)
        return self._distribution

    def plot(self, ax: Any = None, feature_names: Sequence[str] | None = None) -> Any:
        """Draws the junction tree, each clique below its parent; variables that are not in the parent have a dot.

        :param ax: Matplotlib axes; ``None``: new ones, of a size that fits.
        :param feature_names: Names of the columns; ``None``: those of the data frame, or numbers.
        :return: The axes.
        """
        check_is_fitted(self)
        numbers = range(self.n_features_in_)
        names = getattr(self, "feature_names_in_", numbers) if feature_names is None else feature_names
        if len(names) != len(numbers):
            raise ValueError(f"feature_names: expected {len(numbers)}, one for each column, got {len(names)}")
        return plot_clique_tree(self.tree_, names, ax)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_distribution")
