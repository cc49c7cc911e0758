"""Damaged files for every reader: small good files, mutations of them, and reading within limits."""
