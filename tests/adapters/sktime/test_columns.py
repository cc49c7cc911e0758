"""Order, positions and vectors of columns: what the network is told of them, and what is saved."""

import numpy as np
import pandas as pd
import pytest
import torch
from support.made_up_series import SMALL, changed, fitted, panel, waves

from mvpa_ts.adapters.sktime import MVPAForecaster
from mvpa_ts.adapters.sktime.columns import book_of

# Columns that differ in nothing but their order, and a network that reads the order.
STILL = {"dropout": 0.0, "network": {"head_dropout": 0.0}, "max_steps": 20}


def told(forecaster: MVPAForecaster) -> list[str]:
    return forecaster._columns.names


class TestOrder:
    @pytest.mark.parametrize(
        "how",
        [
            {"channel_order": ["c2", "c0", "c1"]},
            {"channel_positions": {"c0": 1.0, "c1": 2.5, "c2": -3.0, "not in y": 0.0}},
        ],
    )
    def test_columns_in_the_order_come_back_under_their_names(self, how):
        y = waves(columns=3)
        forecaster = fitted(y, **STILL, **how)
        assert told(forecaster) == ["c2", "c0", "c1"]
        # The same columns in another order of the frame: the network sees the same.
        other = fitted(y[["c1", "c2", "c0"]], **STILL, **how)
        pd.testing.assert_frame_equal(other.predict()[list(y)], forecaster.predict())
        quantiles = forecaster.predict_quantiles(alpha=[0.1, 0.5])
        assert quantiles.columns.get_level_values(0).unique().tolist() == list(y)
        np.testing.assert_allclose(quantiles.xs(0.5, axis=1, level=1), forecaster.predict())
        assert abs(forecaster.predict() - [10.0, 20.0, 30.0]).max(axis=None) < 3.0  # each at its own level

    def test_the_order_reaches_the_network(self):
        y = waves(columns=3)
        plain, ordered = (fitted(y, **STILL, channel_order=order) for order in (None, ["c2", "c0", "c1"]))
        moved = fitted(y[["c2", "c0", "c1"]], **STILL)
        assert not np.allclose(plain.predict(), ordered.predict())
        pd.testing.assert_frame_equal(ordered.predict(), moved.predict()[list(y)])

    def test_correlation_puts_neighbours_side_by_side(self):
        source = np.random.default_rng(0).standard_normal(300).cumsum()
        y = pd.DataFrame({name: source[shift : shift + 200] for name, shift in {"a": 0, "b": 80, "c": 40}.items()})
        forecaster = fitted(y, channel_order="correlation")
        assert "".join(told(forecaster)) in ("acb", "bca")
        forecaster.update(y[["b", "a", "c"]].set_axis(range(200, 400)))
        assert "".join(told(forecaster)) in ("acb", "bca")  # that of fit

    def test_bad_orders_are_named(self):
        """In the host's words; what else cannot be: tests/adapters/neuralforecast/test_series.py."""
        y = waves(columns=3)
        for order, message in (
            (["c0", "c1"], r"channel_order must name each column of y once, these are in only one of them: 'c2'"),
            (3, r"channel_order must be None, .* or the names of all columns, got 3"),
        ):
            with pytest.raises(ValueError, match=message):
                fitted(y, channel_order=order)


class TestPositions:
    @pytest.mark.parametrize(
        "positions",
        [
            {"c0": (0, 1), "c1": (1, 1)},
            [("c0", (0, 1)), ("c1", np.array([1, 1]))],
            pd.DataFrame({"x": [0, 1], "y": [1, 1]}, index=["c0", "c1"]),
        ],
    )
    def test_kinds_of_tables(self, positions):
        book = book_of({"channel_order": None, "channel_positions": positions})
        assert book.positions == {"c0": [0.0, 1.0], "c1": [1.0, 1.0]}
        forecaster = fitted(waves(), channel_positions=positions)
        assert forecaster._columns.channel_inputs["positions"].tolist() == [[-0.5, 0.0], [0.5, 0.0]]

    def test_only_distances_count(self):
        y = waves(columns=3)
        forecasts = [
            fitted(
                y, **STILL, channel_positions={name: (shift + i, shift - i * i) for i, name in enumerate(y)}
            ).predict()
            for shift in (0.0, 1e7)
        ]
        np.testing.assert_allclose(forecasts[0], forecasts[1], rtol=1e-6)

    def test_bad_positions_are_named(self):
        y = waves()
        for positions, message in (
            ({"c0": 1.0}, "channel_positions must hold every column of y, got none of 'c1'"),
            (dict.fromkeys("ab", 0.1), "channel_positions must differ; got the same place for all columns"),
            ([("c0", 1.0), ("c0", 2.0)], "channel_positions must name each column once, got 'c0' more than once"),
            ([1.0, 2.0], r"channel_positions must be a dict of coordinates by column, .* got list"),
            ({}, "at least one, for each column, got no column"),
        ):
            with pytest.raises(ValueError, match=message):
                fitted(y, channel_positions=positions)
        with pytest.warns(UserWarning, match=r"puts several columns at one place, 'c0', 'c1' at \[2\.0\]: is one of"):
            fitted(y, channel_positions={"c0": 2.0, "c1": 2.0, "c2": 0.0})


class TestUnseenColumns:
    def test_vectors_go_by_name(self):
        """After pretraining on c0, c1, c2, a fit on c2, new, c0 has their vectors, and none for the new column."""
        forecaster = MVPAForecaster(**changed(SMALL, {"finetune_steps": 0, "network": {"per_channel": ["vectors"]}}))
        forecaster.pretrain(panel(columns=3), fh=[1, 2, 3])
        assert forecaster.pretrained_.channel_names == ("c0", "c1", "c2")
        y = waves(columns=3).set_axis(["c2", "new", "c0"], axis=1)
        forecaster.fit(y, fh=[1, 2, 3])
        assert forecaster._columns.channel_inputs["series"].tolist() == [2, -1, 0]
        network, x = forecaster.fitted_.network, torch.randn(1, 12, 3)
        expected = network(x, series=torch.tensor([2, -1, 0]))
        assert not torch.allclose(network(x, series=torch.tensor([2, 1, 0])), expected)
        again = forecaster.clone().fit(y[["c0", "c2", "new"]], fh=[1, 2, 3])
        assert again._columns.channel_inputs["series"].tolist() == [0, 2, -1]

    def test_columns_of_training_keep_their_order(self):
        """A network with parameters of each column finds them again, in whatever order they come."""
        y = waves(columns=3)
        forecaster = MVPAForecaster(**{**SMALL, "finetune_steps": 0}, individual=True)
        forecaster.pretrain(panel(columns=3), fh=[1, 2, 3])
        forecasts = [forecaster.clone().fit(y[order], fh=[1, 2, 3]).predict() for order in ([*y], ["c1", "c2", "c0"])]
        pd.testing.assert_frame_equal(forecasts[1][list(y)], forecasts[0])

    def test_new_positions_must_be_given(self):
        forecaster = MVPAForecaster(**SMALL, channel_positions={f"c{i}": (i, 0) for i in range(4)})
        forecaster.pretrain(panel(columns=3), fh=[1, 2, 3])
        assert np.isfinite(forecaster.clone().fit(waves(columns=4), fh=[1, 2, 3]).predict()).all(axis=None)
        with pytest.raises(ValueError, match="channel_positions must hold every column of y, got none of 'c4'"):
            forecaster.clone().fit(waves(columns=5), fh=[1, 2, 3])


class TestFiles:
    def test_order_positions_and_vectors_come_back(self, tmp_path):
        y = waves(columns=3)
        options = {"channel_order": ["c2", "c0", "c1"], "network": {"per_channel": ["vectors"]},
                   "channel_positions": {name: (i, i * i) for i, name in enumerate(y)}}  # fmt: skip
        forecaster = fitted(y, **options)
        forecaster.to_files(tmp_path)
        again = MVPAForecaster.from_files(tmp_path, finetune_steps=0)
        assert again.channel_order == options["channel_order"]
        again.fit(y[["c1", "c0", "c2"]], fh=range(1, 6))
        pd.testing.assert_frame_equal(again.predict()[list(y)], forecaster.predict())

    def test_positions_of_another_size_are_refused(self, tmp_path):
        y = waves()
        fitted(y, channel_positions={"c0": (0, 1), "c1": (2, 3)}).to_files(tmp_path)
        with pytest.raises(ValueError, match=r"channel_positions must have 2 coordinates for each column.*got 1"):
            MVPAForecaster.from_files(tmp_path, channel_positions={"c0": 1, "c1": 2}).fit(y, fh=[1])
        with pytest.raises(ValueError, match=r"channel_positions must have 2 coordinates for each column.*got 0"):
            MVPAForecaster.from_files(tmp_path, channel_positions=None).fit(y, fh=[1])

    def test_names_that_are_numbers(self, tmp_path):
        y = waves(columns=3).set_axis([3, 1, 2], axis=1)
        forecaster = fitted(y, network={"per_channel": ["vectors"]}, channel_order=[np.int64(1), 2, 3])
        forecaster.to_files(tmp_path)
        again = MVPAForecaster.from_files(tmp_path, finetune_steps=0).fit(y, fh=range(1, 6))
        assert told(again) == [1, 2, 3]
        pd.testing.assert_frame_equal(again.predict(), forecaster.predict())

    def test_a_damaged_file_is_named(self, tmp_path):
        fitted(waves()).to_files(tmp_path)
        (tmp_path / "columns.json").write_text('{"channel_order": "alphabet"}')
        with pytest.raises(ValueError, match="channel_order must be None"):
            MVPAForecaster.from_files(tmp_path)
