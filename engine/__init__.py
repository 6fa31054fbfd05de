"""Tokens in, tokens out: the embedded inference engine and its remote stand-ins.

Importing this package loads no torch; `engine.runner` and `engine.weights` do.
"""
