"""Component maps against scalar loops over the model's own weights."""

import math

import numpy as np
import pytest
import torch
from support.reading import refuses

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny
from mvpa_ts.ieeg.model.component_maps import ComponentMaps, component_maps, plot_component_maps


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = MVPFormer(mvpformer_tiny()).double().eval()
        for name, parameter in made.named_parameters():
            if "bias" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return made


def layer_inputs(model, signal):
    """What each attention layer receives."""
    seen = []
    handles = [
        block.attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
        for block in model.stack.blocks
    ]
    with torch.no_grad():
        model(signal)
    for handle in handles:
        handle.remove()
    return seen


def test_maps_are_means_of_scores_counted_one_by_one(model):
    generator = torch.Generator().manual_seed(0)
    signals = [torch.randn(n, 3, 4 * 2560, generator=generator).double() for n in (2, 1)]
    maps = component_maps(model, signals, ["A1", "A2", "A3"])
    T, C, H, d = 4, 3, 4, 16
    inputs = [torch.cat(parts) for parts in zip(*(layer_inputs(model, s) for s in signals), strict=True)]
    for layer, (x, block) in enumerate(zip(inputs, model.stack.blocks, strict=True)):
        attention = block.attention
        weights = {key: getattr(attention, key).weight.detach().numpy() for key in ("query", "time_key", "channel_key")}
        time_rows = model.stack.time_codebook.detach().numpy()
        channel_rows = model.stack.channel_codebook.detach().numpy()
        channel, time = np.zeros((H, C, C)), np.zeros((H, T, T))
        for b in range(len(x)):
            for t in range(T):
                for c in range(C):
                    query = weights["query"] @ x[b, t, c].numpy()
                    for h in range(H):
                        part, group = slice(h * d, h * d + d), slice(h // 2 * d, h // 2 * d + d)
                        q = query[part]
                        w = attention.channel_bias[h // 2].detach().numpy()
                        v = attention.time_bias[h // 2].detach().numpy()
                        for e in range(C):
                            key = (weights["channel_key"] @ channel_rows[abs(c - e)])[group]
                            channel[h, c, e] += (q + w) @ key / math.sqrt(d) / (len(x) * T)
                        for s in range(t + 1):
                            key = (weights["time_key"] @ time_rows[t - s])[group]
                            time[h, t, s] += (q + v) @ key / math.sqrt(d) / (len(x) * C)
        time[:, np.triu(np.ones((T, T), bool), 1)] = np.nan
        np.testing.assert_allclose(maps.channel[layer], channel, atol=1e-10)
        np.testing.assert_allclose(maps.time[layer], time, atol=1e-10)


def test_what_is_missing_asks_no_query(model):
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(2, 3, 4 * 2560, generator=generator).double()
    mask = torch.ones(2, 4, 3, dtype=torch.bool)
    mask[..., 2] = False
    alone = component_maps(model, [signal[:, :2]])
    signal[:, 2] = torch.nan
    nothing = torch.zeros_like(mask)
    masked = component_maps(model, [(signal, mask), (signal, nothing)])
    np.testing.assert_allclose(masked.channel[..., :2, :2], alone.channel, atol=1e-12)
    np.testing.assert_allclose(masked.time, alone.time, atol=1e-12)
    assert np.isnan(masked.channel[..., 2, :]).all()


def test_released_row_order_reads_rows_from_the_end(model):
    released = MVPFormer(mvpformer_tiny(row_order="released")).double().eval()
    released.load_state_dict(model.state_dict())
    with torch.no_grad():
        rows = released.stack.channel_codebook.clone()
        released.stack.channel_codebook[:3] = rows[:3].flip(0)
        rows = released.stack.time_codebook.clone()
        released.stack.time_codebook[:4] = rows[:4].flip(0)
    signal = torch.randn(1, 3, 4 * 2560, generator=torch.Generator().manual_seed(0)).double()
    ours, theirs = component_maps(model, [signal]), component_maps(released, [signal])
    np.testing.assert_allclose(theirs.channel, ours.channel, atol=1e-12)
    np.testing.assert_allclose(theirs.time, ours.time, atol=1e-12)


@pytest.mark.parametrize(("components", "zero"), [(("content", "time"), "channel"), (("content",), "time")])
def test_a_term_that_the_model_leaves_out_is_zero(components, zero):
    maps = component_maps(MVPFormer(mvpformer_tiny(components=components)), [torch.randn(1, 3, 4 * 2560)])
    assert not np.nan_to_num(getattr(maps, zero)).any()
    assert np.nan_to_num(maps.time).any() == ("time" in components)


@pytest.mark.parametrize("term", ["channel", "time"])
def test_figure_has_a_panel_for_each_layer_head_and_stage(model, term):
    maps = component_maps(model, [torch.randn(1, 3, 2 * 2560).double()])
    panels = [axis for axis in plot_component_maps(maps, maps, term).axes if "head" in axis.get_title()]
    assert len(panels) == 2 * 4 * 2
    panels = [axis for axis in plot_component_maps(maps, term=term, layer=-1).axes if "head" in axis.get_title()]
    assert [axis.get_title() for axis in panels] == [f"layer 1, head {head}" for head in range(4)]


def test_errors(model):
    llama = MVPFormer(mvpformer_tiny(attention="llama"))
    refuses(component_maps, "no MVPA attention", llama, [])
    refuses(component_maps, "signals must hold at least one window", model, [])
    with pytest.raises(ValueError, match=r"channel_names must be 2 names, one for each channel, got 1"):
        component_maps(model, [torch.zeros(1, 2, 2560).double()], ["A"])
    maps = component_maps(model, [torch.zeros(1, 2, 2560).double()])
    other = component_maps(MVPFormer(mvpformer_tiny(num_layers=1)), [torch.zeros(1, 2, 2560)])
    with pytest.raises(ValueError, match=r"before must have as many layers and heads .* got 1 × 4 and 2 × 4"):
        plot_component_maps(maps, other)


def test_channels_are_named_on_both_axes():
    values = np.zeros((1, 1, 3, 3))
    figure = plot_component_maps(ComponentMaps(values, values, ("A1", "A2", "B1")))
    for ticks in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == ["A1", "A2", "B1"]
