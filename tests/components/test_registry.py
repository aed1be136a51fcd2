"""Names: what they lead to, and that they keep their meaning."""

import json
from typing import Any

import pytest

from sharpen.components import BUILT_IN, DEFAULT_REGISTRY, Registry, build_component, register
from sharpen.errors import ComponentError
from tests.errors import raises


class Store:
    pass


class OtherStore:
    pass


@pytest.fixture
def registry() -> Registry:
    return Registry({"Decoder": "json.JSONDecoder"})


def test_a_registered_class_is_built_by_its_name(registry: Registry) -> None:
    registry.register("mine", Store)
    assert type(build_component("mine", expected_type=Store, spec_name="store", registry=registry)) is Store


def test_a_registered_path_is_imported_when_it_is_built(registry: Registry) -> None:
    registry.register("nowhere", "not_there.Store")
    registry.register("mine", f"{__name__}.Store")
    assert type(build_component({"type": "mine"}, expected_type=Store, spec_name="s", registry=registry)) is Store
    with raises(ComponentError, "not_there"):
        build_component("nowhere", expected_type=Store, spec_name="s", registry=registry)


def test_the_decorator_registers_and_gives_the_class_back(registry: Registry) -> None:
    assert registry.register("mine")(Store) is Store
    assert registry["mine"] is Store


def test_a_name_registered_for_everyone_is_known_everywhere() -> None:
    @register("store-of-the-registry-tests")
    class Mine(Store):
        pass

    for registry in (None, {"other": OtherStore}):
        built = build_component("store-of-the-registry-tests", expected_type=Store, spec_name="s", registry=registry)
        assert type(built) is Mine


def test_names_can_be_listed_like_a_mapping(registry: Registry) -> None:
    registry.register("mine", Store)
    assert dict(registry) == {"mine": Store, "Decoder": "json.JSONDecoder"}
    assert len(registry) == 2
    assert "theirs" not in registry


def test_registering_the_same_thing_again_changes_nothing(registry: Registry) -> None:
    for same in (Store, Store, f"{__name__}.Store"):
        registry.register("mine", same)
    registry.register("Decoder", json.JSONDecoder)
    registry.register("Decoder", "json.decoder.JSONDecoder")
    assert registry["Decoder"] == "json.JSONDecoder"


def test_a_class_that_was_defined_again_replaces_itself(registry: Registry) -> None:
    again = type("Store", (), {"__module__": __name__})
    registry.register("mine", Store)
    registry.register("mine", again)
    assert registry["mine"] is again


def test_a_name_does_not_move_to_another_thing(registry: Registry) -> None:
    registry.register("mine", Store)
    with raises(ComponentError, "mine", ".Store", ".OtherStore"):
        registry.register("mine", OtherStore)
    assert registry["mine"] is Store


def test_two_lambdas_are_two_things(registry: Registry) -> None:
    registry.register("mine", lambda: Store())
    with pytest.raises(ComponentError):
        registry.register("mine", lambda: OtherStore())


def test_a_built_in_name_cannot_be_replaced(registry: Registry) -> None:
    with raises(ComponentError, "Decoder", "json.JSONDecoder"):
        registry.register("Decoder", Store)
    with raises(ComponentError, "SQLiteStore"):
        register("SQLiteStore", Store)


@pytest.mark.parametrize("target", ["nodots", 3, object()])
def test_only_classes_factories_and_paths_can_be_registered(registry: Registry, target: Any) -> None:
    with raises(ComponentError, "mine="):
        registry.register("mine", target)


@pytest.mark.parametrize("name", ["", 3, Store])
def test_a_name_is_a_text(registry: Registry, name: Any) -> None:
    with raises(ComponentError, "register("):
        registry.register(name)


def test_built_in_names_are_paths_of_this_package() -> None:
    assert {"InMemoryLightningStore", "SQLiteStore", "LightningStoreClient", "memory", "sqlite"} <= set(BUILT_IN)
    assert all(path.startswith("sharpen.") for path in BUILT_IN.values())
    assert dict(DEFAULT_REGISTRY).items() >= BUILT_IN.items()
