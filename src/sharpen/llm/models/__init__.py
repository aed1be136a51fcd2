"""Language models: found by name, loaded, adapted with LoRA, saved. Import each name from its module."""
