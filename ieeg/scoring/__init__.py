"""Scores of detections against references, and of whole cohorts."""
