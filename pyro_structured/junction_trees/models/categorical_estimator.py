"""Base classes of estimators of categorical data."""

__all__ = ["HELD_OUT", "MOST_DEALT", "CategoricalDensity", "CategoricalEstimator"]

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.models.argument_checks import (
    check_count,
    checked_weights,
    listed_columns,
    plain_array,
    weighted_mean,
)
from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.foundation.models.random_states import torch_draws
from pyro_structured.foundation.models.row_sources import RecordBatches, rows_of_source
from pyro_structured.foundation.models.shared_fit import SharedFit
from pyro_structured.foundation.ops.process_sums import gathered
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.row_pieces import row_pieces
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_choice
from pyro_structured.junction_trees.models.coded_columns import CodedColumns
from pyro_structured.junction_trees.models.tree_fitting import without_rare_states
from pyro_structured.junction_trees.models.typed_columns import typed_columns
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, state_type

UNKNOWN = -2
# Largest integer up to which all are floating point numbers.
EXACT = 2**53
TABLES = {"accept_sparse": "csc", "dtype": None, "ensure_all_finite": "allow-nan"}
HANDLING = ("other", "error", "missing")
# Largest number of different values of a column with fractions that are taken for categories, not measurements.
MOST_FRACTIONS = 20
# Smallest number of values, all of them unknown, for which a column is warned of: fewer may be a coincidence.
FEWEST_STRANGE = 10
# Largest number of categories of a column, where only their number is given.
MOST_CATEGORIES = 2**16


@methods_on_processor
class CategoricalEstimator(BaseEstimator):  # type: ignore[misc]
    r"""Base class of estimators that read columns of categories of any kind, with missing values (NaN, None, or pandas'
    NA), as integers: from arrays, tensors, frames, sparse matrices, whose entries that are not stored are zeros, and
    the sources of :func:`rows_of_source`, which are read once, in pieces.

    A value that is not among a column's categories is its reserve state, the one after them, if there is one.

    :ivar categories\_: The categories of each column, in their order.
    """

    categories: str | int | Sequence[Any]
    handle_unknown: str

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _learn_categories(self, X: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes of training rows, shape ``(N, n)``, -1 where a value is missing, and their weights, more than 0."""
        return self._learn_shared_categories(X, sample_weight, None)

    def _learn_shared_categories(
        self, X: Any, sample_weight: Any, shared: SharedFit | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`_learn_categories`, where processes may learn together: categories are those of all."""
        check_choice("handle_unknown", self.handle_unknown, HANDLING)
        values, weights = self._weighted(X, sample_weight, reset=True, shared=shared)
        auto = isinstance(self.categories, str) and self.categories == "auto"
        columns = _present(values) if auto else _given(self.categories, self.n_features_in_)
        self.categories_ = [_plain(np.asarray(column, dtype=object)) for column in columns]
        self._num_known = [len(column) for column in self.categories_]
        # Columns of two values rarely have a third one, whose state would reduce the probabilities of both.
        other = auto and self.handle_unknown == "other"
        self._num_states = [number + (other and number != 2) for number in self._num_known]
        measured = [place for place, column in enumerate(self.categories_) if auto and _is_measured(column)]
        if measured:
            warnings.warn(
                f"X: each of more than {MOST_FRACTIONS} different numbers, not all of them integers, is a category of "
                f"its own in {listed_columns(self, measured)}; put them into bins, for example with "
                "sklearn.preprocessing.KBinsDiscretizer, or give categories",
                stacklevel=frames_below_user(),
            )
        return self._codes(values, "X"), weights

    def _weighted(
        self, X: Any, sample_weight: Any, reset: bool, shared: SharedFit | None = None
    ) -> tuple[np.ndarray | CodedColumns, np.ndarray]:
        """Values of rows that count, and their weights, more than 0."""
        values = self._table(X, reset=reset)
        weights = checked_weights(sample_weight, len(values))
        if shared is not None:
            shared.place(weights)
        if not weights.all():
            values, weights = values[weights > 0], weights[weights > 0]
        return values, weights

    def _table(self, X: Any, reset: bool = False) -> np.ndarray | CodedColumns:
        """Values of rows, shape ``(N, n)``."""
        X = rows_of_source(X)
        if isinstance(X, RecordBatches):
            validate_data(self, X.header, reset=reset, skip_check_array=True)
            return _recorded(X)
        return _coded_if_sparse(validate_data(self, typed_columns(X), reset=reset, **TABLES))

    def _codes(self, values: np.ndarray | CodedColumns, name: str) -> np.ndarray:
        """Codes of values, shape ``(N, n)``, column by column in memory, in the smallest signed dtype."""
        columns: np.ndarray = np.empty(values.shape[::-1], dtype=state_type(self._num_states))
        present, strange = np.zeros(len(columns), dtype=np.int64), np.zeros(len(columns), dtype=np.int64)
        # What stands for unknown values: the reserve state, or a missing value.
        reserve = np.full(len(columns), -1) if self.handle_unknown == "missing" else np.array(self._num_known)
        allowed = (reserve < 0) | (np.array(self._num_states) > self._num_known)
        refused: tuple[int, int] | None = None
        for piece, place, codes in _places_of_columns(values, self.categories_):
            unknown = codes == UNKNOWN
            present[place] += np.count_nonzero(codes != -1)
            strange[place] += np.count_nonzero(unknown)
            columns[place, piece] = np.where(unknown, reserve[place], codes)
            if not allowed[place] and unknown.any():
                first = piece.start + int(unknown.argmax()), place
                refused = first if refused is None else min(refused, first)
        self._warn_of_strange(name, present, strange)
        if refused is not None:
            row, place = refused
            value = values.value(*refused) if isinstance(values, CodedColumns) else values[row].tolist()[place]
            raise ValueError(
                f"{name}: expected categories of column {place} among {self.categories_[place].tolist()}, got "
                f"{value!r} in row {row}; give categories, or handle_unknown='missing'"
            )
        codes_of_rows: np.ndarray = columns.T
        return codes_of_rows

    def _warn_of_strange(self, name: str, present: np.ndarray, unknown: np.ndarray) -> None:
        """Warns of columns none of whose values, of which there are several, is known."""
        strange = ((unknown == present) & (present >= FEWEST_STRANGE)).nonzero()[0]
        if len(strange):
            first = strange[0]
            warnings.warn(
                f"{name}: none of {present[first]} values is among the categories of {listed_columns(self, strange)}, "
                f"such as {self.categories_[first].tolist()[0]!r}; are they of another type, unit or precision?",
                stacklevel=frames_below_user(),
            )

    def _read(self, X: Any) -> np.ndarray:
        """Codes of rows for a fitted estimator, shape ``(N, n)``."""
        return self._codes(self._table(X), "X")

    def _read_piece(self, X: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes of further rows to learn from, as :meth:`_learn_categories`, of the categories that are known."""
        values, weights = self._weighted(X, sample_weight, reset=False)
        return self._codes(values, "X"), weights

    def _read_held_out(self, X_val: Any) -> np.ndarray:
        """Codes of validation rows, shape ``(M, n)``, with errors that name ``X_val`` instead of X."""
        X_val = typed_columns(rows_of_source(X_val, "X_val"), "X_val")
        recorded = isinstance(X_val, RecordBatches)
        try:
            read = _recorded(X_val) if recorded else check_array(X_val, input_name="X_val", **TABLES)
            values = _coded_if_sparse(read)
            if values.shape[1] != self.n_features_in_:
                raise ValueError(f"expected {self.n_features_in_} columns, as in X, got {values.shape[1]}")
            header = X_val.header if recorded else X_val
            validate_data(self, header, reset=False, skip_check_array=True)  # the columns' names
        except (TypeError, ValueError) as error:
            raise ValueError(f"X_val: {error}") from None
        return self._codes(values, "X_val")

    def _decode(self, codes: np.ndarray) -> np.ndarray:
        """Categories of codes, shape ``(N, n)``."""
        kinds = {column.dtype.kind for column in self.categories_}
        common = np.result_type(*self.categories_) if kinds == {"b"} or kinds <= set("iuf") else np.dtype(object)
        # Not all large integers are floating point numbers.
        if any((column.astype(common).astype(column.dtype) != column).any() for column in self.categories_):
            common = np.dtype(object)
        return np.stack([column.astype(common)[codes[:, place]] for place, column in enumerate(self.categories_)], 1)


def _recorded(records: RecordBatches) -> CodedColumns:
    """Values of a source of Arrow, of at least one row and column."""
    table = CodedColumns.from_records(records)
    check_array(np.broadcast_to(np.uint8(0), table.shape), input_name=records.name)
    return table


def _coded_if_sparse(values: Any) -> np.ndarray | CodedColumns:
    table: np.ndarray | CodedColumns = CodedColumns.from_sparse(values) if issparse(values) else values
    return table


def _places_of_columns(
    values: np.ndarray | CodedColumns, categories: Sequence[np.ndarray]
) -> Iterator[tuple[slice, int, np.ndarray]]:
    """Rows, a column, and places of the values among its categories, -1 for missing values, ``UNKNOWN`` for others."""
    if isinstance(values, CodedColumns):
        for place, (codes, different, known) in enumerate(zip(values.codes, values.different, categories, strict=True)):
            places = np.append(_places(different, known), -1)
            yield from ((piece, place, places[codes[piece]]) for piece in row_pieces(len(codes)))
        return
    for piece in row_pieces(len(values), values.shape[1]):
        part = values[piece]
        missing = find_missing(part)
        for place, (column, known) in enumerate(zip(part.T, categories, strict=True)):
            places = _places(column, known)
            places[missing[:, place]] = -1
            yield piece, place, places


def _places(column: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """Places of values among the categories, ``UNKNOWN`` for others."""
    if _is_comparable(column) and _is_comparable(categories):
        order = categories.argsort()
        ordered = categories[order]
        places = ordered.searchsorted(column).clip(max=len(ordered) - 1)
        return np.where(ordered[places] == column, order[places], UNKNOWN)
    known = {category: code for code, category in enumerate(categories.tolist())}
    return np.array([known.get(value, UNKNOWN) for value in column.tolist()], dtype=np.int64)


def _is_comparable(column: np.ndarray) -> bool:
    """Whether all values are numbers that can be compared with numbers of any type, without rounding."""
    if column.dtype.kind in "bf" or column.dtype.itemsize < 8:
        return column.dtype.kind in "biuf"
    return column.dtype.kind in "iu" and bool((column.clip(-EXACT, EXACT) == column).all())


def _plain(column: np.ndarray) -> np.ndarray:
    """Column of objects in a dtype of numbers, if all are numbers."""
    typed = np.array(column.tolist())
    return typed if typed.dtype.kind in "biuf" else column


def _is_measured(column: np.ndarray) -> bool:
    """Whether different values of a column are more likely measurements than categories."""
    return column.dtype.kind == "f" and len(column) > MOST_FRACTIONS and bool((column % 1 != 0).any())


def _present(values: np.ndarray | CodedColumns) -> list[list[Any]]:
    """Sorted different values of each column, in all processes that learn together, without missing ones."""
    own = list(_different(values))
    for place, present in enumerate(own):
        if any(map(np.ndim, present)):
            raise ValueError(f"X: expected numbers, strings or other categories in column {place}, got sequences")
        if any(isinstance(value, float) and math.isinf(value) for value in present):
            raise ValueError(f"X: expected finite numbers, strings or other categories in column {place}, got infinity")
    columns = []
    for place, present in enumerate(_united(gathered(own))):
        if not present:
            raise ValueError(
                f"X: expected at least one value in each column, got only missing ones in column {place}; give its "
                "categories"
            )
        columns.append(_sorted(present, place))
    return columns


def _united(parts: Sequence[Sequence[set[Any]]]) -> Iterator[set[Any]]:
    """Different values of each column in several tables."""
    if len(parts) == 1:
        yield from parts[0]
        return
    for sets in zip(*parts, strict=True):
        kinds = {type(value) for values in sets for value in values}
        # Only one of the tables may have gaps, or fractions, for which a table has floating point numbers.
        convert = (float if float in kinds else int) if len(kinds) > 1 and kinds <= {bool, int, float} else None
        yield set(map(convert, set().union(*sets))) if convert else set().union(*sets)


def _different(values: np.ndarray | CodedColumns) -> Iterator[set[Any]]:
    """Different values of each column, without missing ones."""
    if isinstance(values, CodedColumns):
        yield from values.present()
        return
    if values.dtype.kind in "biuf":
        found: list[set[Any]] = [set() for _ in range(values.shape[1])]
        # In a file, rows lie one after the other.
        for piece in row_pieces(len(values), values.shape[1]):
            for present, column in zip(found, values[piece].T, strict=True):
                present.update(np.unique(column[~find_missing(column)]).tolist())
        yield from found
        return
    for place, column in enumerate(values.T):
        try:
            yield set(column[~find_missing(column)].tolist())
        except TypeError as error:
            raise ValueError(f"X: expected numbers, strings or other categories in column {place}: {error}") from None


def _sorted(values: set[Any], place: int) -> list[Any]:
    """Sorted values, by type if types have no common order."""
    for key in (None, lambda value: (str(type(value)), value)):
        try:
            return sorted(values, key=key)
        except (RuntimeError, TypeError, ValueError):
            continue
    raise ValueError(f"X: expected categories that have an order, got others in column {place}; give categories")


def _given(categories: Any, number: int) -> list[list[Any]]:
    """Categories of each of ``number`` columns, from the argument ``categories``."""
    single = isinstance(categories, (int, np.integer)) and not isinstance(categories, bool)
    if single and 0 < categories <= MOST_CATEGORIES:
        return [list(range(int(categories)))] * number
    try:
        unordered = isinstance(categories, (str, bytes, Set, Mapping))
        columns = [] if unordered else list(plain_array(categories, "categories"))
    except TypeError:
        columns = []
    if columns and not any(
        isinstance(column_values, Iterable) and not isinstance(column_values, (str, bytes)) for column_values in columns
    ):
        columns = [columns] * number
    # Words and sets become arrays without axes.
    columns = [np.asarray(typed_columns(column_values, "categories"), dtype=object) for column_values in columns]
    if not columns or any(column.ndim != 1 for column in columns):
        raise ValueError(
            "categories: expected 'auto', a list for each column, or one list, or a number of categories 0, 1, ... up "
            f"to {MOST_CATEGORIES}, for all columns, got {categories!r}"
        )
    if len(columns) != number:
        raise ValueError(f"categories: expected one list for each of {number} columns, got {len(columns)}")
    for place, column in enumerate(columns):
        if not len(column) or len(set(column.tolist())) < len(column) or find_missing(column).any():
            raise ValueError(
                f"categories: expected different values, at least one, none missing, for column {place}, got "
                f"{column.tolist()}"
            )
    return [column.tolist() for column in columns]


# Share of the rows for validation, where no validation rows are given.
HELD_OUT = 0.1
# Largest sum of integer weights up to which rows are repeated before they are divided.
MOST_DEALT = 2**22


@methods_on_processor
class CategoricalDensity(DensityMixin, CategoricalEstimator):  # type: ignore[misc]
    """Base class of densities that choose settings on validation rows, and score rows by log-probabilities."""

    random_state: Any

    @abstractmethod
    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats, shape ``(N,)``."""

    @abstractmethod
    def to_pyro(self) -> CategoricalVector:
        """Density as a Pyro distribution of codes."""

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws rows of categories, shape ``(n_samples, n)``, given that no value is an unknown one.

        :param int n_samples: Number of rows, at least 1.
        :param random_state: Seed, with which two calls draw the same, or ``numpy.random.RandomState``; torch's
            generator stays as it is. ``None``: that of the constructor; if this is ``None``, too, torch's generator.
        :raises ValueError: if an argument is of another kind.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        known = without_rare_states(self.to_pyro(), self._num_known, self._num_states)
        with torch_draws(self.random_state if random_state is None else random_state):
            return self._decode(known.sample((n_samples,)).numpy())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-probability of rows, in nats.

        :param y: Not used.
        :param sample_weight: Weights of the rows, as for ``fit``.
        """
        return weighted_mean(self.score_samples(X), sample_weight)

    def _divide(
        self,
        codes: np.ndarray,
        weights: np.ndarray,
        X_val: Any,
        generator: np.random.RandomState,
        shared: SharedFit | None = None,
    ) -> tuple[CategoricalRows, CategoricalRows]:
        """Training rows and validation rows, equal ones merged; as :meth:`_divide_codes`."""
        codes, weights, judged = self._divide_codes(codes, weights, X_val, generator, shared)
        return self._rows(codes, weights), self._rows(*judged)

    def _divide_codes(
        self,
        codes: np.ndarray,
        weights: np.ndarray,
        X_val: Any,
        generator: np.random.RandomState,
        shared: SharedFit | None = None,
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Codes and weights of training rows, and those of validation rows, which are a random tenth of all rows if
        none are given; of several processes, those that are this one's.
        """
        if X_val is not None:
            judged = self._read_held_out(X_val)
            return codes, weights, (judged, np.ones(len(judged)))
        every = weights if shared is None else shared.all_weights(weights)
        times = (every > 0).astype(int)
        if (every != 1).any() and (every % 1 == 0).all() and every.sum() <= MOST_DEALT:
            times = every.astype(int)
            codes, weights = codes.repeat(weights.astype(int), axis=0), np.ones(int(weights.sum()))
        total = int(times.sum())
        if total == 1:
            return codes, weights, (codes, weights)
        order = generator.permutation(total)
        number = max(1, round(HELD_OUT * total))
        held_out, training = order[:number], order[number:]
        if shared is not None:
            held_out, training = (shared.own_places(places, times) for places in (held_out, training))
        # Column by column in memory, as the codes.
        return codes.T[:, training].T, weights[training], (codes.T[:, held_out].T, weights[held_out])

    def _rows(self, codes: np.ndarray, weights: np.ndarray | None = None) -> CategoricalRows:
        return CategoricalRows(codes, self._num_states, weights, known=self._num_known)
