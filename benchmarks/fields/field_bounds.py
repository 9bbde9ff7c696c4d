"""Partition functions of learned fields: widths of rigorous bounds, and annealed importance sampling between them."""

import contextlib
import io
import time

import numpy as np
import pyro
import torch
from pyro.optim import SGD

from benchmarks.fields.ellipse_models import SIZES, ellipse_data, learned_fields, single
from benchmarks.measurement import Report, arguments, duration
from pyro_structured.datasets import ellipse_figures
from pyro_structured.distributions import RBM
from pyro_structured.inference import AnnealedImportanceSampling, ContrastiveDivergence

TEXT = """
*Conditional*: `SegmentationCRF` at T = 1, learned from 500 figures of ellipses (level 0) in noise, as 32 x 32 pixels or
as means of squares of them, for test images; *machine*: `RBM` of such masks without noise, 2,000 steps of persistent
contrastive divergence, 32 x 32 pixels. For each field `log_partition_bounds`, the exact log Z where it is affordable,
and `AnnealedImportanceSampling(1000, 100)`, also in reverse from exact samples, where they are.

Numbers are differences to log Z in nats, or, where it is not known (–), to the forward estimate, means over so many
test images (below, `--images 1`: the first one alone); ± is the mean standard error that the estimator itself reports;
forward estimates are low rather than high. *Width*: of the bounds of log Z, and so of `log_prob_bounds`, and for each
pixel; *log-probability*: of the true mask, bounds for each pixel. Times are processor seconds of an image.

Bounds of many patterns that add up stay wide above. The machines have islands of labels far apart. Chains start at
several mean-field solutions, and so on these islands; one without a solution would be missed, and no standard error
would show it. Bounds hold all the same.
"""
# Side of the pixels of the original that make one, patterns, composition.
CONDITIONAL = ((4, 4, "sum"), (4, 8, "sum"), (4, 12, "sum"), (4, 16, "min"), (2, 16, "min"))
LARGE = ((1, 2, "sum"), (1, 8, "sum"), (1, 16, "sum"), (1, 32, "sum"), (1, 64, "sum"), (1, 128, "sum"), (1, 64, "min"))
MACHINES = (4, 8, 14)


def machine(number, quick):
    """An RBM of figures without noise, and figures to test it on."""
    masks = torch.from_numpy(ellipse_figures(0, 600, seed=0)).float().flatten(1)
    train, mean = masks[:500], (masks[:500].sum(0) + 0.5) / 501
    pyro.clear_param_store()

    def model():
        with pyro.plate("masks", len(train), subsample_size=50) as rows:
            weights = pyro.param("weights", lambda: 0.01 * torch.randn(number, train.shape[1]))
            visible = pyro.param("visible", mean.logit())
            hidden = pyro.param("hidden", torch.zeros(number))
            pyro.sample("y", RBM(weights, visible, hidden), obs=train[rows])

    learner = ContrastiveDivergence(model, lambda: None, SGD({"lr": 0.05 / len(train)}), persistent=True)
    with contextlib.redirect_stderr(io.StringIO()):
        for _ in range(2 if quick else 2000):
            learner.step()
    parts = (pyro.param(name).detach().double() for name in ("weights", "visible", "hidden"))
    return RBM(*parts), masks[500:].double()


def measured(d, truth, exact, estimator):
    """Differences of one field's bounds to log Z, or to its estimate, and seconds."""
    score, began = float(d.unnormalized_log_prob(truth)), time.process_time()
    low, high = (score - float(part) for part in reversed(d.log_prob_bounds(truth)))
    found = {"bounds time": time.process_time() - began}
    began = time.process_time()
    d.estimator = estimator
    forward, error = (float(part) for part in d.estimate_log_partition())
    found["AIS time"] = time.process_time() - began
    level = float(d.log_partition_function) if exact else forward
    pixels = d.event_shape.numel()
    found |= {"log Z": level if exact else None, "low": low - level, "high": high - level, "width": high - low}
    found |= {"per pixel": (high - low) / pixels, "forward": forward - level, "error": error}
    found |= {"log_prob": ((score - high) / pixels, (score - low) / pixels), "reverse": None}
    if exact:
        d.estimator = AnnealedImportanceSampling(estimator.num_temperatures, estimator.num_chains, reverse=True)
        value, error = (float(part) for part in d.estimate_log_partition())
        found |= {"reverse": value - level, "reverse error": error}
    return found


def row(name, each):
    """Means over images."""

    def mean(key):
        return np.mean([found[key] for found in each])

    below, above = (np.mean([found["log_prob"][end] for found in each]) for end in (0, 1))
    exact = each[0]["log Z"] is not None
    reverse = f"{mean('reverse'):+.3f} ± {mean('reverse error'):.3f}" if exact else "–"
    forward = f"{mean('forward'):+.3f} ± {mean('error'):.3f}"
    cells = [f"{mean('log Z'):.2f}" if exact else "–", f"{mean('low'):+.3f}", f"{mean('high'):+.3f}"]
    cells += [f"{mean('width'):.2f}", f"{mean('per pixel'):.4f}", f"{below:.4f} to {above:.4f}", forward, reverse]
    return [*name, *cells, duration(mean("bounds time")), duration(mean("AIS time"))]


HEADER = ["field", "grid", "patterns", "composition", "log Z", "below", "above", "width", "per pixel"]
HEADER += ["log-probability", "forward", "reverse", "time of bounds", "of AIS"]


def main():
    options = arguments(__doc__, images=(2, "test images of each model"))
    report = Report("Bounds of log Z for learned fields", TEXT, options)
    estimator = AnnealedImportanceSampling(20, 10) if options.quick else AnnealedImportanceSampling(1000, 100)
    rows, contained, number_exact, within = [], 0, 0, {"conditional": 0.0, "machine": 0.0}
    data, drawn = None, None

    def add(name, each):
        nonlocal contained, number_exact
        rows.append(row(name, each))
        report.progress(" ".join(map(str, rows[-1])))
        for found in each:
            if found["log Z"] is not None:
                number_exact += 1
                contained += found["low"] <= 1e-9 * abs(found["log Z"]) and found["high"] >= -1e-9 * abs(found["log Z"])
                within[name[0]] = max(within[name[0]], abs(found["forward"]))

    for pool, number, composition in CONDITIONAL[:1] if options.quick else CONDITIONAL + LARGE:
        sizes = (20, 5, 5) if options.quick else SIZES
        if pool != drawn:
            data, drawn = ellipse_data(0, options.seed, pool, sizes), pool
        fields, _ = learned_fields(data, options.seed, number, options.quick, composition=composition)
        images = range(1 if options.quick else options.images)
        truth = torch.from_numpy(data.masks[2]).double()
        each = [measured(single(fields, i, composition), truth[i], pool > 1, estimator) for i in images]
        side = 32 // pool
        add(("conditional", f"{side} x {side}", number, f'"{composition}"'), each)
    for number in MACHINES[:1] if options.quick else MACHINES:
        d, truth = machine(number, options.quick)
        add(("machine", "32 x 32", number, '"sum"'), [measured(d, truth[i], True, estimator) for i in images])
    report.table("Log Z", HEADER, rows)
    report.claim("exact log Z between the bounds", "all", f"{contained} of {number_exact}", contained == number_exact)
    for name, difference in within.items():
        text = f"{name} fields: largest difference of forward estimates to exact log Z"
        report.claim(text, "<= 0.1", f"{difference:.3f}", difference <= 0.1)
    report.finish()


if __name__ == "__main__":
    main()
