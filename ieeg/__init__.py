"""MVPFormer for intracranial EEG: model, recordings, pretraining and seizure detection (in preparation)."""
