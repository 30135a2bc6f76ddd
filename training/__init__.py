"""Makes the bundled pair of models and its heads: corpus, training, prompts. See README.md."""
