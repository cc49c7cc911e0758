"""The linear path's own learning rate, under the host's optimisers and schedules."""

import pytest
import torch


@pytest.mark.parametrize("optimizer", [None, torch.optim.NAdam])
@pytest.mark.parametrize("encoder_layers", [0, 1])
def test_the_linear_path_has_its_own_learning_rate(encoder_layers, optimizer, tiny, panel, dataset):
    """Adam's first step moves every weight by the learning rate, whatever its gradient."""

    def step(rate: float | None) -> tuple[float, float]:
        model = tiny(
            max_steps=1,
            learning_rate=1e-3,
            training={"linear_learning_rate": rate},
            encoder_layers=encoder_layers,
            optimizer=optimizer,
        )
        model.fit(dataset(panel(4)))  # both paths start at zero
        encoder = model.network.encoder
        return (
            model.network.linear.weight.abs().mean().item(),
            encoder.head.weight.abs().mean().item() if encoder else 0.0,
        )

    linear, head = step(1e-3)
    further, same = step(2e-2)
    assert further == pytest.approx(20 * linear, rel=1e-3)
    assert same == pytest.approx(head, rel=1e-6)
    assert step(None)[0] == pytest.approx(30 * linear, rel=1e-3)


def test_the_default_is_one_cycle_of_averaged_weights(tiny, panel, dataset):
    """Up for a fifth of the steps, then down to nearly nothing; a schedule that the host is told of wins."""

    def rates(rows: int = 60, **options) -> list[list[float]]:
        model, seen = tiny(max_steps=20, **options), []
        step = torch.optim.Adam.step

        def noted(optimizer, *arguments, **keywords):
            seen.append([group["lr"] for group in optimizer.param_groups])
            return step(optimizer, *arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.optim.Adam, "step", noted)
            model.fit(dataset(panel(4, rows)))
        assert model._training.settings.weight_averaging == 0.99
        return seen

    cycle = rates(learning_rate=1e-3)
    attention = [slow for slow, _ in cycle]
    assert len(attention) == 20
    assert attention.index(max(attention)) in (3, 4)
    assert max(attention) == pytest.approx(1e-3, rel=0.05)
    assert attention[-1] < 2e-5
    assert all(fast == pytest.approx(30 * slow) for slow, fast in cycle)
    assert {tuple(both) for both in rates(lr_scheduler=torch.optim.lr_scheduler.ConstantLR,
                                          lr_scheduler_kwargs={"factor": 1.0})} == {(1e-3, 3e-2)}  # fmt: skip
    assert rates(num_lr_decays=2, learning_rate=1e-3)[-1][0] == pytest.approx(5e-4)
    # Ten windows of 12 + 6 rows for twenty steps; a schedule that the host is told of is taken as it is.
    for (slow, fast), lowered in zip(cycle, rates(27), strict=True):
        assert lowered == pytest.approx([slow / 4, fast / 2])
    padded = rates(27, start_padding_enabled=True)  # 21 windows then
    assert padded == [pytest.approx(both) for both in cycle]
    assert rates(27, num_lr_decays=2, learning_rate=1e-3)[0][0] == pytest.approx(1e-3)


def test_heads_that_read_unrelated_series_learn_slowly(tiny, panel, dataset, monkeypatch):
    def groups(**options: object) -> list[float]:
        model = tiny(max_steps=1, learning_rate=1e-3, **options)
        model.fit(dataset(panel(4, 60)))
        return [group["initial_lr"] for group in model.configure_optimizers()["optimizer"].param_groups]

    assert len(groups()) == 2
    monkeypatch.setattr("mvpa_ts.adapters.neuralforecast.model.mixing_share", lambda windows: 0.25)
    attention, mixing, linear = groups()
    assert mixing == pytest.approx(attention / 4)
    assert linear == pytest.approx(30 * attention)
    assert len(groups(network={"mixing_heads": 0})) == 2
    constant = {"lr_scheduler": torch.optim.lr_scheduler.ConstantLR, "lr_scheduler_kwargs": {"factor": 1.0}}
    assert len(groups(**constant)) == 2


def test_a_schedule_that_undoes_the_linear_paths_rate_is_refused(tiny, panel, dataset):
    def fit(max_lr: float | list[float]) -> None:
        schedule = {
            "lr_scheduler": torch.optim.lr_scheduler.OneCycleLR,
            "lr_scheduler_kwargs": {"max_lr": max_lr, "total_steps": 9},
        }
        tiny(training={"linear_learning_rate": 0.1}, **schedule).fit(dataset(panel(4)))

    with pytest.raises(ValueError, match="OneCycleLR sets one rate for all weights"):
        fit(0.01)
    fit([0.01, 0.1])


def test_a_warm_up_from_zero_keeps_both_rates(tiny, panel, dataset):
    warm_up = {
        "lr_scheduler": torch.optim.lr_scheduler.LambdaLR,
        "lr_scheduler_kwargs": {"lr_lambda": lambda step: min(1.0, step / 10)},
    }
    tiny(learning_rate=1e-3, training={"linear_learning_rate": 3e-2}, **warm_up).fit(dataset(panel(4)))


@pytest.mark.parametrize(("seconds", "said"), [(1.0, True), (1e9, False)])
def test_a_long_training_says_how_long_it_will_take(
    seconds, said, monkeypatch, slow_clock, recwarn, tiny, panel, dataset
):
    monkeypatch.setattr(slow_clock, "LONG_TRAINING", seconds)
    tiny(max_steps=20).fit(dataset(panel(4)))
    words = (
        "training for 20 steps will take some 4 minutes on this machine. Fewer steps (max_steps), fewer windows a "
        "step (windows_batch_size), or encoder_layers=0, which leaves out the attention, take less"
    )
    assert [str(each.message) for each in recwarn if "will take some" in str(each.message)] == [words] * said
