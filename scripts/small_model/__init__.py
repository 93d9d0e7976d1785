"""Training of the small model: tools, dialogs, faults, network."""
