"""Thin adapters that put MVPA into host libraries; import the module named after the host."""
