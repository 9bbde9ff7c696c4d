"""The Pyro models of the demonstration, fitted by stochastic variational inference."""

__all__ = ["fit_mixture", "fit_single"]

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.distributions import Categorical, Dirichlet, Independent, Normal
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, init_to_value
from pyro.optim import PyroLRScheduler
from torch import Tensor
from tqdm import trange

from pyro_structured.demo.bernoulli_mixture import BernoulliMixture
from pyro_structured.demo.cardinality_mixture import CardinalityMixture
from pyro_structured.demo.regions import curvature_basis
from pyro_structured.demo.settings import Settings
from pyro_structured.distributions import RecursiveCardinality
from pyro_structured.models import learn_nested_subsets

Values = dict[str, Tensor]


def fit_single(images: Tensor, settings: Settings) -> CardinalityMixture:
    """Learns regions and one RecursiveCardinality.

    :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
    :param Settings settings: Settings of the learners.
    """
    regions = learn_nested_subsets(images, penalty=settings.region_penalty)
    basis = curvature_basis(regions, settings.single_curvature)

    def model() -> None:
        logits = pyro.sample("logits", _normal(settings.mean_scale, images.shape[-1]))
        bends = pyro.sample("bends", _normal(1.0, len(basis)))
        with pyro.plate("images", len(images)):
            pyro.sample("image", RecursiveCardinality(logits, bends @ basis, regions), obs=images)

    start = {"logits": images.mean(0).logit(eps=0.01), "bends": images.new_zeros(len(basis))}
    fit = _Fit(model, Trace_ELBO(), settings, len(images))
    values = fit.run(start, settings.single_steps, "one RecursiveCardinality")
    return CardinalityMixture(images.new_ones(1), values["logits"][None], (values["bends"] @ basis)[None], regions)


def fit_mixture(images: Tensor, starts: list[BernoulliMixture], settings: Settings) -> CardinalityMixture:
    """Learns regions and a mixture of RecursiveCardinality distributions.

    :param Tensor images: Zeros and ones, shape ``(number, pixels)``.
    :param starts: Mixtures of independent pixels. Each gives initial values, and regions of pixels that go together
        inside its components; the one used predicts every fourth image best, after a few steps with the others.
    :param Settings settings: Settings of the learners.
    """
    if len(starts) == 1:
        return _MixtureModel(images, starts[0], settings).learn(settings.steps, "mixture")
    scores = [_score_start(images, start, settings, f"mixture, start {n}") for n, start in enumerate(starts, 1)]
    start = max(zip(scores, starts, strict=True), key=lambda pair: pair[0])[1]
    return _MixtureModel(images, start, settings).learn(settings.steps, "mixture, best start")


def _score_start(images: Tensor, start: BernoulliMixture, settings: Settings, label: str) -> float:
    """Mean log-likelihood of every fourth image, after a few steps with the others; the start itself has seen all."""
    held_out = torch.arange(len(images)) % 4 == 0
    mixture = _MixtureModel(images[~held_out], start, settings).learn(settings.start_steps, label)
    return float(mixture.log_prob(images[held_out]).mean())


class _MixtureModel:
    """Mixture whose components share their regions, and in part their parameters."""

    def __init__(self, images: Tensor, start: BernoulliMixture, settings: Settings) -> None:
        self.images = images
        self.start = start
        self.num_components = len(start.weights)
        self.settings = settings
        self.regions = learn_nested_subsets(images, start.posterior(images), settings.region_penalty)
        self.basis = curvature_basis(self.regions, settings.curvature)
        self.fit = _Fit(self.model, TraceEnum_ELBO(max_plate_nesting=1), settings, len(images))

    def learn(self, steps: int, label: str) -> CardinalityMixture:
        """The mixture after steps from the start."""
        values = self.fit.run(self.initial_values(), steps, label)
        return CardinalityMixture(values["weights"], *self.components(values), self.regions)

    def model(self) -> None:
        num_pixels, num_bends = self.images.shape[-1], len(self.basis)
        values = {
            "weights": pyro.sample("weights", Dirichlet(self.images.new_full((self.num_components,), 2.0))),
            "mean_logits": pyro.sample("mean_logits", _normal(self.settings.mean_scale, num_pixels)),
            "mean_bends": pyro.sample("mean_bends", _normal(1.0, num_bends)),
        }
        with pyro.plate("components", self.num_components):
            values["own_logits"] = pyro.sample("own_logits", _normal(1.0, num_pixels))
            values["own_bends"] = pyro.sample("own_bends", _normal(1.0, num_bends))
        logits, count_logits = self.components(values)
        with pyro.plate("images", len(self.images)):
            z = pyro.sample("z", Categorical(values["weights"]), infer={"enumerate": "parallel"})
            pyro.sample("image", RecursiveCardinality(logits[z], count_logits[z], self.regions), obs=self.images)

    def components(self, values: Values) -> tuple[Tensor, Tensor]:
        """Log-odds ``(components, pixels)`` and potentials of all components: sums of common and own terms."""
        logits = values["mean_logits"] + self.settings.own_scale * values["own_logits"]
        return logits, (values["mean_bends"] + values["own_bends"]) @ self.basis

    def initial_values(self) -> Values:
        """Initial values of the sites, from the mixture of independent pixels."""
        logits = self.start.probs.logit()
        mean = logits.mean(0)
        return {
            "weights": self.start.weights,
            "mean_logits": mean,
            "mean_bends": mean.new_zeros(len(self.basis)),
            "own_logits": (logits - mean) / self.settings.own_scale,
            "own_bends": mean.new_zeros(len(logits), len(self.basis)),
        }


class _Fit:
    """The most probable parameters of a model, by SVI with a guide that puts all mass on one point."""

    def __init__(self, model: Callable[[], None], elbo: Any, settings: Settings, num_images: int) -> None:
        self.model = model
        self.elbo = elbo
        self.settings = settings
        self.num_images = num_images

    def run(self, start: Values, steps: int, label: str) -> Values:
        """Values of the sites after all steps from a start."""
        pyro.clear_param_store()
        parameters = pyro.poutine.block(self.model, expose=list(start))
        guide = AutoDelta(parameters, init_loc_fn=init_to_value(values=start))
        adam = {"lr": self.settings.learning_rate, "betas": (0.9, 0.99)}
        schedule = {"optimizer": torch.optim.Adam, "optim_args": adam, "gamma": 0.02 ** (1 / steps)}
        optimizer = PyroLRScheduler(torch.optim.lr_scheduler.ExponentialLR, schedule)
        svi = SVI(self.model, guide, optimizer, self.elbo)
        progress = trange(steps, desc=f"{label:24}", unit="step", ncols=90, disable=None)  # on terminals only
        for _ in progress:
            loss = svi.step() / self.num_images
            optimizer.step()
            progress.set_postfix_str(f"loss {loss:.2f}", refresh=False)
        return {name: value.detach() for name, value in guide.median().items()}


def _normal(scale: float, size: int) -> Independent:
    return Independent(Normal(torch.zeros(size, dtype=torch.float64), scale), 1)
