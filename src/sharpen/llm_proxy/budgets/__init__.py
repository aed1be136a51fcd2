"""What calls cost, and how much they may."""
