"""Horses without a field: what a pixel's surroundings, its place, and a small U-Net tell of the mask."""

import time

import numpy as np

from benchmarks.fields.horse_splits import best_shift, log_odds_of_mean, overlap, overlaps
from benchmarks.fields.small_unet import fit_unet
from pyro_structured.models import PixelClassifier, pixel_features, position_features

SHIFTS, WEIGHTS = np.linspace(-3, 3, 121), np.linspace(0, 1.5, 31)


class Controls:
    """Scores of all controls for one split: for each, those of the test pictures, and seconds."""

    def __init__(self, images, masks, split, seed, epochs):
        self.scores, self.seconds = {}, {}
        self.images, self.masks, self.split, self.seed = images, masks, split, seed
        odds = self.pixels("pixels", lambda: pixel_features(images))
        self.mean_mask(*odds)
        self.pixels("pixels and places", lambda: with_places(pixel_features(images)))
        self.unet(epochs)

    def keep(self, name, odds, began):
        self.scores[name] = overlaps(odds > 0, self.masks[self.split.test])
        self.seconds[name] = time.process_time() - began

    def chosen(self, validation):
        return best_shift(validation, self.masks[self.split.validation], SHIFTS)

    def pixels(self, name, describe):
        """Keeps scores of pixels without and with a bias; log-odds of the pictures to choose by and to test on."""
        began = time.process_time()
        features, (training, validation, test) = describe(), self.split
        classifier = PixelClassifier(random_state=self.seed).fit(features[training], self.masks[training])
        odds = [classifier.decision_function(features[part]) for part in (validation, test)]
        self.keep(name, odds[1], began)
        self.keep(f"{name}, with a bias", odds[1] + self.chosen(odds[0])[0], began)
        return odds

    def mean_mask(self, validation, test):
        """Keeps scores of the mean mask alone, and with the log-odds of pixels."""
        began = time.process_time()
        prior = log_odds_of_mean(self.masks[self.split.training])
        alone = np.broadcast_to(prior, test.shape)
        self.keep("mean mask", alone + self.chosen(np.broadcast_to(prior, validation.shape))[0], began)
        tried = [(*self.chosen(validation + weight * prior), weight) for weight in WEIGHTS]
        shift, _, weight = max(tried, key=lambda each: each[1])
        self.keep("pixels and mean mask", test + weight * prior + shift, began)

    def unet(self, epochs):
        began = time.process_time()
        training, validation, test = self.split
        held_out = self.images[validation], self.masks[validation]
        network = fit_unet(self.images[training], self.masks[training], held_out, overlap, epochs, self.seed)
        shift, _ = self.chosen(network(self.images[validation]))
        self.keep("U-Net", network(self.images[test]) + shift, began)


def with_places(features):
    places = position_features(*features.shape[1:3])
    return np.concatenate([features, np.broadcast_to(places, (*features.shape[:3], places.shape[-1]))], -1)
