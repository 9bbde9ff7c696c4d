"""Times on one thread of a processor and on a CUDA device, of learning, of passes and of samples.

Claims: a pass of `LatentTreeDensity()` through the rows of plants takes the device at most a tenth of the time; results
differ by rounding.
"""

import statistics
import time
import warnings

import torch
from sklearn.exceptions import ConvergenceWarning

from benchmarks.measurement import Report, arguments, duration, ratio, small
from pyro_structured.datasets import load_density
from pyro_structured.distributions import GridCRF, JunctionTree, KSubset, PoissonBinomial, RecursiveCardinality
from pyro_structured.models import LatentTreeDensity
from pyro_structured.structures import CliqueTree, Grid

TEXT = """
Seconds of the clock, medians of several runs, each of which ends when the device is done. *Learning*: a pass of
`LatentTreeDensity(n_states, batch_size, device)` through the training rows of plants (17,412 x 69): of the time of
several passes, that of one alone is taken off, clusters and all else that is done once. On a device, a step through a
batch is recorded once and replayed in one launch. *Whole fit*: defaults, with everything. *Passes* are in double
precision: all log-odds of counts, with log Z and its certificate; marginals; log-probabilities of values; samples.
*Difference*: the largest one of the results of both devices, for learning that of mean log-probabilities of validation
rows after the first pass.

Few, small problems are faster on a processor: a device needs some 10 microseconds to begin anything. Solvers of
matchings, paths, cuts and spanning trees are on the processor in any case.
"""
LEAST_GAIN, MOST_PASSES, DEFAULT = 10.0, 3, (32, 250)
# Numbers of states and of rows in a batch.
SETTINGS = DEFAULT, (128, 1000)


def median(run, device, repeats):
    """Median seconds of a run after another one, and its last result."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        result = run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), result


def fitted(data, device, seed, **settings):
    start = time.perf_counter()
    model = LatentTreeDensity(device=device, random_state=seed, verbose=False, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.train, X_val=data.validation)
    return time.perf_counter() - start, model


def pass_time(data, device, seed, states, batch):
    """Seconds of a pass, and the validation score after the first one."""
    options = {"n_states": states, "batch_size": batch}
    short, model = fitted(data, device, seed, max_iter=1, **options)
    long, _ = fitted(data, device, seed, max_iter=MOST_PASSES, **options)
    return (long - short) / (MOST_PASSES - 1), model.scores_[0][0]


def passes(quick, seed):
    """Operations by name: functions of a device."""

    def numbers(*shape):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, dtype=torch.double, generator=generator)

    def odds(rows, size):
        logits, table = numbers(rows, size), numbers(size + 1)

        def run(device):
            d = RecursiveCardinality(logits.to(device), table.to(device), validate_args=False)
            return torch.cat([d.log_partition_function.unsqueeze(-1), d.marginals], -1)

        return run

    def draws(rows, size):
        logits, table = numbers(rows, size), numbers(size + 1)
        return lambda device: RecursiveCardinality(logits.to(device), table.to(device), validate_args=False).sample()

    def subset(rows, size):
        logits = numbers(rows, size)
        return lambda device: KSubset(logits.to(device), 10).marginals

    def counts(rows, size):
        logits, ones = numbers(rows, size), torch.arange(size + 1.0, dtype=torch.double)
        return lambda device: PoissonBinomial(logits=logits.to(device)).log_prob(ones.to(device).unsqueeze(-1))

    def chain(rows, size, states):
        tree = CliqueTree([[d, d + 1] for d in range(size - 1)], [states] * size)
        tables = numbers(rows, tree.table_size)
        return lambda device: JunctionTree(tables.to(device), tree).marginals

    def grid(rows, height, width):
        shape = Grid(height, width)
        unary, pairwise = numbers(rows, height, width), numbers(rows, shape.num_edges)
        return lambda device: GridCRF(unary.to(device), pairwise.to(device), shape).marginals

    many, long = (4, 32) if quick else (256, 1024)
    return {
        "log-odds of counts, 1 x 64": odds(1, 64),
        f"log-odds of counts, {many} x {long}": odds(many, long),
        f"log-odds of counts, {many * 64} x 64": odds(many * 64, 64),
        f"samples of counts, {many} x {long}": draws(many, long),
        f"10-subsets, {many} x {long}": subset(many, long),
        f"probabilities of all counts, {many} x {long}": counts(many, long),
        f"chain of 100 variables, 8 states, {many} rows": chain(many, 100, 8),
        f"grid 8 x 32, {many} rows": grid(many, *((2, 3) if quick else (8, 32))),
    }


def main():
    options = arguments(__doc__)
    report = Report("Processor and device", TEXT, options)
    if report.lacks("debd/plants.npz"):
        report.finish()
        return
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    if len(devices) == 1:
        report.claim("all", "a CUDA device", "skipped: this machine has none", False)
        options.write = False
    else:
        report.paragraph(f"Device: {torch.cuda.get_device_name()}.")
    data = load_density("plants")
    if options.quick:
        data = data._make(each[:300] for each in data)
    rows = []
    for states, batch in SETTINGS[:1] if options.quick else SETTINGS:
        for device in devices:
            warm, _ = fitted(data._make(each[:600] for each in data), device, options.seed, n_states=states, max_iter=2)
            report.progress(f"first fit, {device}: {duration(warm)}")
        found = [pass_time(data, device, options.seed, states, batch) for device in devices]
        (slow, first), (fast, second) = found[0], found[-1]
        gain = slow / fast
        name = f"a pass, K = {states}, batches of {batch}"
        rows.append([name, duration(slow), duration(fast), ratio(gain), small(abs(first - second))])
        report.progress(str(rows[-1]))
        if (states, batch) == DEFAULT:
            report.claim("a pass of LatentTreeDensity()", f">= {ratio(LEAST_GAIN)}", ratio(gain), gain >= LEAST_GAIN)
    whole = [fitted(data, device, options.seed, max_iter=2 if options.quick else 500) for device in devices]
    (slow, one), (fast, other) = whole[0], whole[-1]
    difference = abs(float(one.score_samples(data.test).mean() - other.score_samples(data.test).mean()))
    rows.append(["whole fit, test rows", duration(slow), duration(fast), ratio(slow / fast), small(difference)])
    report.progress(str(rows[-1]))
    report.table("Learning", ["LatentTreeDensity", "processor", "device", "processor / device", "difference"], rows)
    rows = []
    for name, run in passes(options.quick, options.seed).items():
        found = [median(lambda run=run, device=device: run(device), device, options.repeats) for device in devices]
        (slow, expected), (fast, result) = found[0], found[-1]
        difference = "–"
        if not name.startswith("samples"):
            difference = small(float((expected - result.cpu()).abs().nan_to_num(0.0, 0.0).max()))
        rows.append([name, duration(slow), duration(fast), ratio(slow / fast), difference])
        report.progress(str(rows[-1]))
    report.table("Passes", ["operation", "processor", "device", "processor / device", "difference"], rows)
    report.finish()


if __name__ == "__main__":
    main()
