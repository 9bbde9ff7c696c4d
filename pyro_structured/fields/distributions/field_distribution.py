"""Base class of distributions of the labels of pixels under patterns."""

__all__ = ["FieldDistribution"]

import math
import warnings
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyro_structured.fields.distributions.field_estimator import FieldEstimate, FieldEstimator
from pyro_structured.fields.ops.field import Field, UpperUnits, binary_states
from pyro_structured.fields.ops.field_sums import FieldSums
from pyro_structured.fields.ops.label_conditionals import conditional_odds
from pyro_structured.fields.ops.mean_field import mean_field_logits
from pyro_structured.fields.ops.single_layer import single_layer, upper_units_given
from pyro_structured.fields.solvers.field_bounds import bethe_approximation, log_partition_bounds
from pyro_structured.fields.solvers.field_optimum import FieldOptimum, maximize_deep, maximize_field
from pyro_structured.fields.solvers.perfect_draws import MAX_SWEEPS, perfect_draws
from pyro_structured.foundation.distributions.argument_checks import check_entries
from pyro_structured.foundation.distributions.discrete_vector import IMPOSSIBLE_EVIDENCE, DiscreteVector
from pyro_structured.foundation.distributions.estimate_warning import warn_of_spread
from pyro_structured.foundation.distributions.fisher_gradient import with_gradient_of
from pyro_structured.foundation.ops.enumeration import MOST_PIXELS, enumerate_values, is_enumerable
from pyro_structured.foundation.ops.evidence import log_odds, no_evidence, reweight
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.ops.requirements import any_true, require_support
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes, narrow_repeated
from pyro_structured.foundation.structures.argument_checks import check_size

EMPTY_SUPPORT = (
    "{}: expected at least one value of positive probability in every batch element, but penalties, clamps or hidden "
    "units leave none"
)

Labels = TypeVar("Labels", bound="FieldDistribution")


class FieldDistribution(DiscreteVector):
    """Labels of pixels, zeros and ones unless a subclass has more, with log-odds of their own, penalties of neighbours
    that differ, and patterns.

    The elements of a batch are rows of one :class:`~pyro_structured.ops.Field`, on which all algorithms work; this
    class converts between shapes.

    :ivar Tensor composition: Log-weights of the numbers of patterns that are on, shape ``(..., J + 1)``.
    :ivar float temperature: T.
    :ivar FieldEstimator estimator: Estimates log Z where sums would take too long, or ``None``.
    """

    _derived = ("_field", "_sums")
    # The arguments with the log-weights of labels and the biases of patterns.
    _labels_argument, _biases_argument = "unary_logits", "pattern_logits"
    # Remedies that errors name where sums would take too long.
    _remedies = (
        "log_prob_bounds, unnormalized_log_prob, and log_prob with estimator=AnnealedImportanceSampling() have no limit"
    )
    _savings = "composition='min', whole temperatures, no pairwise terms, fewer patterns or a smaller grid"

    composition: Tensor
    temperature: float
    # "sum", "min", or nothing where the composition is a table.
    _scheme: str | None
    # Whether there are penalties.
    _paired: bool
    # Log-weight of evidence that has become part of the labels' log-weights, shape ``(...)``.
    _added: Tensor | float = 0.0

    def __init__(
        self,
        batch: torch.Size,
        event_shape: torch.Size,
        device: torch.device,
        estimator: FieldEstimator | None,
        validate_args: bool | None,
    ) -> None:
        self.estimator = None if estimator is None else _checked_estimator(estimator)
        self._evidence = no_evidence(event_shape.numel(), device)
        self._empty = EMPTY_SUPPORT.format(self._labels_argument)
        super().__init__(batch, event_shape, validate_args=validate_args)

    def _states(self) -> tuple[Tensor, Tensor]:
        """Log-weights of label 0 of the D pixels, then of 1, and so on, less the largest of each pixel, shape ``(..., K
        D)``, and the sum of these largest ones, shape ``(...)``.
        """
        return binary_states(self._double(self._labels_argument, len(self.event_shape)))

    def _penalties(self) -> Tensor:
        """Penalties of neighbours that differ, shape ``(..., E)``, or ``(0,)``."""
        return self._double("pairwise", 1)[..., : None if self._paired else 0]

    def _patterns(self) -> tuple[Tensor, Tensor]:
        """Weights of the patterns for the labels that they weigh, one label after the other, shape ``(..., J n D)``,
        and their biases, shape ``(..., J)``.
        """
        return self._double("weights", 1 + len(self.event_shape)), self._double(self._biases_argument, 1)

    def _upper_units(self) -> UpperUnits | None:
        """The second layer of hidden units, in rows, or ``None``."""
        return None

    @property
    def _num_labels(self) -> int:
        """Number of labels, K."""
        return 2

    @property
    def _num_indicators(self) -> int:
        """Number of weights of each pattern, n D."""
        return self.event_shape.numel()

    @property
    def _num_states(self) -> tuple[int, ...]:
        return (self._num_labels,)

    @property
    def value_dtype(self) -> torch.dtype:
        """Dtype of values: that of the parameters for zeros and ones, long for more labels."""
        return self._cast(torch.empty(0)).dtype

    def _double(self, name: str, event_dim: int) -> Tensor:
        """Parameter before expansion, with its last axes flattened, in double precision, shape ``(..., m)``."""
        tensor = self._parameter(name)
        return narrow_repeated(tensor.flatten(-event_dim) if event_dim > 1 else tensor).double()

    @lazy_property
    def _field(self) -> Field:
        """Field with a row for each element of the batch, or one row where all are the same; the evidence is part of
        the log-weights of labels.
        """
        (states, base), (weights, biases), height = self._states(), self._patterns(), self.event_shape[0]
        field = Field(
            states=self._rows(self._known(states)),
            base=self._rows((base + self._added).unsqueeze(-1)).squeeze(-1),
            penalties=self._rows(self._penalties()),
            shape=(height, self.event_shape.numel() // height),
            weights=self._rows(weights).unflatten(-1, (biases.shape[-1], self._num_indicators)),
            biases=self._rows(biases),
            composition=self._scheme or self._rows(self._double("composition", 1)),
            temperature=self.temperature,
            upper=self._upper_units(),
        )
        return field._replace(base=field.base + field.upper_base)

    def _known(self, states: Tensor) -> Tensor:
        """Log-weights of the labels, -inf where the evidence excludes them."""
        value, observed, consistent = self._evidence
        possible = ~observed & consistent.unsqueeze(-1)
        allowed = [possible | (consistent.unsqueeze(-1) & (value == label)) for label in range(self._num_labels)]
        return states.masked_fill(~torch.cat(allowed, -1), -torch.inf)

    @property
    def description(self) -> Field:
        """Field of all elements of the batch for algorithms, with a row for each, or one row where all are the same;
        the evidence is part of the log-weights of labels.

        :raises ValueError: where a pixel or the hidden units have no possible state.
        """
        field: Field = self._field
        require_support(self._unflatten(field.label_states.amax(-2).amin(-1)), self._empty)
        if field.upper is None:
            require_support(self._unflatten(field.potential(field.biases)), self._empty)
        return field

    @lazy_property
    def _sums(self) -> FieldSums:
        return FieldSums(self._field, f"{self._remedies}; {self._savings} make exact sums cheap")

    @property
    def _log_z(self) -> Tensor:
        return self._unflatten(self._sums.log_z)

    @property
    def _constant(self) -> Tensor:
        return self._unflatten(self._field.base)

    @property
    def _no_rows(self) -> Tensor:
        """Result for a batch of size 0, of the batch shape."""
        return self._constant.new_zeros(self.batch_shape)

    def _by_row(self, value: Tensor) -> tuple[Tensor, torch.Size]:
        """Labels in double precision, shape ``(N, rows, D)``, and the batch shape of results computed from them."""
        labels = value.flatten(-len(self.event_shape)).double()
        rows, batch, size = self._field.num_rows, torch.Size(labels.shape[:-1]), labels.shape[-1]
        if rows == 1:
            return labels.reshape(batch.numel(), 1, size), batch
        batch = broadcast_shapes(batch, self.batch_shape)
        number = math.prod(batch[: len(batch) - len(self.batch_shape)])
        return labels.expand((*batch, size)).reshape(number, rows, size), batch

    def reweight(self: Labels, log_off: Tensor, log_on: Tensor) -> Labels:
        """Multiplies in independent evidence about every label: the posterior, up to its constant.

        :param Tensor log_off: Log-likelihoods of the evidence where the label is 0, less than +inf, a shape that
            broadcasts to ``(...) + event_shape``; -inf where the evidence excludes it.
        :param Tensor log_on: Log-likelihoods of the evidence where the label is 1.
        :return: The distribution given the evidence, whose partition function keeps the evidence's weight. Queries
            raise where the evidence is impossible.
        :raises ValueError: if shapes do not broadcast, or there is a NaN or +inf.

        Example::

            >>> from pyro_structured.distributions import GridCRF
            >>> from pyro_structured.structures import Grid
            >>> labels = GridCRF(torch.zeros(1, 2), torch.full((1,), 1.0), Grid(1, 2))
            >>> pixels = torch.tensor([[2.0, 0.1]])
            >>> off, on = (torch.distributions.Normal(mean, 1.0).log_prob(pixels) for mean in (0.0, 2.0))
            >>> labels.reweight(off, on).marginals
            tensor([[0.7879, 0.2564]])
        """
        rank = len(self.event_shape)
        check_entries(self.batch_shape + self.event_shape, rank, log_off=log_off, log_on=log_on)
        self._check_evidence(log_off=log_off, log_on=log_on)
        odds = self._parameter(self._labels_argument)
        dtype = torch.promote_types(odds.dtype, torch.promote_types(log_off.dtype, log_on.dtype))
        tensors = torch.broadcast_tensors(odds, log_off, log_on)
        logits, added = reweight(*(tensor.double().flatten(-rank) for tensor in tensors))
        given = self._given_labels(logits.unflatten(-1, self.event_shape).to(dtype), added > -torch.inf)
        given._added = self._added + added.masked_fill(added == -torch.inf, 0.0)
        return given

    def log_evidence(self, log_off: Tensor, log_on: Tensor) -> Tensor:
        """Log-probability of independent evidence, the labels summed out; arguments are those of :meth:`reweight`.

        :return: Change of log Z, shape ``batch_shape`` broadcast with the leading axes of the evidence; -inf for
            impossible evidence.
        """
        return self._change(self.reweight(log_off, log_on))

    def _given_labels(self: Labels, logits: Tensor, possible: Tensor) -> Labels:
        """The distribution with other log-weights of labels, impossible in some elements of the batch.

        :param Tensor logits: In place of the argument, shape ``(...) + its event shape``.
        :param Tensor possible: Booleans, shape ``(...)``.
        """
        value, observed, consistent = self._evidence
        name = self._labels_argument
        leading = logits.shape[: logits.dim() - self._event_dims[name]]
        batch = broadcast_shapes(leading, self.batch_shape)
        evidence = (value, observed, consistent & possible)
        return self._copy(type(self).__new__(type(self)), evidence, batch, IMPOSSIBLE_EVIDENCE, {name: logits})

    def _weigh(self, value: Tensor, field: Field) -> tuple[Tensor, Tensor]:
        """Log-weights of values without the base, -inf outside the support, and their labels as :meth:`_by_row` returns
        them, zeros in place of values outside the support.
        """
        labels, batch = self._by_row(value)
        possible = torch.zeros_like(labels, dtype=torch.bool)
        for label in range(self._num_labels):
            possible = possible | (labels == label)
        inside = possible.all(-1)
        labels = labels.masked_fill(~inside.unsqueeze(-1), 0.0)
        score = field.relative_log_weight(labels)
        return score.masked_fill(~inside | (score == -torch.inf), -torch.inf).reshape(batch), labels

    def is_possible(self, value: Tensor) -> Tensor:
        """Whether values have a positive probability, shape ``(...) + batch_shape``; cost O(D), at any size.

        :param Tensor value: As for ``log_prob``.
        """
        # Patterns make either no value impossible, or all values.
        score = self._weigh(value, self.description.without_patterns())[0]
        return (score > -torch.inf).expand(self._full(score.shape))

    def _score(self, value: Tensor) -> Tensor:
        return self._weigh(value, self._field)[0]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability, hidden units summed out; -inf for impossible values, also for those outside the support.

        Exact where sums are within their limit; otherwise the estimate of :meth:`estimate_log_prob`, if there is an
        estimator.

        :raises NotImplementedError: if sums are beyond their limit and there is no estimator.
        """
        if self.estimator is None or self._is_summable:
            return super().log_prob(value)
        return self.estimate_log_prob(value)[0]

    @property
    def _is_summable(self) -> bool:
        """Whether exact sums are within their limit."""
        try:
            _ = self._sums.hidden
        except NotImplementedError:
            return False
        return self._field.sums_out_units

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are at most ``2 ** 12`` values; more are never enumerated."""
        return is_enumerable(self.event_shape.numel(), self._num_labels)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(number,) + batch_shape + event_shape``."""
        like = torch.zeros((), dtype=self.value_dtype, device=self._evidence[0].device)
        values = enumerate_values(self.event_shape.numel(), self._num_labels, self.batch_shape, expand, like)
        return values.reshape(values.shape[:-1] + self.event_shape)

    def _single_marginals(self) -> Tensor:
        """Probabilities of label 0 of all pixels, then of 1, and so on, in double precision, shape ``batch_shape + (K
        D,)``.
        """
        log_z, single, _ = self._sums.marginals
        require_support(self._unflatten(log_z), self._empty)
        return self._unflatten(single)

    def _pixels(self, tensor: Tensor) -> Tensor:
        """Tensor of shape ``(..., D)`` reshaped to ``(...,) + event_shape``, in the dtype of results."""
        return self._cast(tensor.reshape(tensor.shape[:-1] + self.event_shape))

    @property
    def marginals(self) -> Tensor:
        """Probabilities of 1, shape ``batch_shape + event_shape``."""
        return self._pixels(self._single_marginals().chunk(2, -1)[1])

    @property
    def marginal_logits(self) -> Tensor:
        """Log-odds of the single variables, shape ``batch_shape + event_shape``."""
        return self._pixels(log_odds(*safe_log(self._single_marginals()).chunk(2, -1)))

    @property
    def mean(self) -> Tensor:
        """Means of the single variables, equal to :attr:`marginals`."""
        return self.marginals

    @property
    def variance(self) -> Tensor:
        """Variances of the single variables, shape ``batch_shape + event_shape``."""
        off, on = self._single_marginals().chunk(2, -1)
        return self._pixels(off * on)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        require_support(self._log_z, self._empty)
        return self._cast(self._unflatten(self._sums.entropy()))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Exact samples, shape ``sample_shape + batch_shape + event_shape``: from sums, or, where these would take too
        long, as :meth:`perfect_sample`.
        """
        shape = torch.Size(sample_shape)
        try:
            _ = self._sums.hidden
        except NotImplementedError as too_large:
            try:
                return self.perfect_sample(shape)
            except NotImplementedError as error:
                raise NotImplementedError(f"{too_large}; {error}") from None
        return self._exact_draws(shape)

    def _exact_draws(self, shape: torch.Size) -> Tensor:
        """Samples from sums, shape ``shape + batch_shape + event_shape``."""
        full = shape + self.batch_shape
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            if not full.numel():
                return torch.zeros(full + self.event_shape, dtype=self.value_dtype, device=self._evidence[0].device)
            drawn = self._sums.sample(shape.numel(), self.batch_shape.numel())
        return drawn.reshape(full + self.event_shape).to(self.value_dtype)

    def perfect_sample(self, sample_shape: Any = (), max_sweeps: int = MAX_SWEEPS) -> Tensor:
        """Exact samples of fields of any size by monotone coupling from the past.

        Penalties and weights have to be balanced: if labels, patterns and their couplings are drawn as a graph, every
        cycle has an even number of negative ones. Penalties of at least 0 are, with patterns whose weights have one
        sign each. Hidden units are drawn as well, so that the composition has to be ``"sum"`` and the temperature a
        positive integer T, if there are patterns. Upper units of a ``DeepPatternCRF`` have to be balanced, too; errors
        name them as labels of additional rows or columns.

        A sweep of one sample costs O(T·J·D); how many it takes is random. They are few if couplings are weak, and
        exponentially many in the size of the field if they are so strong that it has several phases. Chains that have
        not met at ``max_sweeps`` raise an error: repeating them until they meet would favour samples that meet soon.

        :param sample_shape: As for :meth:`sample`.
        :param int max_sweeps: Largest number of sweeps ago that chains may start, at least 1.
        :return: Shape ``sample_shape + batch_shape + event_shape``.
        :raises NotImplementedError: if couplings are not balanced, with a cycle that shows it.
        :raises RuntimeError: if some chains have not met.

        **References**

        Propp, Wilson (1996): Exact sampling with coupled Markov chains and applications to statistical mechanics.
        Random Structures and Algorithms 9.

        Example::

            >>> from pyro_structured.distributions import GridCRF
            >>> from pyro_structured.structures import Grid
            >>> grid = Grid(40, 50)
            >>> GridCRF(torch.zeros(40, 50), torch.full((grid.num_edges,), 0.5), grid).perfect_sample((3,)).shape
            torch.Size([3, 40, 50])
        """
        check_size("max_sweeps", max_sweeps)
        shape, size = torch.Size(sample_shape), self.batch_shape.numel()
        if not size:
            return self._cast(self._constant.new_zeros(shape + self.batch_shape + self.event_shape))
        field = single_layer(self.description)
        event_shape = self.event_shape if self._field.upper is None else torch.Size(field.shape)
        drawn = perfect_draws(field, shape.numel() * size // field.num_rows, max_sweeps, event_shape)
        labels = drawn.transpose(0, 1).reshape(shape + self.batch_shape + drawn.shape[-1:])
        own = self._own_pixels(labels, field)
        return own.reshape(own.shape[:-1] + self.event_shape).to(self.value_dtype)

    def _own_pixels(self, tensor: Tensor, field: Field) -> Tensor:
        """Values at the pixels of the event among those of a :func:`single_layer`, shape ``(..., D)``.

        :param Tensor tensor: Shape ``(..., pixels of the field)``.
        """
        height, width = self._field.shape
        return tensor.reshape(tensor.shape[:-1] + field.shape)[..., :height, :width].flatten(-2)

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + event_shape``: by enumeration, or, if there are more than 18
        variables, by branch and bound, with a proof.
        """
        number = self.event_shape.numel()
        if number <= MOST_PIXELS:
            return self._best_labeling()
        if self._field.upper is not None:
            raise NotImplementedError(
                f"mode: expected at most {MOST_PIXELS} variables, got {number}; map returns good labels and a bound"
            )
        return self._proved_mode()

    def _proved_mode(self) -> Tensor:
        """A most probable value by branch and bound, shape ``batch_shape + event_shape``."""
        if self._scheme is None:
            number = self.event_shape.numel()
            raise NotImplementedError(
                f"mode: expected composition='sum' or 'min' where there are more than {MOST_PIXELS} variables, got a "
                f"table and {number}; map('em') finds good labels"
            )
        best, proof = self.map("branch_and_bound")
        if not bool(proof.optimal.all()):
            raise NotImplementedError(
                f"mode: branch and bound proved no optimum with {int(proof.num_cuts.max())} cuts; map returns the "
                "best labels and a bound"
            )
        return best

    def _best_labeling(self) -> Tensor:
        """A most probable value by enumeration, shape ``batch_shape + event_shape``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            best = self._unflatten(self._sums.best_labelings())
        return best.reshape(self.batch_shape + self.event_shape).to(self.value_dtype)

    def conditional_logits(self, value: Tensor) -> Tensor:
        """Log-odds of each variable given all others, hidden units summed out.

        NaN where the evidence on the variable, its neighbours and the hidden units leave neither value possible.
        Whether the other variables are possible by themselves is not checked.

        :param Tensor value: Zeros and ones, shape ``(...,) + batch_shape + event_shape``.
        :return: The same shape. Cost O(D J).
        """
        labels, batch = self._checked_by_row(value)
        odds = conditional_odds(self._field, labels)
        return self._pixels(odds.reshape(batch + odds.shape[-1:]).expand(self._full(batch) + odds.shape[-1:]))

    def _checked_by_row(self, value: Tensor) -> tuple[Tensor, torch.Size]:
        check_entries(self.batch_shape + self.event_shape, len(self.event_shape), value=value)
        if self._validate_args:
            self._validate_sample(value)
        return self._by_row(value)

    def _full(self, batch: torch.Size) -> torch.Size:
        return broadcast_shapes(batch, self.batch_shape)

    def pseudo_log_prob(self, value: Tensor) -> Tensor:
        r"""Besag's pseudo-likelihood, :math:`\sum_i \log p(y_i \mid y_{-i})`, which needs no log Z and is not the
        log-probability.

        :param Tensor value: As for :meth:`conditional_logits`.
        :return: Shape ``(...,) + batch_shape``.

        **References**

        Besag (1975): Statistical analysis of non-lattice data. The Statistician 24(3).
        """
        signed = self.conditional_logits(value).double() * (2 * value.to(torch.double) - 1)
        certain = ~signed.isfinite()
        logs = torch.nn.functional.logsigmoid(signed.masked_fill(certain, 0.0)).masked_fill(certain, 0.0)
        # A pixel of which neither label is possible makes the value impossible.
        impossible = (signed == -torch.inf) | signed.isnan()
        return self._cast(logs.masked_fill(impossible, -torch.inf).flatten(-len(self.event_shape)).sum(-1))

    def map(
        self,
        method: str = "em",
        start: Tensor | None = None,
        max_cuts: int = 10_000,
        num_switches: int | None = None,
    ) -> tuple[Tensor, FieldOptimum]:
        r"""Searches for a most probable value, at any size, by minimum cuts.

        Penalties have to be at least 0, or negative an even number of times in every cycle of the grid.

        - ``"em"``: from several starts, as long as labels become better; then from where single patterns are switched,
          as long as that helps; at any temperature and with any table. A local optimum, without a bound; the best of
          nearly all fields of 8 x 8 pixels and 8 patterns of normal weights. Nothing is drawn at random.
        - ``"cut"``: one cut in which hidden units are nodes, if the signs of penalties and weights are balanced, as are
          those of patterns with weights of one sign each; with ``"min"``, a cut for each pattern, whatever the signs.
          Exact at T = 0, and within :math:`T J \log 2`, or :math:`T \log J`, of the best above.
        - ``"dual"``: a bound by dual decomposition, and labels on the way; for ``"sum"``.
        - ``"branch_and_bound"``: from the labels of ``"em"`` to the best labels, with a proof, or, where ``max_cuts``
          are not enough, with a bound; not for tables. Up to about 32 learned patterns are proved within seconds; for
          64, or for ``"min"`` at T > 0, there is a bound only, as a rule. Each cut costs O(J·D) besides.

        With U upper units, as of a ``DeepPatternCRF``, ``"em"`` sums them out, and the other methods look for the best
        labels of pixels and upper units together, from which ``"em"`` goes on, and also begins where it would begin
        alone; the bound of pixels alone is larger by :math:`U \log 2`.

        :param str method: ``"em"``, ``"cut"``, ``"dual"`` or ``"branch_and_bound"``.
        :param Tensor start: Labels with which ``"em"``, ``"dual"`` and ``"branch_and_bound"`` begin, shape ``(...,) +
            batch_shape + event_shape``, of which the best result counts; ``None``: the best labels without patterns,
            and with half of each.
        :param int max_cuts: The largest number of cuts for each element of the batch and start.
        :param int num_switches: Number of patterns that are switched in a round, one at a time, those that are nearest
            to being switched: that many further starts. 0 takes a fifth of the cuts, or less. ``None``: 8, or, from a
            given ``start``, none.
        :return: Values of shape ``batch_shape + event_shape``, and their certificate.
        :raises NotImplementedError: if a method does not apply, with a cycle of wrong signs, for example.
        """
        check_size("max_cuts", max_cuts)
        if num_switches is not None:
            check_size("num_switches", num_switches, 0)
        starts, number = self._starts(start), self.batch_shape.numel()
        field = self.description.detach().map_tensors(Tensor.cpu)
        field.check_units()
        field = field._replace(states=field.states.expand(number, -1), base=field.base.expand(number))
        if field.upper is not None:
            labels, certificate = maximize_deep(field, method, starts, max_cuts, num_switches)
        else:
            labels, certificate = maximize_field(
                field, method, starts, max_cuts, num_switches, lambda: self._best_of_hidden_states(number)
            )
        require_support(certificate.value.reshape(self.batch_shape), self._empty)
        device = self._evidence[0].device
        value, bound, optimal, cuts = (tensor.to(device).reshape(self.batch_shape) for tensor in certificate)
        best = labels.to(device, self.value_dtype).reshape(self.batch_shape + self.event_shape)
        return best, FieldOptimum(self._cast(value), self._cast(bound), optimal, cuts)

    def _best_of_hidden_states(self, number: int) -> tuple[Tensor, Tensor]:
        labels, bound = self._sums.best_of_hidden_states()
        return labels.expand(number, -1).cpu(), bound.expand(number).cpu()

    def _starts(self, start: Tensor | None) -> Tensor | None:
        """Labels to begin with, integers of shape ``(starts, batch size, D)`` on the processor, or ``None``."""
        if start is None:
            return None
        ours = self.batch_shape + self.event_shape
        check_entries(ours, len(self.event_shape), start=start)
        if not bool(((start >= 0) & (start < self._num_labels) & (start == start.long())).all()):
            raise ValueError(f"start: expected integers in range({self._num_labels}), got other numbers")
        shape = broadcast_shapes(start.shape, ours)
        number = shape[: len(shape) - len(ours)].numel()
        if shape[len(shape) - len(ours) :] != ours:
            raise ValueError(f"start: expected shape (..., *{tuple(ours)}), got {tuple(start.shape)}")
        if not number:
            raise ValueError(f"start: expected one or several, got shape {tuple(start.shape)}")
        return start.expand(shape).reshape(number, self.batch_shape.numel(), self.event_shape.numel()).long().cpu()

    def log_prob_bounds(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of the log-probability, at any size; arguments and shape as for ``log_prob``.

        They are :meth:`unnormalized_log_prob` less the upper and the lower bound of :meth:`log_partition_bounds`, with
        the same conditions and cost; both are -inf for impossible values. Where hidden units of two layers are too many
        to be summed out, the unnormalised log-probability is bounded in the same way as log Z. Nothing is random.
        """
        if self._validate_args:
            self._validate_sample(value)
        if self._field.sums_out_units:
            least = most = self._score(value)
        else:
            plain, units = self._score_without_units(value)
            least, most = (plain + (bound + units.base).reshape(plain.shape) for bound in log_partition_bounds(units))
        low, high = self._log_z_bounds()
        return self._cast(least - high), self._cast(most - low)

    def _score_without_units(self, value: Tensor) -> tuple[Tensor, Field]:
        """Log-weights without the potential of the hidden units, and the field of the hidden units given the labels,
        with a row for each labelling.
        """
        field = self._field
        score, labels = self._weigh(value, field.without_patterns())
        units = upper_units_given(field, field.activations(labels))
        # The potential is relative to no pattern being on.
        return score, units._replace(base=(units.base.reshape(labels.shape[:2]) - field.upper_base).flatten())

    def log_partition_bounds(self) -> tuple[Tensor, Tensor]:
        r"""Lower and upper bounds of log Z, up to rounding in float64, at any size, temperature and sign of weights and
        penalties; each of shape ``batch_shape``, differentiable.

        - Below: a structured mean-field approximation with the expected potential of the patterns bounded by Jensen's
          inequality. The Bethe approximation, if it is more, for ``"sum"`` at T = 1 with signs of penalties and weights
          that are balanced.
        - Above: Hölder's inequality between parts of the field that are small enough to sum exactly, tree-reweighted
          with strips of the grid in place of trees; the split is optimised by gradient descent. For many patterns, and
          ``"sum"``, all but a few of these are replaced by sums over pixels that are nowhere less, if that is lower.
        - With ``"min"``, both for each pattern by itself: with the log partition functions :math:`A_j` of the fields in
          which it is always on,

          .. math::
              f_{\min(T, 1)}(A + c) \le \log Z \le f_{\max(T, 1)}(A + c),

          by Minkowski's inequality. At T = 1 both sides are log Z, if the A are exact.

        They meet where exact sums take about as long as a step. The interval grows with the couplings and with the
        number of patterns. Cost: up to 100 steps from three points below and 60 steps above, each of at most 2^19
        numbers for each element of the batch, or as many as two states of each unit need; and 60 more of at most 2^21.

        With K labels, the Bethe approximation and sums over pixels are left out where K is more than 2.

        :raises NotImplementedError: if the shorter side of the grid is longer than 8 pixels, or :math:`8 / \log_2 K`
            with K labels, and there are infinite penalties.

        **References**

        Li (2013), Section 4.2. Wainwright, Jaakkola, Willsky (2005): A new class of upper bounds on the log partition
        function. IEEE Transactions on Information Theory 51. Ruozzi (2012): The Bethe partition function of
        log-supermodular graphical models. NIPS.
        """
        low, high = self._log_z_bounds()
        return self._cast(low + self._constant), self._cast(high + self._constant)

    def _log_z_bounds(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of log Z without the constant, each of shape ``batch_shape``."""
        if not self.batch_shape.numel():
            return self._no_rows, self._no_rows
        field = self.description if self._num_labels > 2 else single_layer(self.description)
        low, high = log_partition_bounds(field)
        require_support(self._unflatten(high), self._empty)
        base = field.base - self._field.base
        return self._unflatten(low + base), self._unflatten(high + base)

    def bethe_log_partition(self) -> tuple[Tensor, Tensor]:
        """The Bethe approximation of log Z, by belief propagation between pixels and hidden units, at T = 1.

        :return: The approximation, differentiable, and whether it is a lower bound, both of shape ``batch_shape``. It
            is one where penalties and weights are negative an even number of times in every cycle of pixels and hidden
            units that are not known; for ``"min"``, of pixels. Elsewhere it may be above or below log Z.
        :raises NotImplementedError: at other temperatures, for tables, and for infinite penalties; for more than two
            labels.

        **References**

        Ruozzi (2012): The Bethe partition function of log-supermodular graphical models. NIPS.
        """
        if not self.batch_shape.numel():
            return self._cast(self._no_rows), self._no_rows.bool()
        field = single_layer(self.description)
        log_z, balanced = bethe_approximation(field)
        return self._cast(self._unflatten(log_z + field.base)), self._unflatten(balanced)

    def mean_field_logits(self, num_rounds: int = 20) -> Tensor:
        r"""Log-odds of independent pixels that approximate the field, at any size, temperature and composition.

        A round updates the hidden units and then the pixels of one colour of the checkerboard after the other, so that
        the lower bound of log Z that belongs to independent pixels never falls. Their distance to
        :attr:`marginal_logits` is unknown; they are overconfident, as a rule. ``mean_field_logits() > 0`` is a
        prediction. Upper units of a ``DeepPatternCRF`` are independent, too.

        :param int num_rounds: Number of rounds, at least 1; each costs O(J·D) for each element of the batch.
        :return: Shape ``batch_shape + event_shape``; differentiable through all rounds.
        :raises NotImplementedError: for infinite penalties.

        **References**

        Li (2013), Section 4.2.
        """
        field = single_layer(self._finite_field(num_rounds))
        logits = self._unflatten(mean_field_logits(field, num_rounds))
        return self._pixels(self._own_pixels(logits, field))

    def _finite_field(self, num_rounds: int) -> Field:
        """Field of all elements of the batch, or an error if a penalty is infinite."""
        check_size("num_rounds", num_rounds)
        field = self.description
        if any_true(field.penalties == torch.inf):
            raise NotImplementedError("mean_field_logits: expected finite penalties, got infinite ones")
        return field

    def estimate_log_prob(self, value: Tensor, estimator: FieldEstimator | None = None) -> tuple[Tensor, Tensor]:
        """Estimate of the log-probability, at any size, and its standard error, both of shape ``(...)``.

        All values share one estimate of log Z, of which there is one for each element of the batch. Its gradient is
        that of the log-weights of the estimator's draws, by Fisher's identity, and can be taken once. Where hidden
        units of two layers are too many to be summed out, the unnormalised log-probability is estimated in the same way
        as log Z.

        :param Tensor value: As for ``log_prob``.
        :param FieldEstimator estimator: Estimator in place of that of the constructor: deprecated.
        :raises ValueError: if there is no estimator.
        :raises NotImplementedError: if the estimator does not apply to the field.
        """
        if self._validate_args:
            self._validate_sample(value)
        estimator = self._chosen_estimator(estimator)
        log_z, error = self._estimate(estimator)
        if self._field.sums_out_units:
            log_prob = self._score(value) - log_z
            return self._cast(log_prob), self._cast(error.expand(log_prob.shape))
        plain, units = self._score_without_units(value)
        potential, potential_error = _estimated(units, estimator, self._remedies)
        log_prob = plain + (potential + units.base).reshape(plain.shape) - log_z
        combined = (error.square() + potential_error.reshape(plain.shape).square()).sqrt()
        return self._cast(log_prob), self._cast(combined.expand(log_prob.shape))

    def estimate_log_partition(self, estimator: FieldEstimator | None = None) -> tuple[Tensor, Tensor]:
        """Estimate of log Z, with a gradient, and its standard error, both of shape ``batch_shape``; argument and
        errors as for :meth:`estimate_log_prob`.
        """
        log_z, error = self._estimate(self._chosen_estimator(estimator))
        return self._cast(log_z + self._constant), self._cast(error)

    def _chosen_estimator(self, estimator: FieldEstimator | None) -> FieldEstimator:
        if estimator is not None:
            warnings.warn(
                f"estimator: expected in the constructor, {type(self).__name__}(..., estimator=...), got one in a "
                "query, which a later version will refuse",
                FutureWarning,
                stacklevel=frames_below_user(),
            )
            return _checked_estimator(estimator)
        if self.estimator is None:
            raise ValueError(
                f"estimator: expected one, such as {type(self).__name__}(..., estimator=AnnealedImportanceSampling()) "
                "of pyro_structured.inference, got None"
            )
        return self.estimator

    def _estimate(self, estimator: FieldEstimator) -> tuple[Tensor, Tensor]:
        """Estimate of log Z without the constant, and its standard error, both of shape ``batch_shape``."""
        if not self.batch_shape.numel():
            return self._no_rows, self._no_rows
        field = self.description
        field = single_layer(field) if field.is_binary else field
        log_z, error = _estimated(field, estimator, self._remedies)
        return self._unflatten(log_z + field.base - self._field.base), self._unflatten(error)


def _checked_estimator(estimator: object) -> FieldEstimator:
    if not isinstance(estimator, FieldEstimator):
        raise ValueError(
            "estimator: expected one, such as AnnealedImportanceSampling(1000, 100) of pyro_structured.inference, or "
            f"None, got {estimator!r}"
        )
    return estimator


def _estimated(field: Field, estimator: FieldEstimator, remedies: str) -> tuple[Tensor, Tensor]:
    """Estimate of log Z without the base, with a gradient, and its standard error, both of shape ``(rows,)``."""
    with torch.no_grad():
        estimate = estimator.estimate(field, lambda number: _exact_samples(field, number, remedies))
    warn_of_spread(estimator, estimate.standard_error)
    return _with_gradient(field, estimate), estimate.standard_error


def _with_gradient(field: Field, estimate: FieldEstimate) -> Tensor:
    """Estimate of log Z, shape ``(rows,)``, with the mean gradient of the draws' log-weights."""
    if not torch.is_grad_enabled():
        return estimate.log_partition
    counts = estimate.log_weights > -torch.inf
    weights = estimate.log_weights.masked_fill(~counts, torch.finfo(torch.double).min).softmax(0)
    scores = (weights * field.relative_log_weight(estimate.labels)).masked_fill(~counts, 0.0).sum(0)
    return with_gradient_of(estimate.log_partition, scores) if scores.requires_grad else estimate.log_partition


def _exact_samples(field: Field, number: int, remedies: str) -> Tensor:
    """Exact samples of each row, from sums or by coupling from the past, shape ``(number, rows, D)``."""
    sums = FieldSums(field, remedies)
    try:
        _ = sums.hidden
    except NotImplementedError as too_large:
        if not field.is_binary:
            raise
        try:
            return perfect_draws(field, number, MAX_SWEEPS, field.shape).transpose(0, 1)
        except NotImplementedError as error:
            raise NotImplementedError(f"{too_large}; {error}") from None
    return sums.sample(number, field.num_rows)
