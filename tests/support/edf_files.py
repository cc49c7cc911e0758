"""Signals of EDF files that tests write."""


def signals_of(labels, rows, rate=512.0, unit="uV", most=None):
    """One signal for each label, where all of its samples lie within ± `most`."""
    import edfio

    limits = {} if most is None else {"physical_range": (-most, most)}
    return [
        edfio.EdfSignal(row, rate, label=label, physical_dimension=unit, **limits)
        for label, row in zip(labels, rows, strict=True)
    ]
