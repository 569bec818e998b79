"""Running the steps that are pending, and tracking what they measure."""
