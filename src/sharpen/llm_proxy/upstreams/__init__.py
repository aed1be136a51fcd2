"""Who answers calls: choosing, asking, health and rates."""
