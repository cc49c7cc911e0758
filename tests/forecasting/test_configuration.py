"""A configuration is checked when it is made."""

import pytest
from support.made_up_networks import make_config

from mvpa_ts.forecasting import FeatureSizes, ForecastingNetwork


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon must be at least 1, got 0"),
        ({"lookback": 0}, "lookback must be at least 1, got 0"),
        ({"patch_length": 0}, "patch_length must be at least 1, got 0"),
        ({"patch_stride": 0}, "patch_stride must be at least 1, got 0"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
        ({"channel_window": 0}, "channel_window must be at least 1, got 0"),
        ({"num_outputs": 0}, "num_outputs must be at least 1, got 0"),
        ({"num_layers": -1}, "num_layers must be at least 0, got -1"),
        ({"normalise": "no"}, "normalise must be True or False, got 'no'"),
        ({"lookback": 24.0}, r"lookback must be a whole number, got 24\.0"),
        ({"feature_sizes": (0, -1, 0)}, r"feature_sizes must be three numbers of at least 0 .*, got \(0, -1, 0\)"),
        ({"feature_sizes": 2}, "feature_sizes must be three numbers .*'future', 'historic', 'static'.*, got 2"),
        ({"feature_sizes": (1, 2, 3, 4)}, r"feature_sizes must be three numbers .*, got \(1, 2, 3, 4\)"),
        ({"patch_length": 25}, r"patch_length \(25\) must not exceed lookback \(24\)"),
        ({"patch_stride": 9}, r"patch_stride \(9\) must not exceed patch_length \(8\)"),
        ({"num_heads": 3}, r"dim \(16\) must be a multiple of num_heads \(3\)"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout must be in \[0, 1\), got -0.1"),
        ({"head_dropout": float("nan")}, r"head_dropout must be in \[0, 1\), got nan"),
        ({"cycle_length": 0}, "cycle_length must be at least 1, got 0"),
        ({"cycle_length": 7, "num_channels": 0, "per_channel": ("cycle",)}, "num_channels must be at least 1, got 0"),
        ({"num_channels": 7, "per_channel": ("cycle",)}, "cycle in per_channel needs cycle_length"),
        (
            {"num_layers": 0, "feature_sizes": FeatureSizes(0, 0, 1)},
            "num_layers must be at least 1 with constant features",
        ),
        ({"num_layers": 0, "feature_sizes": FeatureSizes(1), "covariates": ()}, r"or with covariates=\(\), got 0"),
        ({"covariates": ("effects",)}, r"covariates must be \(\) or some of .* 'maps' among them, got \('effects',\)"),
        ({"covariates": "maps"}, "covariates must be .* got 'maps'"),
        ({"num_layers": 0, "channel_window": 2}, r"channel_window \(2\) needs num_layers of at least 1"),
        ({"components": ("time",), "channel_window": 2}, "and 'content' in components: nothing else reads it"),
        (
            {"channel_window": 2, "num_channels": 257, "per_channel": ("vectors",)},
            r"vectors with channel_window needs at most 256 channels, got 257",
        ),
        ({"per_channel": ("bounds",)}, r"if num_channels is given, .* got \('bounds',\) with num_channels=None"),
        ({"num_channels": 2}, r"per_channel must be some of .* got \(\) with num_channels=2"),
        ({"per_channel": "cycle"}, "per_channel must be some of .* got 'cycle'"),
        ({"num_channels": 2, "per_channel": ["cycles"]}, r"per_channel must be some of .* got \['cycles'\]"),
        ({"num_channels": 2, "per_channel": ["vectors"], "mixing_heads": 0}, "vectors needs mixing_heads of at least"),
        ({"position_size": 2, "mixing_heads": 0}, "position_size needs mixing_heads of at least 1"),
        ({"components": ("time", "space")}, "components must be a subset of .*got unknown 'space'"),
        ({"channel_distance": "euclidean"}, "channel_distance must be 'absolute' or 'signed', got 'euclidean'"),
    ],
    ids=str,
)
def test_bad_configuration(options, message):
    with pytest.raises(ValueError, match=message):
        make_config(**options)


@pytest.mark.parametrize(
    ("options", "levels", "message"),
    [
        ({}, (0, 1), r"location_outputs must be .* the 1 outputs .*got \(0, 1\)"),
        ({"num_channels": 2, "per_channel": ["bounds"]}, (0,), "bounds in per_channel need location_outputs=None"),
    ],
)
def test_levels_that_do_not_fit(options, levels, message):
    with pytest.raises(ValueError, match=message):
        ForecastingNetwork(make_config(**options), levels)
