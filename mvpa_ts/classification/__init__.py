"""Classification of panels of multivariate series: the network, its training, and what training returns."""

from mvpa_ts.classification.augmentation import Augmentation
from mvpa_ts.classification.configuration import ClassificationConfig
from mvpa_ts.classification.fitted import FittedClassifier, FittedRegressor
from mvpa_ts.classification.loop import ClassificationTraining
from mvpa_ts.classification.network import ClassificationNetwork
from mvpa_ts.classification.training import Progress, fit_classifier, fit_regressor

__all__ = [
    "Augmentation",
    "ClassificationConfig",
    "ClassificationNetwork",
    "ClassificationTraining",
    "FittedClassifier",
    "FittedRegressor",
    "Progress",
    "fit_classifier",
    "fit_regressor",
]
