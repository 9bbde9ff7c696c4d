"""A hidden chain of states in MCMC: drawn exactly in one step, against flips of single states.

Claims: at least 50 times the effective samples a second of single flips where only the chain is latent, at most 3 ms a
step; at least 3 times with unknown means.
"""

import time
from unittest.mock import patch

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size

from benchmarks.measurement import Report, arguments, ratio
from pyro_structured.distributions import GridCRF, JunctionTree
from pyro_structured.inference import BinaryGibbs, Gibbs, StructuredGibbs
from pyro_structured.junction_trees.ops import junction_tree
from pyro_structured.structures import CliqueTree, Grid

TEXT = """
A hidden Markov chain of two states, which stays with probability .97, seen through normal noise of scale 1.5 around 0
and 1. *Exact draws*: `StructuredGibbs` on a `JunctionTree` on a path. *Exact draws, node by node*: the same without
passes in logarithmically many steps, as for any other junction tree. *Single flips*: `BinaryGibbs` on the same law as a
`GridCRF` of one row. Effective samples are those of the number of ones, over all chains (Pyro's estimate), or of the
difference of both means; seconds are processor seconds, those of warm-up not counted. *Expected number of ones*: from
the chains, with its standard error from the effective samples, beside the sum of the exact marginals. *Means unknown*:
normal around 0 and 1 with scale .3.
"""
STAY, NOISE = 0.97, 1.5
# Narrow enough that the states do not change their names.
PRIOR_SCALE = 0.3


def hidden_chain(length, rng):
    moves = rng.random(length) > STAY
    states = np.cumsum(moves) % 2
    return torch.from_numpy(states + NOISE * rng.standard_normal(length))


def priors(length):
    """The same law as a junction tree and as a field of one row."""
    table = torch.tensor([[STAY, 1 - STAY], [1 - STAY, STAY]], dtype=torch.double).log().flatten()
    tree = JunctionTree(table.repeat(length - 1), CliqueTree.chain(length, 2))
    penalty = torch.full((length - 1,), float(np.log(STAY / (1 - STAY))), dtype=torch.double)
    field = GridCRF(torch.zeros(1, length, dtype=torch.double), penalty, Grid(1, length))
    return tree, field


def known_means(prior, y):
    def model():
        z = pyro.sample("z", prior)
        seen = y.reshape(prior.event_shape)
        pyro.sample("y", dist.Normal(z.double(), NOISE).to_event(len(prior.event_shape)), obs=seen)

    return model


def unknown_means(prior, y):
    def model():
        means = pyro.sample("means", dist.Normal(torch.tensor([0.0, 1.0]).double(), PRIOR_SCALE).to_event(1))
        z = pyro.sample("z", prior)
        seen = y.reshape(prior.event_shape)
        pyro.sample("y", dist.Normal(means[z.long()], NOISE).to_event(len(prior.event_shape)), obs=seen)

    return model


def count_chains(kernel, model, prior, num_chains, num_steps):
    """Numbers of ones, shape ``(chains, steps)``, and processor seconds a step."""
    counts, spent = torch.zeros(num_chains, num_steps, dtype=torch.double), 0.0
    for chain in range(num_chains):
        kernel.prepare(model, ["z"], 0, (), {})
        values = {"z": prior.sample()}
        for _ in range(num_steps // 10):
            values = kernel.step(values)
        start = time.process_time()
        for step in range(num_steps):
            values = kernel.step(values)
            counts[chain, step] = values["z"].sum()
        spent += time.process_time() - start
    return counts, spent / counts.numel()


def difference_of_means(kernel, model, num_steps):
    """Effective samples of the difference of both means, and processor seconds for the samples."""
    marks = []
    mcmc = MCMC(
        Gibbs([(kernel(model), ["z"]), (NUTS(model), ["means"])]),
        num_samples=num_steps,
        warmup_steps=num_steps // 2,
        disable_progbar=True,
        hook_fn=lambda _, __, stage, step: marks.append(time.process_time()) if stage == "Sample" else None,
    )
    mcmc.run()
    means = mcmc.get_samples()["means"]
    effective = effective_sample_size((means[:, 1] - means[:, 0]).unsqueeze(0), chain_dim=0, sample_dim=1)
    return float(effective), marks[-1] - marks[0]


def main():
    options = arguments(__doc__)
    length, flips, draws, joint = (20, 40, 40, 10) if options.quick else (200, 600, 4000, 400)
    report = Report("Hidden chain", TEXT, options)
    y = hidden_chain(length, np.random.default_rng(options.seed))
    tree, field = priors(length)
    log_weights = torch.stack([dist.Normal(mean, NOISE).log_prob(y) for mean in (0.0, 1.0)], -1)
    expected = float(tree.reweight(log_weights).marginals[:, 1].sum())
    contestants = {
        "exact draws": (StructuredGibbs, tree, draws, junction_tree.CHAIN_NUMBERS),
        "exact draws, node by node": (StructuredGibbs, tree, max(20, draws // 10), 0),
        "single flips": (BinaryGibbs, field, flips, 0),
    }
    rows, rates, step = [], {}, {}
    for name, (kernel, prior, steps, most) in contestants.items():
        model = known_means(prior, y)
        with patch.object(junction_tree, "CHAIN_NUMBERS", most):
            counts, step[name] = count_chains(kernel(model), model, prior, 4, steps)
        effective = float(effective_sample_size(counts, chain_dim=0, sample_dim=1))
        rates[name] = effective / (step[name] * counts.numel())
        error = float(counts.std()) / effective**0.5
        mean = f"{counts.mean():.1f} ± {error:.1f}"
        rows.append([name, f"{step[name] * 1e3:.2f}", f"{rates[name]:.3g}", mean, f"{expected:.1f}"])
        report.progress(str(rows[-1]))
    header = ["contestant", "ms a step", "effective samples a second", "expected number of ones", "exact"]
    report.table(f"Only the chain is latent, {length} steps", header, rows)
    gain = rates["exact draws"] / rates["single flips"]
    report.claim("effective samples a second, against single flips", ">= 50x", ratio(gain), gain >= 50)
    spent = step["exact draws"] * 1e3
    report.claim("milliseconds a step", "<= 3", f"{spent:.2f}", spent <= 3)
    rows, rates = [], {}
    for name, kernel, prior in (("exact draws", StructuredGibbs, tree), ("single flips", BinaryGibbs, field)):
        pyro.set_rng_seed(options.seed)
        effective, spent = difference_of_means(kernel, unknown_means(prior, y), joint)
        rates[name] = effective / spent
        rows.append([name, f"{effective:.0f}", f"{spent:.0f}", f"{rates[name]:.3g}"])
        report.progress(str(rows[-1]))
    header = ["states", "effective samples", "seconds", "effective samples a second"]
    report.table(f"Means unknown, by NUTS, {joint} samples", header, rows)
    gain = rates["exact draws"] / rates["single flips"]
    report.claim("the same with unknown means", ">= 3x", ratio(gain), gain >= 3)
    report.finish()


if __name__ == "__main__":
    main()
