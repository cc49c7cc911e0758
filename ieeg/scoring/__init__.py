"""Detections against references, and decoding: scores, kappa, cohorts."""
