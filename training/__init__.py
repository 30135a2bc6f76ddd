"""How the bundled pair of models and its heads are made: corpus, training, prompts. See README.md."""
