"""What several objectives have in common."""
