"""
A first seizure
===============

A simulated recording of five minutes with one seizure: read it, score every five seconds, look at the events.
For research use; not a medical device.
"""

import matplotlib.pyplot as plt

from mvpa_ts.ieeg import Detector, MVPFormer, simulate_recording
from mvpa_ts.ieeg.detection.plots import plot_timeline

recording = simulate_recording("G01", num_channels=8, duration=300.0, num_seizures=1, seed=4)
print(recording)
print("seizure from", [tuple(round(second, 1) for second in seizure) for seizure in recording.seizures])

# %%
# The small model that comes with the package was trained on simulated subjects. It is for trying out.

detector = Detector(MVPFormer.from_pretrained("demo"), channels="all")
detection = detector.detect(recording)
print(detection.events)

# %%
plot_timeline(detection, recording.seizures)
plt.show()
