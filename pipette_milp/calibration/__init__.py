"""Estimates against measured runs: `accuracy`, the fit of the constants, `calibrate`."""
