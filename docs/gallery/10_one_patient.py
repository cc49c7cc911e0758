"""
A detector for one patient
==========================

Seizures of one person look alike, so a few recordings of a patient make a better detector. Training begins with a small
model of the package and takes two seizures. A third seizure shows how good the detector is. For research use; not a
medical device.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from mvpa_ts.ieeg import Detector, simulate_recording
from mvpa_ts.ieeg.commands.main import main
from mvpa_ts.ieeg.simulation.writing import write_edf

folder = Path(tempfile.mkdtemp())

# %%
# Four recordings of one made-up patient, four minutes each. With files of your own, begin at the next step.

for session in range(4):
    recording = simulate_recording("P1", seed=9, session=session, num_channels=4, duration=240.0, num_seizures=1)
    write_edf(recording, folder / f"seizure{session}.edf")

# %%
# Train. In a shell the command is ``mvpformer finetune --config patient …``.

arguments = ["finetune", "--config", "patient", "--output", str(folder / "patient")]
arguments += ["--data.recordings", f"[{folder}/seizure0.edf, {folder}/seizure1.edf]"]
arguments += ["--data.validation_recordings", f"[{folder}/seizure2.edf]"]
main([*arguments, "--trainer.max_steps", "60", "--trainer.enable_progress_bar", "false"])

# %%
# Compare the detector with `demo`, the small detector of the package, on a seizure that neither has seen.

figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True, sharey=True)
for axis, (name, model) in zip(
    axes,
    {"the small detector of the package": "demo", "trained on the patient": folder / "patient" / "model"}.items(),
    strict=True,
):
    detection = Detector(model).detect(folder / "seizure3.edf")
    axis.step(detection.starts, detection.probabilities, where="post")
    for onset, offset in recording.seizures:
        axis.axvspan(onset, offset, color="C1", alpha=0.3, label="seizure")
    axis.set_title(name)
    axis.set_ylabel("probability")
axes[0].legend()
axes[1].set_xlabel("seconds")
plt.show()
