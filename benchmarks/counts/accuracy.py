"""Errors of every result against ball arithmetic, next to the certified bounds.

Claim: on inputs that are hard for floating point, log Z is within 1e-12 of max(1, |log Z|, sum |x|), probabilities
within 1e-9 of p and of 1 - p, relatively, posterior counts and gradients within 1e-9, and Hessian-vector products
within 1e-9 of their largest entry; the log-probabilities, cumulative or not, of PoissonBinomial are within 1e-9 at
every count.
"""

import warnings
from typing import NamedTuple

import torch

from benchmarks.counts.input_families import nested_potentials, single_potentials
from benchmarks.measurement import Report, arguments, seconds, size, small
from pyro_structured.distributions import PoissonBinomial, RecursiveCardinality
from pyro_structured.testing import ball_arithmetic

TEXT = """
Reference: products of polynomials in ball arithmetic (Arb), whose results are correct in the last bit of float64.
*log Z*: error and certified bound, both divided by max(1, |log Z|, sum |x|); *p, 1 - p*: largest relative error of
`sigmoid(marginal_logits)` and `sigmoid(-marginal_logits)` where these are at least 1e-12; *log-odds*: largest
absolute error of `marginal_logits`, and the largest certified bound; *counts*: largest absolute error of
`count_marginals`; *gradient*: of the derivatives of log Z by autograd; *Hessian*: error of a Hessian-vector product
along a random vector, divided by its largest entry; *fallback*: nodes that were convolved directly, of all nodes. A
bound that an error exceeds would be marked with an exclamation mark.
"""
HEADER = ["input", "D", "log Z", "bound", "p, 1 - p", "log-odds", "bound", "counts", "gradient", "Hessian", "fallback"]
WANTED = {
    "log Z": 1e-12,
    "p, 1 - p": 1e-9,
    "counts": 1e-9,
    "gradient": 1e-9,
    "Hessian": 1e-9,
}
PRECISIONS = (400, 2000, 10000, 50000)


class Errors(NamedTuple):
    log_z: float
    log_z_bound: float
    probabilities: float
    log_odds: float
    log_odds_bound: float
    counts: float
    gradient: float
    hessian: float | None
    fallback: str

    def row(self, name, num_variables):
        numbers = [small(value) if not isinstance(value, str) else value for value in self]
        for error, bound in ((0, 1), (3, 4)):
            if not self[error] <= self[bound]:
                numbers[error] += " !"
        return [name, size(num_variables), *numbers]

    def by_name(self):
        return dict(
            zip(WANTED, (self.log_z, self.probabilities, self.counts, self.gradient, self.hessian), strict=True)
        )


def at_sufficient_precision(function, *arguments_given):
    """Calls a function of the reference with more bits until its answer is certain."""
    for precision in PRECISIONS:
        try:
            return function(*arguments_given, precision=precision)
        except ArithmeticError:
            continue
    raise ArithmeticError(f"not certain with {PRECISIONS[-1]} bits")


def worst(difference):
    """The largest entry; NaN counts as infinite."""
    return difference.abs().nan_to_num(nan=torch.inf).max().item()


def difference(found, exact):
    """``found - exact``, zero where both are the same infinity."""
    return torch.where(found == exact, 0.0, found - exact)


def judge(logits, count_logits, subsets, with_hessian):
    families = None if subsets is None else [s.tolist() for s in subsets.subsets]
    exact = at_sufficient_precision(ball_arithmetic.beliefs, logits, count_logits, families)
    parameters = [p.clone().requires_grad_() for p in (logits, count_logits)]
    model = RecursiveCardinality(*parameters, subsets)
    scale = max(1.0, exact.log_partition.abs().item(), logits.abs().sum().item())
    certificate = model.certificate
    gradient = torch.autograd.grad(model.log_partition_function, parameters, create_graph=with_hessian)
    odds = model.marginal_logits.detach()
    relative = []
    for sign in (1, -1):
        p, q = torch.sigmoid(sign * odds), torch.sigmoid(sign * exact.marginal_logits)
        relative.append(worst(((p - q) / q).masked_fill(q < 1e-12, 0.0)))
    truth = torch.cat([torch.sigmoid(exact.marginal_logits), exact.count_marginals])
    hessian = None
    if with_hessian:
        direction = [torch.randn_like(p) for p in parameters]
        found = torch.autograd.grad(sum((g * v).sum() for g, v in zip(gradient, direction, strict=True)), parameters)
        true = at_sufficient_precision(
            ball_arithmetic.hessian_vector_product, logits, count_logits, direction, families
        )
        largest = max(t.abs().max().item() for t in true)
        hessian = max(worst(f - t) for f, t in zip(found, true, strict=True)) / largest
    return Errors(
        worst(difference(model.log_partition_function.detach(), exact.log_partition)) / scale,
        certificate.log_partition_error.item() / scale,
        max(relative),
        worst(difference(odds, exact.marginal_logits)),
        certificate.marginal_logits_error.max().item(),
        worst(model.count_marginals.detach() - exact.count_marginals),
        worst(torch.cat(gradient).detach() - truth),
        hessian,
        f"{int(certificate.num_fallback_nodes)} of {len(model.subsets.forest.merges)}",
    )


def poisson_binomial_errors(num_variables):
    """Rows of the table of PoissonBinomial, and the largest error of all."""
    families = {
        "N(0,1) logits": torch.randn(num_variables, dtype=torch.float64),
        "N(0,9) logits": 3 * torch.randn(num_variables, dtype=torch.float64),
        "N(-8,1) logits": torch.randn(num_variables, dtype=torch.float64) - 8,
        "U(-50,50) logits": 100 * torch.rand(num_variables, dtype=torch.float64) - 50,
    }
    counts = torch.arange(num_variables + 1, dtype=torch.float64)
    rows, largest = [], 0.0
    for name, logits in families.items():
        exact = at_sufficient_precision(ball_arithmetic.poisson_binomial, logits)
        model = PoissonBinomial(logits=logits)
        found = model.log_prob(counts), model.log_cdf(counts), model.log_survival(counts)
        errors = [worst(difference(f, e)) for f, e in zip(found, exact, strict=True)]
        largest = max(largest, *errors)
        rows.append([name, *map(small, errors), f"{exact.log_prob.min().item():.0f}"])
    return rows, largest


def main():
    options = arguments(__doc__, largest=(4096, "largest number of variables"))
    sizes, nested_sizes = [64, 1024, 4096], [64, 256, 1024]
    sizes = [d for d in sizes if d <= options.largest]
    if options.quick:
        sizes, nested_sizes = [64], [64]
    with_hessian = {64} if options.quick else {64, 1024}
    report = Report("Accuracy against ball arithmetic", TEXT, options)
    found = []

    def add(name, logits, count_logits, subsets=None):
        num_variables = len(logits)
        results = []
        with_it = num_variables in with_hessian
        taken = seconds(lambda: results.append(judge(logits, count_logits, subsets, with_it)))
        report.progress(f"{name}, D={num_variables}: {taken:.1f} s")
        found.append((name, num_variables, results[0]))

    for num_variables in sizes:
        for name, (logits, count_logits) in single_potentials(num_variables).items():
            add(name, logits, count_logits)
    for num_variables in nested_sizes:
        add("nested N(0,1) potentials, 20 % -inf", *nested_potentials(num_variables))
        add("nested N(0,100) potentials, 20 % -inf", *nested_potentials(num_variables, scale=10.0))

    for name, limit in WANTED.items():
        values = [(v, *where) for *where, e in found if (v := e.by_name()[name]) is not None]
        value, family, num_variables = max(values)
        text = f"{small(value)} ({family}, D={num_variables})"
        report.claim(
            f"largest error: {name}",
            f"<= {limit:.0e}, aim 1e-11" if limit > 1e-12 else f"<= {limit:.0e}",
            text,
            value <= limit,
        )
    violations = sum(" !" in cell for name, d, e in found for cell in e.row(name, d))
    report.claim("errors above their certified bounds", "0", str(violations), violations == 0)
    report.table("Potentials on counts", HEADER, [e.row(name, d) for name, d, e in found])

    rows, largest = poisson_binomial_errors(sizes[-1])
    report.claim(f"PoissonBinomial, D={sizes[-1]}: every count", "<= 1e-9", small(largest), largest <= 1e-9)
    header = ["input", "log_prob", "log_cdf", "log_survival", "smallest log-probability"]
    report.table(f"PoissonBinomial, D={sizes[-1]}: largest absolute errors over all counts", header, rows)
    report.finish()


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
