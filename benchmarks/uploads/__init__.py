"""What a step of the logits-processor route copies to the device, counted without one."""
