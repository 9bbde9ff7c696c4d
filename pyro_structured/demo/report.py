"""Printed output of the demonstration."""

__all__ = ["compare_splits", "demonstrate", "validate"]

import math
from collections.abc import Iterable
from pathlib import Path

import pyro
import torch
from torch import Tensor

from pyro_structured.demo.comparison import Comparison
from pyro_structured.demo.digits import Digits, load_digits
from pyro_structured.demo.estimators import EstimatedDensity, fit_estimators
from pyro_structured.demo.gallery import Gallery
from pyro_structured.demo.picture import draw_picture
from pyro_structured.demo.settings import Settings
from pyro_structured.demo.validation import print_validation


def validate(settings: Settings) -> None:
    """Prints the search for the settings, on the training images of the demonstration."""
    print_validation(load_digits(seed=0).training, settings)


def demonstrate(output: Path, settings: Settings) -> None:
    """Learns and compares models, and draws samples and completions.

    :param Path output: Picture to write.
    :param Settings settings: Settings of the learners.
    """
    pyro.set_rng_seed(0)
    digits = load_digits(seed=0)
    sizes = f"{len(digits.training)} to learn from, {len(digits.held_out)} held out"
    print(f"Handwritten digits, 8x8 pixels, on or off: {sizes}.")
    print("Learning nine models ...", flush=True)
    comparison = Comparison(digits.training, settings)
    _print_table(comparison, fit_estimators(digits.training, settings), digits.held_out)
    observed = torch.arange(digits.held_out.shape[-1]) < digits.held_out.shape[-1] // 2
    _print_completion(comparison, digits.held_out, observed)
    draw_picture(_gallery(comparison, digits, observed), output)
    print(f"\nThe picture is {output}: samples, completions, and the learned regions.")


def compare_splits(seeds: Iterable[int], settings: Settings) -> None:
    """Prints the held-out log-likelihoods on further random splits, and the gains from count potentials.

    :param seeds: Seeds of the splits.
    :param Settings settings: Settings of the learners, chosen on the split with seed 0.
    """
    print("Held-out log-likelihood, nats per image (higher is better)", flush=True)
    gains: list[tuple[float, float]] = []
    for seed in seeds:
        pyro.set_rng_seed(seed)
        digits = load_digits(seed)
        comparison = Comparison(digits.training, settings)
        scores = {name: float(model.log_prob(digits.held_out).mean()) for name, model in comparison.models().items()}
        independent, _, bernoulli, single, mixture = scores.values()
        gains.append((single - independent, mixture - bernoulli))
        print(f"split {seed}: " + "; ".join(f"{name} {score:.2f}" for name, score in scores.items()), flush=True)
    labels = ("one RecursiveCardinality - independent pixels", "mixture - mixture of independent pixels")
    print("\nGain from potentials on counts, nats per image")
    for label, values in zip(labels, zip(*gains, strict=True), strict=True):
        columns = "".join(f"{value:7.2f}" for value in values)
        print(f"  {label:46}{columns}   mean {sum(values) / len(values):.2f}, smallest {min(values):.2f}")


def _print_table(comparison: Comparison, estimators: dict[str, EstimatedDensity], images: Tensor) -> None:
    scores = {name: model.log_prob(images) for name, model in comparison.models().items()}
    independent, tree, bernoulli, single, mixture = scores.values()
    scores |= {name: model.log_prob(images) for name, model in estimators.items()}
    print("\nHow well does each model predict new images?")
    print("Held-out log-likelihood in nats per image, with its standard error; higher is better.\n")
    for name, score in scores.items():
        print(f"  {name:36}{float(score.mean()):8.2f} +- {_standard_error(score):.2f}")
    best = max(scores, key=lambda name: float(scores[name].mean()))
    print(f"\nWhich to take? For the likelihood alone, the best of these: {best}.")
    print("For one graph with small cliques, learned in about a second: ThinJunctionTree.")
    print("For what is known of counts, such as at most k of a group, in any Pyro model: RecursiveCardinality.")
    print("\nThe same images, one model against another:\n")
    _print_gain("one RecursiveCardinality", "independent pixels", single - independent)
    _print_gain("one RecursiveCardinality", "Chow-Liu tree", single - tree)
    _print_gain("mixture of RecursiveCardinality", "mixture of independent pixels", mixture - bernoulli)
    _print_gain("mixture of RecursiveCardinality", "Chow-Liu tree", mixture - tree)
    _print_gain("mixture of RecursiveCardinality", best, mixture - scores[best])


def _print_gain(first: str, second: str, difference: Tensor) -> None:
    gain, error = float(difference.mean()), _standard_error(difference)
    verdict = "better than" if gain > 0 else "WORSE than"
    words = f"{first} is {verdict if abs(gain) > error else 'about as good as'} {second}"
    print(f"  {words:78} {gain:+.2f} +- {error:.2f}")


def _standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def _print_completion(comparison: Comparison, images: Tensor, observed: Tensor) -> None:
    """Prints log-likelihoods of the hidden half given the other; independent pixels cannot use the observed half."""
    independent = comparison.independent
    hidden_alone = (images * independent.probs.log() + (1 - images) * torch.log1p(-independent.probs))[
        :, ~observed
    ].sum(-1)
    print("\nLower half hidden: log-likelihood of its 32 pixels given the upper half, exact.\n")
    print(f"  {'independent pixels':36}{float(hidden_alone.mean()):8.2f}")
    for name, model in (("one RecursiveCardinality", comparison.single), ("mixture", comparison.mixture)):
        hidden = model.log_prob(images) - model.marginal_log_prob(images, observed)
        print(f"  {name:36}{float(hidden.mean()):8.2f}")


def _gallery(comparison: Comparison, digits: Digits, observed: Tensor) -> Gallery:
    chosen = [int((digits.held_out_labels == digit).nonzero()[0]) for digit in range(10)]
    truth = digits.held_out[chosen]
    marginals, samples = comparison.mixture.complete(truth, observed, number=5)
    order = comparison.mixture.weights.argsort(descending=True)
    return Gallery(
        data=digits.training,
        single_samples=comparison.single.sample(20),
        mixture_samples=comparison.mixture.sample(20),
        component_marginals=comparison.mixture.components.marginals[order],
        truth=truth,
        observed=observed,
        completed_marginals=marginals,
        completed_samples=samples,
        single=comparison.single,
    )
