"""What one operation costs: compute, messages, collectives; and all of them for a placed configuration."""
