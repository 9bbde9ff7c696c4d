"""Public data and seeded generators."""

__all__ = [
    "BorlangeTrips",
    "DensityData",
    "MuskData",
    "NetworkSamples",
    "ReviewScores",
    "SiouxFalls",
    "TextData",
    "conjunction_task",
    "disjunction_task",
    "ellipse_figures",
    "label_variability",
    "load_alarm_samples",
    "load_borlange_trips",
    "load_caltech_silhouettes",
    "load_density",
    "load_horses",
    "load_house_frames",
    "load_house_pairs",
    "load_lab_readings",
    "load_lung_landmarks",
    "load_mnist_test",
    "load_musk1",
    "load_review_scores",
    "load_silhouettes",
    "load_sioux_falls",
    "load_text",
    "load_traffic_speeds",
    "matching_task",
    "moved_copies",
    "network_file",
    "noisy_observations",
    "symmetric_task",
]

from pyro_structured.datasets.bayesian_networks import NetworkSamples, load_alarm_samples, network_file
from pyro_structured.datasets.borlange_trips import BorlangeTrips, load_borlange_trips
from pyro_structured.datasets.caltech_silhouettes import load_caltech_silhouettes
from pyro_structured.datasets.conjunction_task import conjunction_task
from pyro_structured.datasets.density_data import DensityData, load_density
from pyro_structured.datasets.disjunction_task import disjunction_task
from pyro_structured.datasets.ellipse_figures import ellipse_figures
from pyro_structured.datasets.horses import load_horses
from pyro_structured.datasets.house_frames import load_house_frames
from pyro_structured.datasets.house_pairs import load_house_pairs
from pyro_structured.datasets.lab_readings import load_lab_readings
from pyro_structured.datasets.label_variability import label_variability
from pyro_structured.datasets.lung_landmarks import load_lung_landmarks
from pyro_structured.datasets.matching_task import matching_task
from pyro_structured.datasets.mnist import load_mnist_test
from pyro_structured.datasets.moved_copies import moved_copies
from pyro_structured.datasets.musk import MuskData, load_musk1
from pyro_structured.datasets.noisy_observations import noisy_observations
from pyro_structured.datasets.review_scores import ReviewScores, load_review_scores
from pyro_structured.datasets.silhouettes import load_silhouettes
from pyro_structured.datasets.sioux_falls import SiouxFalls, load_sioux_falls
from pyro_structured.datasets.symmetric_task import symmetric_task
from pyro_structured.datasets.text_data import TextData, load_text
from pyro_structured.datasets.traffic_speeds import load_traffic_speeds
