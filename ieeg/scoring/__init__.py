"""Scores of detections against references, of decoding, and of whole cohorts."""
