"""Tests on real, pre-trained models: `make test-real`. A package, since its files have the names of others."""
