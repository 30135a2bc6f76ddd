"""How the bundled pair of models is made: corpus, tokenizer, target, draft, GGUF files. See README.md."""
