"""
A first seizure
===============

From a recording to seizure events. The recording is simulated, so that its seizure is known. For research use; not a
medical device.
"""

import matplotlib.pyplot as plt

from mvpa_ts.ieeg import Detector, simulate_recording

recording = simulate_recording("S01", seed=5, num_channels=6, duration=360.0, num_seizures=1)
print(recording)

# %%
# `"demo"` is a small model that comes with the package, for trying out. `detect` also takes the path of an EDF,
# BrainVision, FIF, BIDS or SWEC recording, or an MNE `Raw`.

detection = Detector("demo").detect(recording)
print("found:", [(round(onset), round(offset)) for onset, offset in detection.events])
print("true: ", [(round(onset), round(offset)) for onset, offset in recording.seizures])

# %%
# The probability of every 5 s, the threshold, and what was found.

detection.plot()
plt.show()

# %%
# The signal around the seizure.

onset = recording.seizures[0][0]
first, last = int((onset - 10) * recording.sfreq), int((onset + 20) * recording.sfreq)
signal = recording.read(first, last)
figure, axis = plt.subplots(figsize=(8, 4))
for channel in range(len(signal)):
    seconds = [onset - 10 + sample / recording.sfreq for sample in range(signal.shape[1])]
    axis.plot(seconds, signal[channel] - 400 * channel, color="C0", linewidth=0.6)
axis.axvline(onset, color="C1", label="the seizure begins")
axis.set_yticks([-400 * channel for channel in range(len(recording.channel_names))], recording.channel_names)
axis.set_xlabel("seconds")
figure.legend(loc="outside upper right")
plt.show()

# %%
# `detection.save("results")` writes the events as SzCORE and BIDS ask for them, and a report for the browser.
