"""
A stream
========

An amplifier sends samples as they come. `StreamingDetector` takes them in pieces of any size and answers every five
seconds. For research use; not a medical device.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

from mvpa_ts.ieeg import MVPFormer, StreamingDetector, simulate_recording

recording = simulate_recording("S01", seed=5, num_channels=6, duration=240.0, num_seizures=1)
model = MVPFormer.from_pretrained("demo")
stream = StreamingDetector(model, recording.sfreq, recording.channel_names, {"notch": 50.0}, lookahead=2.0)

# %%
# Feed half a second at a time. `lookahead` says how long a segment waits for later samples, which the filters need.

decisions, seconds = [], []
piece = int(recording.sfreq / 2)
for first in range(0, recording.num_samples, piece):
    samples = recording.read(first, min(first + piece, recording.num_samples))
    started = time.perf_counter()
    decisions += stream.feed(samples)
    seconds.append(time.perf_counter() - started)
decisions += stream.finish()
print(len(decisions), "decisions; the slowest piece took", round(1000 * max(seconds)), "ms")

# %%
figure, axis = plt.subplots(figsize=(8, 3.5))
starts = np.array([decision.start for decision in decisions])
axis.step(starts, [decision.probability for decision in decisions], where="post", label="probability")
alarms = [decision.start for decision in decisions if decision.alarm]
axis.plot(alarms, [1.04] * len(alarms), "s", color="C2", markersize=5, label="alarm")
for onset, offset in recording.seizures:
    axis.axvspan(onset, offset, color="C1", alpha=0.3, label="seizure")
axis.set_xlabel("seconds")
figure.legend(loc="outside upper center", ncols=3)
plt.show()
