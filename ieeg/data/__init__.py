"""Recordings of intracranial EEG: reading, preprocessing, cohorts, windows."""
