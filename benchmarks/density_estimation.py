"""Tables 4 and 5 of Niepert and Domingos (2014): test log-likelihood of mixtures of exchangeable variable models."""

import statistics
import time

import numpy as np
import torch
from measurement import Report, arguments
from scipy.stats import wilcoxon

from pyro_structured.datasets import DensityData, load_density
from pyro_structured.demo.chow_liu_tree import ChowLiuTree
from pyro_structured.models import MEVMDensity

# Table 5: MEVM, latent naive Bayes, Chow-Liu tree. Table 4: blocks.
PAPER = {
    "nltcs": (-6.04, -6.04, -6.76, 8.8),
    "msnbc": (-6.23, -6.71, -6.54, 15.9),
    "kdd": (-2.13, -2.15, -2.29, 15.8),
    "plants": (-14.86, -15.10, -16.52, 15.9),
    "baudio": (-40.63, -40.69, -44.37, 13.7),
    "jester": (-53.22, -53.19, -58.23, 10.4),
    "bnetflix": (-57.84, -57.87, -60.25, 14.8),
    "msweb": (-9.96, -9.96, -10.19, 21.3),
    "book": (-34.63, -34.80, -34.70, 12.4),
    "cwebkb": (-157.21, -158.01, -163.48, 10.6),
    "cr52": (-86.98, -87.32, -94.37, 16.7),
    "c20ng": (-152.69, -152.78, -164.13, 17.9),
}
TEXT = """
Mean test log-likelihood in nats per row of a mixture of 20 classes: the median over the seeds, and the range. *Paper's
settings* are `MEVMDensity(structure="welch")`: Welch's tests at level 0.1 in every iteration, smoothing 0.1, tolerance
0.001, the best training likelihood of ten starts, no validation data. *Merge* is the default, `structure="merge"`, with
`X_val`: the best validation likelihood of three starts and all numbers of structure steps. *Naive Bayes* is
`structure="independent"`, ten starts. Blocks: mean and standard deviation over the classes of the first seed. Seconds:
processor seconds for one start, once equal rows have been merged.
"""


def quick_data(seed):
    """Takes the place of all sets in a smoke run, which has no data."""
    rng = np.random.default_rng(seed)
    rows = rng.random((3, 500, 16)) < rng.random(16)
    return DensityData(*rows.astype(np.uint8))


def fitted(data, structure, seed, starts, validation=None):
    began = time.process_time()
    density = MEVMDensity(structure=structure, n_init=starts, random_state=seed).fit(data.train, X_val=validation)
    elapsed = (time.process_time() - began) / starts
    return density, density.score(data.test), elapsed


def chow_liu(data):
    train, test = (torch.from_numpy(rows).double() for rows in (data.train, data.test))
    with torch.no_grad():
        return ChowLiuTree(train, 1.0).log_prob(test).mean().item()


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main():
    options = arguments(__doc__, seeds=(3, "number of seeds"), starts=(10, "random starts in the paper's settings"))
    seeds, starts = (1, 1) if options.quick else (options.seeds, options.starts)
    report = Report("Density estimation: Tables 4 and 5", TEXT, options)
    rows, blocks, medians = [], [], {}
    for name in ["nltcs"] if options.quick else PAPER:
        (mevm, bayes, tree, paper_blocks) = PAPER[name]
        data = quick_data(options.seed) if options.quick else load_density(name)
        runs = {}
        for key, structure, number, held_out in (
            ("welch", "welch", starts, None),
            ("merge", "merge", min(starts, 3), data.validation),
            ("bayes", "independent", starts, None),
        ):
            runs[key] = [fitted(data, structure, options.seed + s, number, held_out) for s in range(seeds)]
            report.progress(f"{name} {key}: {spread([score for _, score, _ in runs[key]])}")
        found = {key: [score for _, score, _ in each] for key, each in runs.items()}
        medians[name] = {key: statistics.median(each) for key, each in found.items()} | {"tree": chow_liu(data)}
        seconds = {key: statistics.median(s for _, _, s in each) for key, each in runs.items()}
        each = medians[name]
        rows.append(
            [name, mevm, spread(found["welch"]), spread(found["merge"]), bayes, spread(found["bayes"]), tree]
            + [f"{each['tree']:.2f}"]
        )
        sizes = {k: [len(p.blocks()) for p in runs[k][0][0].partition_] for k in ("welch", "merge")}
        blocks.append(
            [name, data.train.shape[1], len(data.train), paper_blocks]
            + [f"{np.mean(sizes[k]):.1f} ± {np.std(sizes[k]):.1f}" for k in sizes]
            + [f"{seconds[k]:.2g}" for k in ("welch", "merge", "bayes")]
        )
        slack = 0.1 if data.train.shape[1] <= 100 else 0.01 * abs(mevm)
        report.claim(
            f"{name}: paper's settings, at most {slack:.2f} below the paper",
            f"{mevm - slack:.2f}",
            f"{each['welch']:.3f}",
            each["welch"] >= mevm - slack,
        )
        report.claim(
            f"{name}: merging at most 0.02 below Welch's tests",
            f"{each['welch'] - 0.02:.3f}",
            f"{each['merge']:.3f}",
            each["merge"] >= each["welch"] - 0.02,
        )
    if "plants" in medians:
        reached = medians["plants"]["merge"]
        report.claim("plants: merging", "-14.15", f"{reached:.3f}", reached >= -14.15)
    header = ["set", "paper MEVM", "paper's settings", "merge", "paper NB", "naive Bayes", "paper CL", "Chow-Liu tree"]
    report.table("Table 5: test log-likelihood, nats per row", header, rows)
    header = ["set", "variables", "rows", "paper's blocks", "blocks, paper's settings", "blocks, merge"]
    header += ["seconds, paper's settings", "seconds, merge", "seconds, naive Bayes"]
    report.table("Table 4: blocks; time", header, blocks)
    if len(medians) > 5:
        report.table("Wilcoxon's signed-rank test over the sets: p-values, two-sided", *significance(medians))
    report.finish()


def significance(medians):
    rows = []
    for key, name in (("welch", "paper's settings"), ("merge", "merge")):
        gains = {o: [each[key] - each[o] for each in medians.values()] for o in ("bayes", "tree", "welch") if o != key}
        p = {other: wilcoxon(gain).pvalue for other, gain in gains.items()}
        rows.append([name, *(f"{p[o]:.4f}" if o in p else "–" for o in ("bayes", "tree", "welch"))])
    return ["model", "against naive Bayes", "against Chow-Liu trees", "against the paper's settings"], rows


if __name__ == "__main__":
    main()
