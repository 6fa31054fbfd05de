"""Policy sets: strict YAML, resolved by team, app and stage into one effective policy."""
