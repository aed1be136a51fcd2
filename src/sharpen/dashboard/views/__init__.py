"""What the pages show, worked out as plain values: the templates only place them."""
