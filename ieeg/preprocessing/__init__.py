"""A recording made clean at 512 Hz and cut into segments of 5 s."""
