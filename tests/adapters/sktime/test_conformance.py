"""sktime's own conformance suite, in full."""

from __future__ import annotations

import pytest

pytest.importorskip("sktime")

from sktime.utils.estimator_checks import check_estimator, parametrize_with_checks

from mvpa_ts.adapters.sktime import MVPAClassifier, MVPAForecaster, MVPARegressor


@parametrize_with_checks(
    [MVPAForecaster, MVPAClassifier, MVPARegressor], obj_varname="estimator", check_varname="check"
)
@pytest.mark.filterwarnings("ignore")
def test_conformance(estimator, check):
    results = check_estimator(estimator, tests_to_run=check, raise_exceptions=True, verbose=0)
    assert set(results.values()) == {"PASSED"}
