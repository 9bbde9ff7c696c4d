"""Early stopping: learning as long as scores on other data improve."""

__all__ = ["EarlyStopping"]

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pyro.infer import SVI

from pyro_structured.foundation.inference.distributed_optim import DistributedOptim, taking_part
from pyro_structured.foundation.inference.learner import Learner
from pyro_structured.foundation.inference.learning_state import LearningState
from pyro_structured.foundation.inference.peer_processes import rank_and_size
from pyro_structured.foundation.inference.plain_data import plain_copy
from pyro_structured.foundation.inference.united_state import own_state, united_state
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.foundation.structures.representation import Represented


@dataclass
class _Progress:
    """Progress of a run.

    :ivar scores: Scores so far.
    :ivar float best: The largest score, or -inf.
    :ivar int best_at: Number of scores up to the best one.
    :ivar kept: Parameters and buffers of the best score; ``None`` before the first score.
    :ivar int num_steps: Number of steps so far.
    :ivar num_since: Number of steps since the last score; ``None`` before the first.
    :ivar present: Parameters and buffers of the last step, once a run has ended and gone back to the best.
    """

    scores: list[float] = field(default_factory=list)
    best: float = -math.inf
    best_at: int = 0
    kept: dict[str, Any] | None = None
    num_steps: int = 0
    num_since: int | None = None
    present: dict[str, Any] | None = None


class EarlyStopping(Represented):
    """Runs a learner with steps, scores its parameters from time to time, and keeps the best of them.

    The start is scored as well, and kept if nothing is better. All parameters in Pyro's store are kept, and the buffers
    of modules that the model calls, such as the running means of ``BatchNorm``.

    :param learner: ``pyro.infer.SVI``, :class:`ExpectedLoss`, :class:`ContrastiveDivergence`, :class:`MCEM`, or
        anything else with ``model``, ``guide``, and a method ``step`` that changes Pyro's parameters.
    :param score: Function without arguments that returns the score of the present parameters, the larger the better:
        the accuracy on validation data, for example. NaN counts as worst.
    :param int num_steps: Number of steps between scores, at least 1.
    :param int patience: Number of scores in a row that are no better than the best before the run ends, at least 1.
    :raises ValueError: if an argument is of another kind; in a run of several processes, if the learner has no
        :class:`DistributedOptim`.

    In several processes every one has to make the same calls; the score is the mean of theirs, so that all stop, and go
    back, together. Let ``score`` look at all validation rows, or at as many rows in every process.

    Example::

        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> def model(x):
        ...     pyro.sample("x", dist.Normal(pyro.param("mean", torch.tensor(0.0)), 1.0), obs=x)
        >>> pyro.clear_param_store()
        >>> svi = SVI(model, lambda x: None, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
        >>> stopping = EarlyStopping(svi, lambda: -abs(pyro.param("mean").item() - 1.0), num_steps=1)
        >>> scores = stopping.run(100, torch.tensor(2.0))
        >>> len(scores) < 30, bool((pyro.param("mean") - 1).abs() < 0.1)
        (True, True)
    """

    def __init__(self, learner: Any, score: Callable[[], float], num_steps: int = 10, patience: int = 10) -> None:
        if not all(callable(getattr(learner, name, None)) for name in ("step", "model", "guide")):
            raise ValueError(f"learner: expected an object with a model, a guide and a method 'step', got {learner!r}")
        if not callable(score):
            raise ValueError(f"score: expected a function, got {score!r}")
        check_size("num_steps", num_steps)
        check_size("patience", patience)
        self.learner, self.score, self.num_steps, self.patience = learner, score, num_steps, patience
        self._optim = getattr(learner, "optim", None)
        optim = self._optim if isinstance(learner, SVI) else None
        is_ours = isinstance(learner, Learner)
        self._state = learner._state if is_ours else LearningState(learner.model, learner.guide, optim)
        self._progress: _Progress | None = None
        self._goes_on = False

    def run(self, max_steps: int, *args: Any, **kwargs: Any) -> list[float]:
        """Runs the learner, with a progress bar on terminals; further arguments are those of its steps.

        Afterwards, or after an interruption from the keyboard, parameters and buffers are those with the best score,
        the first if there are several; optimisers and chains stay where they are.

        :param int max_steps: Number of steps after which the run ends; those before an interruption count, if a state
            has been loaded.
        :return: Scores, the first of which is that of the start.
        """
        check_size("max_steps", max_steps)
        # Of several processes one shows its progress.
        with taking_part(self._optim), verbosity(None if rank_and_size()[0] == 0 else False):
            self._state.prepare(args, kwargs)
            if isinstance(self._optim, DistributedOptim):
                # Starts are scored, and kept if nothing is better.
                self._optim.start()
            progress = self._begin()
            options = {"initial": progress.num_steps, "desc": type(self.learner).__name__, "leave": True}
            with progress_bar(total=max_steps, **options) as bar:
                try:
                    self._go_on(progress, max_steps, bar, args, kwargs)
                finally:
                    if progress.kept is not None:
                        progress.present = self._state.learned()
                        self._state.put_back(progress.kept)
        return progress.scores

    def _go_on(self, progress: _Progress, max_steps: int, bar: Any, args: Any, kwargs: Any) -> None:
        while True:
            if self._is_due(progress, max_steps):
                self._look(progress)
                bar.set_postfix(score=f"{progress.scores[-1]:.4g}", best=f"{progress.best:.4g}", refresh=False)
            if progress.num_steps >= max_steps or len(progress.scores) - progress.best_at >= self.patience:
                return
            self.learner.step(*args, **kwargs)
            progress.num_steps, progress.num_since = progress.num_steps + 1, (progress.num_since or 0) + 1
            bar.update()

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on as if there had been no interruption; plain data.

        It may be kept at any time: when ``score`` is called, which is then called again after loading, or after Ctrl-C.

        .. code-block:: python

            def score():
                torch.save(stopping.state_dict(), "state.part")
                os.replace("state.part", "state")
                return accuracy()

        In a new process, with everything made in the same way, ``stopping.load_state_dict(torch.load("state"))`` and
        then :meth:`run` with the same arguments go on, and return all scores. The learner's own state is part of it;
        the state of ``SVI`` is kept likewise, except for any state of its loss.

        :raises ValueError: if there is something that data cannot keep, with its name.
        :raises NotImplementedError: if the learner is neither ``SVI`` nor has a ``state_dict`` of its own.
        """
        with taking_part(self._optim):
            return united_state(self._optim, self._own_state())

    def _own_state(self) -> dict[str, Any]:
        """State of this process."""
        learner = self._state if isinstance(self.learner, SVI) else self.learner
        for name in ("state_dict", "load_state_dict"):
            if not callable(getattr(learner, name, None)):
                raise NotImplementedError(
                    f"learner: expected SVI, or one with a method {name!r}, got {type(learner).__name__}, whose state "
                    "cannot be known from outside"
                )
        progress = None if self._progress is None else plain_copy(asdict(self._progress), "progress")
        own = learner._own_state() if isinstance(learner, Learner) else learner.state_dict()
        return {"learner": own, "progress": progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a state, from which the next :meth:`run` goes on."""
        if not isinstance(state, dict) or not {"learner", "progress"} <= state.keys():
            raise ValueError(f"state: expected that of an EarlyStopping, got {type(state).__name__} of something else")
        with taking_part(self._optim):
            self._load_own_state(own_state(self._optim, state))

    def _load_own_state(self, state: dict[str, Any]) -> None:
        learner = self._state if isinstance(self.learner, SVI) else self.learner
        load = learner._load_own_state if isinstance(learner, Learner) else learner.load_state_dict
        load(state["learner"])
        progress = plain_copy(state["progress"], "progress")
        self._progress = None if progress is None else _Progress(**progress)
        self._goes_on = progress is not None

    def _begin(self) -> _Progress:
        """Progress of a new run, or of the loaded one, with its last parameters."""
        if not self._goes_on or self._progress is None:
            self._progress = _Progress()
        if self._progress.present is not None:
            self._state.put_back(self._progress.present)
        self._progress.present, self._goes_on = None, False
        return self._progress

    def _is_due(self, progress: _Progress, max_steps: int) -> bool:
        """Whether it is time for a score."""
        since = progress.num_since
        return since is None or since == self.num_steps or (since > 0 and progress.num_steps >= max_steps)

    def _look(self, progress: _Progress) -> None:
        score = float(self.score())
        if isinstance(self._optim, DistributedOptim):
            score = self._optim.mean_score(score)
        progress.scores.append(score)
        if progress.kept is None or score > progress.best:
            progress.best, progress.best_at = max(progress.best, score), len(progress.scores)
            progress.kept = self._state.learned()
        progress.num_since = 0
