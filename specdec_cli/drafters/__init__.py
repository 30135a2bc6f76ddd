"""Drafters: one file each. `none` is the baseline, `model` drafts with a second model."""
