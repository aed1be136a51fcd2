"""Kept for people who move from another package; the room is `sharpen.components`."""

from ..components import ComponentSpec, build_component, instantiate_component, instantiate_from_spec, load_class

__all__ = ["ComponentSpec", "build_component", "instantiate_component", "instantiate_from_spec", "load_class"]
