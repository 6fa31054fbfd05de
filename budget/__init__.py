"""Text-to-prompt planning: what a model gets to read under a token budget, and why."""
