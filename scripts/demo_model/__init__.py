"""Training of the demo model: tools, dialogs, faults, network."""
