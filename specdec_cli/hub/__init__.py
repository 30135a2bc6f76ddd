"""The Hugging Face Hub and its cache. This folder is the only one that imports huggingface_hub."""
