"""The A/B evaluation: the same requests to two or more arms, scored as the field scores them, compared in pairs."""
