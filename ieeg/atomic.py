"""The name under which experiments/detection_pipeline.py imports `mvpa_ts.files.write_json`."""

from mvpa_ts.files import write_json

__all__ = ["write_json"]
