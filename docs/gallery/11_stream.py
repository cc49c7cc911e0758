"""
A stream
========

Samples come in pieces of any length. Each five seconds cost one step of the model, whatever came before; the
probabilities equal those of the whole recording.
"""

import matplotlib.pyplot as plt

from mvpa_ts.ieeg import MVPFormer, Preprocessing, StreamingDetector, simulate_recording

recording = simulate_recording("G01", num_channels=8, duration=120.0, num_seizures=1, seed=4)
signal = recording.read(0, recording.num_samples)

# %%
# Settings that need the whole recording, such as a zero-phase filter, cannot be had in a stream.

detector = StreamingDetector(
    MVPFormer.from_pretrained("demo"),
    sfreq=recording.sfreq,
    channel_names=recording.channel_names,
    preprocessing=Preprocessing(band=None, notch=None),
)
decisions = []
for start in range(0, signal.shape[1], 1000):  # two seconds at a time
    decisions += detector.feed(signal[:, start : start + 1000])
for decision in decisions[:3]:
    print(decision)

# %%
figure, axis = plt.subplots(figsize=(8, 2.5), layout="constrained")
axis.step([decision.start for decision in decisions], [decision.probability for decision in decisions], where="post")
for onset, offset in recording.seizures:
    axis.axvspan(onset, offset, color="C1", alpha=0.3, label="seizure")
axis.set(xlabel="time (s)", ylabel="probability", ylim=(0, 1))
axis.legend()
plt.show()
