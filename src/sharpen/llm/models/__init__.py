"""Language models: found by name, loaded, adapted with LoRA, saved. Import what is needed from its module."""
