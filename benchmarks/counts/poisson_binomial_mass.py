"""The Poisson-binomial mass function against fast-poibin and scipy.

Claim: all probabilities with an absolute error of at most 1e-13 are at least 2x faster than fast-poibin at D=2^17 and
as fast in a batch of 256 rows at D=1024; and the best peer has only a part of its probabilities right to nine digits,
where `PoissonBinomial.log_prob` has all.
"""

import math

import numpy as np
import torch
from fast_poibin import PoiBin
from scipy.stats import poisson_binom

from benchmarks.measurement import Report, arguments, duration, interleaved, ratio, size, small
from pyro_structured.counts.ops.poisson_binomial import bulk_mass, log_mass
from pyro_structured.distributions import PoissonBinomial
from pyro_structured.testing import ball_arithmetic

TEXT = """
Probabilities of all counts. *Bulk mass*: `ops.poisson_binomial.bulk_mass(logits)`; *distribution*:
`PoissonBinomial(probs=p).bulk_mass()`, which starts from the probabilities as the peers do. *Mixed* and *dp*:
`fast_poibin.PoiBin(p)` in its two modes (O(D log^2 D) and O(D^2), both compiled by numba, in a Python loop over the
rows of a batch); *scipy*: `scipy.stats.poisson_binom.pmf` at all counts. *Error*: largest absolute error of the bulk
mass; the reference is a product of polynomials with integer coefficients, rounded to 160 binary places.
"""
PRECISE = """
The accurate logarithms, `PoissonBinomial.log_prob`, cost more: with numba, up to 2^17 variables, a recursion of O(D^2)
steps in which every count has a scale of its own; else about sqrt(D)/2 exponential tilts, each as much as the bulk
mass. They are not a peer of the above, and stand apart.
"""
# Quadratic algorithms are run up to these sizes.
LARGEST_DP = 2**17
LARGEST_SCIPY = 2**14
FRACTION_BITS = 160


def reference_mass(probs):
    """All probabilities, by products of polynomials in exact integer arithmetic, rounded after each product.

    Each rounding changes a coefficient by less than 2^-160, and products of mass functions do not amplify that.
    """
    from flint import fmpz_poly

    one = 2**FRACTION_BITS
    on = [int(math.ldexp(p, 80)) << (FRACTION_BITS - 80) for p in probs.tolist()]
    level = [fmpz_poly([one - p, p]) for p in on]
    while len(level) > 1:
        level = [a * b // one for a, b in zip(level[::2], level[1::2], strict=True)]
    coefficients = level[0].coeffs()
    coefficients += [0] * (len(probs) + 1 - len(coefficients))
    return np.array([math.ldexp(float(int(c)), -FRACTION_BITS) for c in coefficients])


def contestants(logits, probs, with_scipy):
    rows = probs.numpy()
    width = rows.shape[-1]
    runs = {
        "bulk": lambda: bulk_mass(logits),
        "distribution": lambda: PoissonBinomial(probs=probs).bulk_mass(),
        "mixed": lambda: [PoiBin(row) for row in rows],
        "dp": lambda: [PoiBin(row, mode="dp") for row in rows],
    }
    if width > LARGEST_DP:
        del runs["dp"]
    if with_scipy:
        counts = np.arange(width + 1)
        runs["scipy"] = lambda: [poisson_binom(row).pmf(counts) for row in rows]
    return runs


def draw(rows, width):
    """Logits ~ N(0,1), and the probabilities rounded to 80 binary places so that every contestant gets the same."""
    probs = torch.sigmoid(torch.randn(rows, width, dtype=torch.float64))
    return probs.log() - torch.log1p(-probs), probs


def right_digits(options, num_variables):
    """Shares of the entries within 1e-9 of the true probability, for four kinds of inputs."""
    families = {
        "N(0,1) logits": torch.randn(num_variables, dtype=torch.float64),
        "N(0,9) logits": 3 * torch.randn(num_variables, dtype=torch.float64),
        "N(-8,1) logits": torch.randn(num_variables, dtype=torch.float64) - 8,
        "U(0,1) probabilities": torch.logit(torch.rand(num_variables, dtype=torch.float64)),
    }
    rows = []
    for name, logits in families.items():
        exact = ball_arithmetic.poisson_binomial(logits).log_prob
        probs = torch.sigmoid(logits).numpy()
        counts = np.arange(num_variables + 1)
        found = {
            "log_prob": PoissonBinomial(logits=logits).log_prob(torch.from_numpy(counts)),
            "bulk": bulk_mass(logits.unsqueeze(0)).squeeze(0).log(),
            "mixed": _log(PoiBin(probs).pmf),
            "dp": _log(PoiBin(probs, mode="dp").pmf),
            "scipy": _log(poisson_binom(probs).pmf(counts)),
            "characteristic": _log(_characteristic_mass(probs)),
        }
        shares = [((values - exact).expm1().abs() <= 1e-9).double().mean().item() for values in found.values()]
        worst = (found["log_prob"] - exact).abs().max().item()
        rows.append([name, *(f"{100 * share:.3g} %" for share in shares), small(worst)])
    return rows


def _log(mass):
    return torch.from_numpy(np.asarray(mass, dtype=np.float64).clip(min=0.0)).log()


def _characteristic_mass(probs):
    """The discrete Fourier transform of the characteristic function (Hong 2013), by logarithms."""
    size = len(probs) + 1
    angle = 2 * np.pi * np.arange(size // 2 + 1) / size
    logs = [np.log1p(probs * np.expm1(1j * part[:, None])).sum(1) for part in np.array_split(angle, 16)]
    return np.fft.irfft(np.exp(np.concatenate(logs)).conj(), size)


def main():
    options = arguments(__doc__, largest=(19, "binary logarithm of the largest number of variables"))
    shapes = [(1, 1024), (1, 4096), (1, 2**14), (1, 2**17), (1, 2**options.largest), (256, 1024)]
    precise, judged = [(1, 1024), (1, 4096), (1, 2**14), (256, 1024)], 4096
    if options.quick:
        shapes, precise, judged = [(1, 64), (4, 128)], [(1, 64)], 64
    report = Report("The Poisson-binomial mass function", TEXT, options)
    peers = {"mixed": "fast-poibin, mixed", "dp": "fast-poibin, dp", "scipy": "scipy"}
    contestants_known = {"bulk": "bulk mass", "distribution": "distribution", **peers}
    rows, wanted = [], {(1, 2**17): 2, (256, 1024): 1}
    PoiBin(np.full(1000, 0.5))  # numba compiles
    for shape in shapes:
        logits, probs = draw(*shape)
        runs = contestants(logits, probs, shape[0] == 1 and shape[1] <= LARGEST_SCIPY)
        times = interleaved(runs, options.repeats)
        exact = reference_mass(probs[0])
        error = np.abs(bulk_mass(logits[:1])[0].numpy() - exact).max()
        name = f"{shape[0]} x {size(shape[1])}"
        factors = [ratio(times[p] / times["bulk"] if p in times else None) for p in peers]
        rows.append([name, *(duration(times.get(c)) for c in contestants_known), *factors, small(error)])
        if shape in wanted:
            for ours in ("bulk", "distribution"):
                factor = min(times[p] for p in ("mixed", "dp") if p in times) / times[ours]
                text = f"{name}: faster mode of fast-poibin / {contestants_known[ours]}"
                report.claim(text, f">= {wanted[shape]}x", ratio(factor), factor >= wanted[shape])
        report.claim(f"{name}: absolute error of the bulk mass", "<= 1e-13", small(error), error <= 1e-13)
    header = ["rows x D", *contestants_known.values(), *(f"{name} / bulk mass" for name in peers.values()), "error"]
    report.table("Bulk mass: times, and ratios to the peers", header, rows)

    rows = []
    for shape in precise:
        logits, _ = draw(*shape)
        times = interleaved(
            {"log": lambda x=logits: log_mass(x), "bulk": lambda x=logits: bulk_mass(x)}, options.repeats
        )
        rows.append([f"{shape[0]} x {size(shape[1])}", duration(times["log"]), ratio(times["log"] / times["bulk"])])
    report.paragraph(PRECISE.strip())
    report.table("Accurate logarithms: times", ["rows x D", "log mass", "log mass / bulk mass"], rows)

    rows = right_digits(options, judged)
    worst = max(float(row[-1]) for row in rows)
    report.claim(f"D={judged}: error of PoissonBinomial.log_prob, all counts", "<= 1e-9", small(worst), worst <= 1e-9)
    header = ["input", "PoissonBinomial.log_prob", "bulk mass", "fast-poibin, mixed", "fast-poibin, dp", "scipy"]
    header += ["FFT of characteristic function", "largest error of log_prob"]
    report.table(f"Probabilities within 1e-9 of the true one (relative, ball arithmetic), D={judged}", header, rows)
    report.finish()


if __name__ == "__main__":
    main()
