"""
What a model sees
=================

Two looks into MVPFormer: which channels and lags each head prefers, and how well the model predicts the next five
seconds.
"""

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch

from mvpa_ts.ieeg import MVPFormer, mvpformer_tiny, simulate_recording
from mvpa_ts.ieeg.model.component_maps import component_maps
from mvpa_ts.ieeg.training.data_module import RecordingDataModule, Simulation
from mvpa_ts.ieeg.training.pretraining import PretrainingModule, measure_similarity

model = MVPFormer.from_pretrained("demo")
recording = simulate_recording("S02", seed=3, num_channels=8, duration=300.0, num_seizures=1)

# %%
# Connectivity
# ------------
# The score of a query and a key has three terms. The channel term says which channels belong together, whatever they
# hold; the time term says which lags matter. `component_maps` averages both over the queries of a signal.

signal = torch.from_numpy(recording.read(0, 40 * 2560)).unflatten(1, (4, -1)).movedim(1, 0)  # four windows of 50 s
maps = component_maps(model, [signal], recording.channel_names)
print("layers, heads, channels, channels:", maps.channel.shape)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.5))
limit = abs(maps.channel[0]).max()
for head, axis in enumerate(axes):
    image = axis.imshow(maps.channel[0, head], cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set_title(f"head {head}")
    axis.set_xticks(range(8), recording.channel_names)
    axis.set_yticks(range(8), recording.channel_names)
axes[0].set_ylabel("query")
figure.colorbar(image, ax=axes, label="channel term of the score")
plt.show()

# %%
# Similarity
# ----------
# Pretraining teaches the model to predict the embedding of the next segment. Is a prediction closer to the true next
# segment than to the one after it, or to one from another time? A small model, sixty steps, and a subject that it has
# not seen.

data = RecordingDataModule(
    simulation=Simulation(subjects=3, hours=0.1, seizures=1), validation_subjects=["S03"], context=10, in_memory=True
)
module = PretrainingModule(mvpformer_tiny(context=10), learning_rate=1e-3, warmup_steps=5)
trainer = pl.Trainer(
    max_steps=60,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, data)
similarity = measure_similarity(module.model, data.val_dataloader()).overall()
print(similarity)

# %%
figure, axis = plt.subplots(figsize=(6, 3.5))
references = {"true": "the next segment", "two_step": "the one after it", "random": "another time"}
for place, (column, label) in enumerate(references.items()):
    axis.bar([x + 0.27 * (place - 1) for x in range(len(similarity))], similarity[column], 0.25, label=label)
axis.set_xticks(range(len(similarity)), similarity["state"])
axis.set_ylabel("cosine similarity")
figure.legend(loc="outside upper center", ncols=3)
plt.show()
