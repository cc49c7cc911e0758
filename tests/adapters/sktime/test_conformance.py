"""sktime's own conformance suite: with one set of parameters, in the slow tests with all."""

import pytest
from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor

ESTIMATORS = [MVPAForecaster, MVPAClassifier, MVPARegressor]
# Checks that take every set by default; of all checks the sets took minutes.
EVERY_SET = ("test_constructor", "test_set_params", "test_fit_updates_state")


def assert_passes(estimator, check):
    results = check_estimator(estimator, tests_to_run=check, raise_exceptions=True, verbose=0)
    assert set(results.values()) == {"PASSED"}


@parametrize_with_checks(ESTIMATORS, obj_varname="estimator", check_varname="check")
@pytest.mark.filterwarnings("ignore")
def test_conformance(estimator, check):
    assert_passes(estimator if check in EVERY_SET else estimator(**estimator.get_test_params()[0]), check)


@pytest.mark.slow  # in small: test_conformance
@parametrize_with_checks(ESTIMATORS, obj_varname="estimator", check_varname="check")
@pytest.mark.filterwarnings("ignore")
def test_conformance_with_the_other_parameters(estimator, check):
    for parameters in estimator.get_test_params()[1:]:
        assert_passes(estimator(**parameters), check)
