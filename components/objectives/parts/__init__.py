"""Parts that objectives share."""
