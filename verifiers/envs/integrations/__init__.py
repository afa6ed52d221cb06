"""Environments around other packages' tasks; each package is an optional extra, imported on use."""
