import contextlib
import importlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pyro_structured

ROOT = Path(__file__).parents[1]

WINGS = {"foundation", "counts", "exchangeable", "junction_trees", "optima", "fields", "densities"}
# Names that users import, of every subpackage: none goes away.
PUBLIC = {
    "ops": """
        Beliefs Certificate CountForest Field PatternTemplate UpperUnits bulk_mass certify
        count_information deep_pattern_potential infer_counts log_convolve log_correlate log_mass
        log_partition max_convolve
        most_probable pattern_from_template pattern_potential reweight sample_counts template_of_pattern
    """,
    "plotting": """
        plot_chains plot_clique_tree plot_field plot_matching plot_nested_subsets plot_path plot_patterns
        plot_pictures
    """,
    "structures": """
        AutomatonStatistic BipartiteAssignment BlockCounts BlockTree Box CategoryCounts CliqueTree ConnectedComponents
        Count Grid HiddenTree Injection LinearProblem Matching MinimumCut NestedSubsets NestedThreshold Partition
        Problem Product Ranking RegionTree ShortestPath SpanningTree Statistic TopK Transitions
    """,
    "distributions": """
        ApproximateMarginals Argmin BagLabel CategoricalPatternCRF CountedJunctionTree DeepPatternCRF EnergyBounds
        EstimateWarning ExchangeableBlock ExchangeableMixture ExchangeablePartition ExchangeableTree FieldEstimate
        FieldEstimator FieldOptimum GeneralizedMatching GridCRF JointMode JunctionTree KSubset
        KSubsetStraightThrough LatentTree MarginalApproximation MatchingEstimate MatchingEstimator
        MixtureOfDensities MixtureOfExchangeableTrees MixtureOfJunctionTrees NanMasked OptimumEstimate OptimumEstimator
        OverlappingCardinality PatternCRF PoissonBinomial PrecisionWarning RBM RandOM RecursiveCardinality
        RecursiveCardinalityStraightThrough SelectionMixture SumProductNetwork TruncatedNormal
        cardinality_potentials
    """,
    "inference": """
        AnnealedImportanceSampling AnnealedMatching BinaryGibbs Checkpoint ConstrainedSlice ContrastiveDivergence
        CostsReparam CountMeanField DistributedOptim EarlyStopping ExpectedLoss FieldGibbs Gibbs HardEM Interweave
        LoopyBP MCEM MaxMargin MeanFieldLoss ParallelMCMC PerturbAndMAP PlainMonteCarlo PseudoLikelihood
        ReplicatedEstimate ShellSMC Splitting StepKernel StructuredGibbs TreeReweighted replicate_estimate
        restore_dtypes shard_rows to_arviz
    """,
    "models": """
        BayesianNetwork ExchangeableSPN ExchangeableTreeMixture JunctionTreeCRF JunctionTreeMixture
        LatentTreeDensity MEVMClassifier MEVMDensity MultipleInstanceClassifier PixelClassifier SegmentationCRF
        StackedDensity StackedMember ThinJunctionTree
        clustered_patterns cut_graph edge_features learn_nested_subsets merge_partition pixel_features
        position_features read_bif welch_partition write_bif
    """,
    "datasets": """
        BorlangeTrips DensityData MuskData NetworkSamples ReviewScores SiouxFalls TextData conjunction_task
        disjunction_task ellipse_figures label_variability load_alarm_samples load_borlange_trips
        load_caltech_silhouettes load_density load_horses load_house_frames load_house_pairs load_lab_readings
        load_lung_landmarks load_mnist_test load_musk1 load_review_scores load_silhouettes load_sioux_falls
        load_text load_traffic_speeds matching_task moved_copies network_file noisy_observations
        symmetric_task
    """,
    "testing": """
        ball_arithmetic brute_force check_distribution check_kernel check_problem
    """,
}


def test_version():
    assert metadata.version("pyro-structured") == pyro_structured.__version__
    assert f"\nversion: {pyro_structured.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_import_is_lazy():
    script = "import sys, pyro_structured; assert not {'torch', 'numpy', 'pyro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_report_of_what_is_installed():
    found = subprocess.run([sys.executable, "-m", "pyro_structured"], capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"pyro-structured {pyro_structured.__version__}, Python ")
    for text in (f"  torch         {metadata.version('torch')}", "numba", "python -m pyro_structured.demo"):
        assert text in found


def test_subpackages_are_exposed():
    folders = {path.parent.name for path in (ROOT / "pyro_structured").glob("*/__init__.py")}
    public = set(pyro_structured.__all__) - {"__version__"}
    assert public == set(PUBLIC) == folders - WINGS - {"demo"}
    assert public <= set(dir(pyro_structured))
    for name in public:
        assert getattr(pyro_structured, name).__name__ == f"pyro_structured.{name}"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_stay(name):
    package = getattr(pyro_structured, name)
    assert set(PUBLIC[name].split()) <= set(package.__all__)
    for each in package.__all__:
        getattr(package, each)


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="module 'pyro_structured' has no attribute 'nonsense'"):
        _ = pyro_structured.nonsense


def mentions():
    """Dotted names of the package in its modules, benchmarks and pages, each with a file that mentions it."""
    found = {}
    for folder in ("pyro_structured", "benchmarks", "docs/guides", "docs/families", "docs/reference", "tutorials"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".ipynb"}:
                names = re.findall(r"\bpyro_structured(?:\.[A-Za-z_]\w*)+", path.read_text())
                found |= dict.fromkeys(names, path.relative_to(ROOT).as_posix())
    return found


def test_mentioned_names_exist():
    missing = []
    for name, path in mentions().items():
        found, parts = pyro_structured, name.split(".")[1:]
        for number, part in enumerate(parts):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(["pyro_structured", *parts[: number + 1]]))
            found = getattr(found, part, None)
            if found is None:
                missing.append((name, path))
                break
    assert missing == []


def test_extras_are_not_imported():
    """The package is imported where only its dependencies are installed."""
    extras = ("arviz", "clarabel", "flint", "matplotlib", "numba", "pandas", "PIL", "pyarrow")
    program = "import sys\nsys.modules.update(dict.fromkeys({!r}))\nimport pyro_structured\n{}"
    fronts = ("datasets", "distributions", "inference", "models", "ops", "structures", "testing")
    imports = "\n".join(f"import pyro_structured.{front}" for front in fronts)
    subprocess.run([sys.executable, "-c", program.format(extras, imports)], check=True)
