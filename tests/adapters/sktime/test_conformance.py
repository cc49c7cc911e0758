"""sktime's own conformance suite, in full."""

from __future__ import annotations

import pytest

pytest.importorskip("sktime")

from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor

UPDATES = "test_update_predict_predicted_index"  # 72 updates and forecasts in one


def assert_passes(estimator, check):
    results = check_estimator(estimator, tests_to_run=check, raise_exceptions=True, verbose=0)
    assert set(results.values()) == {"PASSED"}


@parametrize_with_checks(
    [MVPAForecaster, MVPAClassifier, MVPARegressor], obj_varname="estimator", check_varname="check"
)
@pytest.mark.filterwarnings("ignore")
def test_conformance(estimator, check):
    if (estimator, check) == (MVPAForecaster, UPDATES):
        estimator = MVPAForecaster(**MVPAForecaster.get_test_params()[0])  # the other parameters have a test each
    assert_passes(estimator, check)


@pytest.mark.parametrize("parameters", range(1, len(MVPAForecaster.get_test_params())))
@pytest.mark.filterwarnings("ignore")
def test_conformance_of_updates(parameters):
    assert_passes(MVPAForecaster(**MVPAForecaster.get_test_params()[parameters]), UPDATES)
