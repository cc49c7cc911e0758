"""Seizures in a recording: probabilities, events, files and a report."""
