"""Training of drafts in PyTorch: what a target said and computed goes in, a GGUF file comes out."""
