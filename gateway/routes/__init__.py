"""HTTP route handlers, one file for each family of routes."""
