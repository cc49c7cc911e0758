"""sktime's own conformance suite: the longest checks with one set of parameters, in the slow tests with all."""

from __future__ import annotations

import pytest

pytest.importorskip("sktime")

from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor

# Checks that fit dozens of times for each set of parameters: with all sets they took four minutes.
LONG = {
    MVPAForecaster: [
        "test_update_predict_predicted_index", "test_save_estimators_to_file", "test_predict_time_index_with_X",
        "test_predict_time_index", "test_hierarchical_with_exogenous", "test_predict_interval",
        "test_predict_quantiles", "test_fit_idempotent", "test_update_predict_single",
    ],
    MVPAClassifier: [
        "test_fit_idempotent", "test_save_estimators_to_file", "test_non_state_changing_method_contract",
        "test_persistence_via_pickle", "test_deepcopy_fitted_predict", "test_methods_have_no_side_effects",
    ],
    MVPARegressor: ["test_fit_idempotent"],
}  # fmt: skip


def assert_passes(estimator, check):
    results = check_estimator(estimator, tests_to_run=check, raise_exceptions=True, verbose=0)
    assert set(results.values()) == {"PASSED"}


@parametrize_with_checks(
    [MVPAForecaster, MVPAClassifier, MVPARegressor], obj_varname="estimator", check_varname="check"
)
@pytest.mark.filterwarnings("ignore")
def test_conformance(estimator, check):
    if check in LONG[estimator]:
        estimator = estimator(**estimator.get_test_params()[0])
    assert_passes(estimator, check)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"), [(estimator, check) for estimator, checks in LONG.items() for check in checks]
)
@pytest.mark.filterwarnings("ignore")
def test_conformance_with_the_other_parameters(estimator, check):
    for parameters in estimator.get_test_params()[1:]:
        assert_passes(estimator(**parameters), check)
