"""Recordings of made-up subjects, and files written from recordings."""
