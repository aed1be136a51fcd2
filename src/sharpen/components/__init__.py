"""Component specs: how a class, a name, an import path or a dict becomes an object."""

from .build import ComponentSpec, build_component, instantiate_component, instantiate_from_spec, load_class
from .registry import BUILT_IN, DEFAULT_REGISTRY, Registry, register

__all__ = [
    "BUILT_IN",
    "DEFAULT_REGISTRY",
    "ComponentSpec",
    "Registry",
    "build_component",
    "instantiate_component",
    "instantiate_from_spec",
    "load_class",
    "register",
]
