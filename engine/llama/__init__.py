"""A compact forward for Llama-shaped models: Llama, Mistral, SmolLM2, Qwen2, Qwen3.

`supports` tells whether a configuration fits, `load_forward` makes the fastest forward this machine has.
"""

from engine.llama.forward import LlamaForward, load_forward
from engine.llama.shape import supports

__all__ = ["LlamaForward", "load_forward", "supports"]
