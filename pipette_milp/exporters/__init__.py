"""Plans -> files that launch them, and models -> files that other solvers read; one target per module."""
